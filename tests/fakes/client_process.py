"""Real clients of the API, each in an environment of its own: `make test-e2e` makes them."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT: Final = Path(__file__).parents[2]
ENVIRONMENTS: Final = ROOT / ".make" / "e2e"
CLIENTS: Final = ROOT / "tests" / "e2e" / "clients"
NOWHERE: Final = "http://127.0.0.1:9"
"""A proxy that nothing answers at: a client reaches this machine and nobody else."""
STOP_TIMEOUT_S: Final = 10.0

TELEMETRY_OFF: Final[Mapping[str, str]] = {
    "DO_NOT_TRACK": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "HF_HUB_OFFLINE": "1",
}
ALONE: Final[Mapping[str, str]] = {
    "HTTP_PROXY": NOWHERE,
    "HTTPS_PROXY": NOWHERE,
    "NO_PROXY": "127.0.0.1",
    "NODE_USE_ENV_PROXY": "1",
}


class ClientProcess:
    """A script of `tests/e2e/clients` that answers, see `answering.py` there."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def check(self, name: str, **given: Any) -> Any:
        """What the check found. Fails with the client's own traceback when it broke."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"check": name, "given": given}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the client ended with {self._process.wait(STOP_TIMEOUT_S)}"
        reply = json.loads(line)
        assert "broke" not in reply, reply["broke"]
        return reply["found"]


@dataclass(frozen=True)
class Clients:
    """Starts clients of one gateway; `home` is the folder that they take for the user's."""

    base_url: str
    key: str
    home: Path
    model: str = "gpt-oss-20b"

    @contextmanager
    def started(self, client: str) -> Iterator[ClientProcess]:
        """The checks of a client. Skips where its environment was not made."""
        process = subprocess.Popen(
            command(client),
            env=self.environment(),
            cwd=self.home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield ClientProcess(process)
            finally:
                process.kill()

    def environment(self) -> dict[str, str]:
        """What a client is told: where the gateway is, and that there is nothing else."""
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(self.home),
            "LLM_USER_PATH": str(self.home / "llm"),
            "PYTHONPATH": str(CLIENTS / "answering"),
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.key,
            "TEST_MODEL": self.model,
            **TELEMETRY_OFF,
            **ALONE,
        }


def command(client: str) -> list[str]:
    """What runs the checks of this client. Skips where it is not installed."""
    environment = ENVIRONMENTS / client
    if (environment / ".python").exists():
        return [str(environment / "bin" / "python"), str(CLIENTS / client / "checks.py")]
    if (environment / ".npm").exists():
        node = str(ENVIRONMENTS / "node" / "bin" / "node")
        script = environment / "clients" / client / "checks.mjs"
        return [node, "--preserve-symlinks", "--preserve-symlinks-main", str(script)]
    pytest.skip(f"the client {client} is not installed: `make test-e2e` does that")
