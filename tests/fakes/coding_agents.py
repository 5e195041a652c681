"""Real coding agents, each with a home and a project of its own: `make test-e2e` installs them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.fakes.client_process import ALONE, ENVIRONMENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

RUN_TIMEOUT_S: Final = 90.0


@dataclass(frozen=True)
class CodingAgent:
    """A command line that begins a session in `project`, and what it finds around it."""

    command: tuple[str, ...]
    home: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def project(self) -> Path:
        """The folder that it works in."""
        folder = self.home / "project"
        folder.mkdir(exist_ok=True)
        return folder

    def run(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """One session to its end; `text` is on its standard input."""
        return subprocess.run(
            [*self.command, *arguments],
            cwd=self.project,
            env={
                "PATH": f"{ENVIRONMENTS / 'node' / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "LANG": "C.UTF-8",
                "HOME": str(self.home),
                **ALONE,
                **self.environment,
            },
            input=text,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )

    def answer(self, *arguments: str, text: str = "") -> str:
        """What it says at the end of a session that succeeds."""
        ended = self.run(*arguments, text=text)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()


def program(name: str, *places: str) -> str:
    """The agent's executable: `TEST_<NAME>_BIN`, or where it was installed. Skips without it."""
    variable = f"TEST_{name.upper()}_BIN"
    installed = ENVIRONMENTS / name / "node_modules"
    candidates = [os.environ.get(variable, ""), *(str(installed / place) for place in places)]
    for candidate in candidates:
        if candidate and Path(candidate).is_file():
            return candidate
    pytest.skip(f"{name} is not installed: `make test-e2e` does that, or set {variable}")
