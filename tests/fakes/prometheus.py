"""A Prometheus as a process, with the configuration and the rules that `deploy` has."""

from __future__ import annotations

import math
import re
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
"""Between two scrapes and two evaluations of the rules; a test has no minutes for them."""
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_WINDOW: Final = re.compile(r"\[(\d+)([smhd])\]")
_AGE: Final = re.compile(r"(_behind_seconds\)\s*>\s*)(\d+)")


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

    def scraped(self) -> bool:
        """Return True if the last scrape of every target succeeded."""
        return {one["health"] for one in self.get("targets")["activeTargets"]} == {"up"}

    def firing(self) -> set[str]:
        """The alerts that fire now."""
        alerts = self.get("alerts")["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    def fired(self, since: float) -> set[str]:
        """The alerts that fired at any time since then."""
        span = {"start": since, "end": time.time(), "step": INTERVAL}
        data = self.get("query_range", query='ALERTS{alertstate="firing"}', **span)
        return {one["metric"]["alertname"] for one in data["result"]}

    def values(self, expression: str) -> list[float]:
        """All that an expression had since the server began, of all series; NaN is nothing."""
        span = {"start": self.since, "end": time.time(), "step": INTERVAL}
        data = self.get("query_range", query=expression, **span)
        values = (float(value) for one in data["result"] for _, value in one["values"])
        return [value for value in values if not math.isnan(value)]


@contextmanager
def prometheus(
    folder: Path, targets: Sequence[str], *, hurry: int = 1, scraped_each: str = INTERVAL
) -> Iterator[Prometheus]:
    """It scrapes the gateways at `targets`; its rules are `hurried`."""
    assert PROGRAM is not None
    configure(folder, targets, hurry, scraped_each)
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


def configure(folder: Path, targets: Sequence[str], hurry: int, scraped_each: str) -> None:
    """Write our configuration with these targets, and our rules, evaluated at the `INTERVAL`."""
    config = yaml.safe_load((RULES.parent / "prometheus.yaml").read_text("utf-8"))
    config["global"] = {"scrape_interval": scraped_each, "evaluation_interval": INTERVAL}
    (job,) = (one for one in config["scrape_configs"] if one["job_name"] == "gateway")
    del job["dns_sd_configs"]
    job["static_configs"] = [{"targets": list(targets)}]
    config["scrape_configs"] = [job]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    rules = hurried(yaml.safe_load(RULES.read_text(encoding="utf-8")), hurry)
    for group in rules["groups"]:
        group["interval"] = INTERVAL
    (folder / RULES.name).write_text(yaml.safe_dump(rules), encoding="utf-8")


def hurried(rules: dict[str, Any], hurry: int) -> dict[str, Any]:
    """The same rules on a clock that goes `hurry` times as fast.

    Windows (`[5m]`), durations (`for: 2m`) and the ages of `…_behind_seconds` are divided by it.
    Shares stay as they are, and so do rates, which are counts a second.
    """

    def shorter(seconds: int) -> str:
        return f"{seconds / hurry:g}"

    def window(found: re.Match[str]) -> str:
        return f"[{int(int(found[1]) * _UNIT_S[found[2]] * 1000 / hurry)}ms]"

    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        expression = _AGE.sub(lambda found: found[1] + shorter(int(found[2])), rule["expr"])
        rule["expr"] = _WINDOW.sub(window, expression)
        if "for" in rule:
            amount, unit = int(rule["for"][:-1]), rule["for"][-1]
            rule["for"] = f"{int(amount * _UNIT_S[unit] * 1000 / hurry)}ms"
    return rules


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
