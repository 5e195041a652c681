"""Simulated backends on free loopback ports: in a thread of this process, or as a process."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

import uvicorn

from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.wayward_engine.directives import Attempts

START_TIMEOUT_S = 30.0
STEP_S = 0.005

_SERVE = """
import ast, sys, uvicorn
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions
app = create_simulator(WaywardOptions(**ast.literal_eval(sys.argv[2])))
uvicorn.run(app, fd=int(sys.argv[1]), log_level="critical", timeout_graceful_shutdown=0)
"""


@dataclass(frozen=True)
class RunningSimulator:
    """A simulator that answers; asked over HTTP what it saw, so that both kinds are alike."""

    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def requests(self, *, with_ids: bool = False) -> list[dict[str, Any]]:
        """What it was asked so far, oldest first."""
        path = "/simulator/requests" + ("?ids=true" if with_ids else "")
        rows: list[dict[str, Any]] = json.loads(self.call("GET", path)[1])["requests"]
        return rows

    def checks(self) -> dict[str, int]:
        """What it counted of the prompts that it was sent."""
        counts: dict[str, int] = json.loads(self.call("GET", "/simulator/requests")[1])["checks"]
        return counts

    def aborts(self) -> int:
        """How many clients hung up on it."""
        return sum(row["aborted"] for row in self.requests())

    def until(self, *outcomes: str, timeout_s: float = 10.0) -> list[dict[str, Any]]:
        """The requests of these outcomes, once there is one; raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            rows = [row for row in self.requests() if row["outcome"] in outcomes]
            if rows:
                return rows
            time.sleep(STEP_S)
        seen = [row["outcome"] for row in self.requests()]
        raise TimeoutError(f"expected one of {outcomes}, saw {seen}")

    def set_faults(self, plan: str) -> None:
        """The fault plan from now on; empty for none."""
        status, _ = self.call("PUT", "/simulator/faults", plan.encode())
        assert status == 204

    def reset(self) -> None:
        """As if just started."""
        self.call("POST", "/simulator/reset")

    def call(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """One HTTP request on a connection of its own."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=START_TIMEOUT_S)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def kill(self) -> None:
        """SIGKILL, for one that is a process."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        """SIGTERM, for one that is a process."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)


@contextmanager
def simulator(
    options: WaywardOptions | None = None, attempts: Attempts | None = None
) -> Iterator[RunningSimulator]:
    """Served by uvicorn in a thread, on a loop of its own."""
    app = create_simulator(options or WaywardOptions(), attempts)
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        running = RunningSimulator(port)
        try:
            running.call("GET", "/health")  # the listener is open already: this waits for the loop
            yield running
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def simulator_process(**options: Any) -> Iterator[RunningSimulator]:
    """Served by a Python of its own, which can be killed. `options`: WaywardOptions' fields."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.set_inheritable(True)
        arguments = [sys.executable, "-c", _SERVE, str(listener.fileno()), repr(options)]
        process = subprocess.Popen(arguments, pass_fds=[listener.fileno()])
        running = RunningSimulator(listener.getsockname()[1], process)
    try:
        running.call("GET", "/health")
        yield running
    finally:
        process.kill()
        process.wait()
