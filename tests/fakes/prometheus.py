"""A Prometheus as a process, with the configuration and the rules that `deploy` has."""

from __future__ import annotations

import math
import shutil
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx2
import yaml

from tests.fakes.boards import RULES
from tests.fakes.processes import START_TIMEOUT_S, STEP_S, reserved_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from subprocess import Popen

PROGRAM: Final = shutil.which("prometheus")
"""None: it is not installed."""
INTERVAL: Final = "1s"
"""Between two scrapes, and two evaluations of the rules; a test has no minutes for them."""


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A server with an HTTP API; `since` is when it began."""

    client: httpx2.Client
    since: float

    def get(self, path: str, **parameters: Any) -> Any:
        answer = self.client.get(f"/api/v1/{path}", params=parameters)
        body = answer.json()
        assert body["status"] == "success", body
        return body["data"]

    def values(self, expression: str) -> list[float]:
        """All that an expression had since the server began, of all series; NaN is nothing."""
        span = {"start": self.since, "end": time.time(), "step": INTERVAL}
        data = self.get("query_range", query=expression, **span)
        values = (float(value) for one in data["result"] for _, value in one["values"])
        return [value for value in values if not math.isnan(value)]


@contextmanager
def prometheus(folder: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """It scrapes the gateways at `targets`."""
    assert PROGRAM is not None
    configure(folder, targets)
    since = time.time()
    with reserved_port() as port, (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                PROGRAM,
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
                _until_ready(client, process, folder)
                yield Prometheus(client, since)
        finally:
            process.terminate()
            process.wait(START_TIMEOUT_S)


def configure(folder: Path, targets: Sequence[str]) -> None:
    """Write our configuration with these targets, and our rules, at the `INTERVAL`."""
    config = yaml.safe_load((RULES.parent / "prometheus.yaml").read_text("utf-8"))
    config["global"] = dict.fromkeys(config["global"], INTERVAL)
    (job,) = (one for one in config["scrape_configs"] if one["job_name"] == "gateway")
    del job["dns_sd_configs"]
    job["static_configs"] = [{"targets": list(targets)}]
    config["scrape_configs"] = [job]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    for group in rules["groups"]:
        group["interval"] = INTERVAL
    (folder / RULES.name).write_text(yaml.safe_dump(rules), encoding="utf-8")


def _until_ready(client: httpx2.Client, process: Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _is_ready(client):
        log = (folder / "prometheus.log").read_text("utf-8")
        assert process.poll() is None, log
        assert time.monotonic() < deadline, log
        time.sleep(STEP_S)


def _is_ready(client: httpx2.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200
    except httpx2.TransportError:
        return False
