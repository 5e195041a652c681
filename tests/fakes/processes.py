"""`gateway serve` and a simulated backend as child processes: real sockets, signals, exit codes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPConnection
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tests.fakes import nursery
from tests.fakes.gateway import PEPPER
from tests.fakes.simulator import RunningSimulator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
STEP_S: Final = 0.01
READY_STEP_S: Final = 0.1
SHOWN_LINES: Final = 30

running: Final[list[Child]] = []
"""Every child that has not been stopped yet, for reports of failed tests."""


class Child:
    """A running `python -m gateway`, or of another module. What it prints is kept.

    `checkout` is the folder that its modules are in; None: this tree.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        module: str = "gateway",
        checkout: Path | None = None,
    ) -> None:
        self.arguments = tuple(arguments)
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        environment = {**_neutral_environment(), **environment}
        reading, writing = os.pipe()
        self.process: subprocess.Popen[bytes] | nursery.Child
        with os.fdopen(writing, "wb"):
            if checkout is None and nursery.can_start(module):
                output = (writing, writing)
                self.process = nursery.start(module, arguments, environment, output=output)
            else:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", module, *arguments],
                    env=environment,
                    cwd=checkout,
                    stdin=subprocess.DEVNULL,
                    stdout=writing,
                    stderr=writing,
                )
        printed = os.fdopen(reading, encoding="utf-8")
        self._reader = threading.Thread(target=self._read, args=(printed,), daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        """All it has printed so far."""
        with self._changed:
            return "".join(self._lines)

    def listening_url(self) -> str:
        """Where it says it listens, once it does. Fails when it ends instead."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._listening(), START_TIMEOUT_S)
            url = self._listening()
        assert url is not None, f"{self.arguments} did not start:\n{self.output}"
        return url

    def until(self, text: str) -> None:
        """Wait until it has printed this."""
        with self._changed:
            found = self._changed.wait_for(
                lambda: any(text in line for line in self._lines), START_TIMEOUT_S
            )
        assert found, f"{text!r} is not in\n{self.output}"

    def terminate(self) -> None:
        """SIGTERM; does not wait."""
        self.process.send_signal(signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP: it does nothing any more, but its connections stay open."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT: it goes on as if no time had passed."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.process.kill()
        self._join(STOP_TIMEOUT_S)

    def stop(self) -> int:
        """Its exit code after SIGTERM, or that of SIGKILL when it does not end. May be repeated."""
        self.terminate()
        try:
            return self._join(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._join(STOP_TIMEOUT_S)

    def exit_code(self) -> int:
        """Waits for the end of one that was told to end."""
        return self._join(STOP_TIMEOUT_S)

    def _join(self, timeout_s: float) -> int:
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _listening(self) -> str | None:
        for line in self._lines:
            entry = _json_object(line)
            if entry.get("event") == "listening":
                return str(entry["url"])
        return None


@dataclass(frozen=True)
class GatewayProcess:
    """A replica, which may be starting."""

    child: Child

    @cached_property
    def url(self) -> str:
        """Where it listens; waits until it is ready."""
        url = self.child.listening_url()
        _until_ready(url, self.child)
        return url

    @property
    def base_url(self) -> str:
        """What OpenAI's clients are given."""
        return f"{self.url}/v1"


@dataclass(frozen=True)
class SimulatorProcess(RunningSimulator):
    """A simulated backend, which may be starting; a gateway is ready only after it is."""

    child: Child | None = None

    def until_healthy(self) -> None:
        """Wait until it answers."""
        assert self.child is not None
        until_healthy(self.port, self.child)

    def until_request(
        self, wanted: Callable[[dict[str, Any]], bool], timeout_s: float = 30.0
    ) -> dict[str, Any]:
        """The first request that is as wanted, once there is one; raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if found := next(filter(wanted, self.requests()), None):
                return found
            time.sleep(STEP_S)
        raise TimeoutError(f"no such request among {self.requests()[-3:]}")


@contextmanager
def gateway_process(
    folder: Path,
    database_url: str,
    backends: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    **sections: Mapping[str, Any],
) -> Iterator[GatewayProcess]:
    """A replica with a configuration file in `folder`; `sections` are those of the settings."""
    with module_process(
        "gateway", folder, database_url, backends, sections, environment=environment
    ) as process:
        yield process


@contextmanager
def module_process(
    module: str,
    folder: Path,
    database_url: str,
    backends: Sequence[str],
    sections: Mapping[str, Mapping[str, Any]],
    *,
    checkout: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[GatewayProcess]:
    """The same, of a module that does what `python -m gateway` does, and more; or of another
    release, whose modules are in the folder `checkout`.
    """
    config = folder / "gateway.yaml"
    named = [{"name": f"b{number}", "url": url} for number, url in enumerate(backends)]
    config.write_text(json.dumps({"backends": named, **sections}), encoding="utf-8")
    arguments = ["serve", "--config", str(config), "--port", "0"]
    secrets = {"DATABASE_URL": database_url, "GATEWAY_AUTH__KEY_PEPPER": PEPPER}
    environment = {**(environment or {}), **secrets}
    with stopped(Child(arguments, environment, module=module, checkout=checkout)) as child:
        yield GatewayProcess(child)


@contextmanager
def simulator_process(port: int, **options: Any) -> Iterator[SimulatorProcess]:
    """A simulated backend on a port that is reserved for it, with `WaywardOptions`.

    Not `gateway simulate`: this one obeys grammars, and misbehaves where directives say so.
    """
    with stopped(
        Child([str(port), json.dumps(options)], {}, module="tests.chaos.backend")
    ) as child:
        yield SimulatorProcess(port, child=child)


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of 127.0.0.1 that nobody else is given, also while its server is restarted.

    Linux lets another socket bind it as long as none of those bound before listens.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@contextmanager
def stopped(child: Child) -> Iterator[Child]:
    """Whatever happens, the child is gone afterwards."""
    running.append(child)
    try:
        yield child
    finally:
        child.stop()
        running.remove(child)


def output_of_children() -> list[tuple[str, str]]:
    """A title and the last lines of every running child."""
    return [
        (" ".join(child.arguments), "".join(child.output.splitlines(keepends=True)[-SHOWN_LINES:]))
        for child in running
    ]


def until_healthy(port: int, child: Child) -> None:
    """Wait until a backend answers on this port; fails when its process ends instead."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _is_healthy(port):
        assert child.process.poll() is None, child.output
        assert time.monotonic() < deadline, f"{child.arguments} does not answer:\n{child.output}"
        time.sleep(STEP_S)


def _is_healthy(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=START_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except ConnectionError:
        return False
    finally:
        connection.close()


def _until_ready(url: str, child: Child) -> None:
    """Until /readyz says so: it asks the backends in the background."""
    address = urlsplit(url)
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        connection = HTTPConnection(address.hostname or "", address.port, timeout=START_TIMEOUT_S)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        finally:
            connection.close()
        time.sleep(READY_STEP_S)
    raise AssertionError(f"{url} is not ready:\n{child.output}")


def _neutral_environment() -> dict[str, str]:
    """Ours, without what would configure a gateway."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GATEWAY_") and name not in {"DATABASE_URL", "PORT"}
    }


def _json_object(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}
