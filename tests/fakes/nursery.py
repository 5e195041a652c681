"""Processes that begin where another has come to: forked from one that has imported what they need.

To start a Python that serves takes two seconds of a core, nearly all of them imports. A nursery
imports once. Each of its children is a process with an id, an environment, files, signals and an
end of its own; what is imported, the vocabulary, and how strings are hashed it has in common with
the others. `python -m tests.fakes.nursery FD MODULES` is one: it takes orders at a
socket, and ends when nobody holds the other end of it. Each order comes with files: one to write
the exit code to, standard output and error, and those that keep their numbers.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SERVERS: Final = ("gateway.cli.serve", "tests.fakes.wayward_engine.engine", "uvicorn", "uvloop")
TOOLS: Final = (
    "mcp.server",
    "gateway.simulator.demo_site",
    "gateway.simulator.workshop",
    "uvicorn",
)
PREPARED: Final[Mapping[str, tuple[str, ...]]] = {
    "gateway": SERVERS,
    "tests.chaos.backend": SERVERS,
    "tests.chaos.truthful": SERVERS,
    "tests.chaos.unfenced": SERVERS,
    "tests.chaos.unlocked": SERVERS,
    "tests.fakes.collector": ("opentelemetry.proto.collector.trace.v1.trace_service_pb2",),
    "tests.fakes.mcp_server": TOOLS,
    "tests.fakes.site_server": TOOLS,
    "tests.fakes.tool_server": TOOLS,
}
"""What is imported before a process is forked that runs this module."""
ORDER_BYTES_MAX: Final = 1 << 17
FILES_MAX: Final = 16
_MOVED: Final = 200
"""Files are kept above this number while those below are closed."""


def can_start(module: str) -> bool:
    """Whether a nursery has what a module needs. What is traced is started anew, to be traced."""
    is_traced = any(name.startswith("COVERAGE_") for name in os.environ)
    return sys.platform == "linux" and module in PREPARED and not is_traced


class Child:
    """A process that a nursery has forked, with what of `subprocess.Popen` is used of it."""

    def __init__(self, pid: int, end: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._end = end
        self._lock = threading.Lock()

    def __del__(self) -> None:
        os.close(self._end)

    def poll(self) -> int | None:
        """Return its exit code, once it has ended."""
        with self._lock:
            if self.returncode is None and select.select([self._end], [], [], 0)[0]:
                # Nothing at all: the nursery has been ended, and with it whoever knew.
                self.returncode = int(os.read(self._end, 64) or -signal.SIGKILL)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code; raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            select.select([self._end], [], [], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Nursery:
    def __init__(self, modules: Sequence[str]) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), *modules],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._lock = threading.Lock()
        atexit.register(self._close)

    def start(self, order: dict[str, Any], files: Sequence[int]) -> Child:
        end, theirs = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._orders, [json.dumps(order).encode()], [theirs, *files])
                answer = self._orders.recv(64)
        finally:
            os.close(theirs)
        assert answer, "the nursery has ended"
        return Child(int(answer), end)

    def _close(self) -> None:
        self._orders.close()
        self._process.wait()


_nurseries: Final[dict[tuple[str, ...], _Nursery]] = {}
_opening: Final = threading.Lock()


def start(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    output: tuple[int, int],
    kept: Sequence[int] = (),
) -> Child:
    """Run a module as `python -m` does, in this folder; `kept` are files that keep their numbers.

    `output` is where it writes what it prints, and its errors.
    """
    with _opening:
        wanted = PREPARED[module]
        if wanted not in _nurseries:
            _nurseries[wanted] = _Nursery(wanted)
        nursery = _nurseries[wanted]
    order = {
        "arguments": [module, *arguments],
        "environment": dict(environment),
        "folder": os.getcwd(),
        "kept": list(kept),
    }
    return nursery.start(order, [*output, *kept])


def _tend(orders: socket.socket) -> dict[str, Any] | None:
    """Fork a child for each order. Returns in the child, with it; in the end returns None."""
    ends: dict[int, int] = {}
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    watched: list[Any] = [orders, woken]
    while True:
        ready = select.select(watched, [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(ends)
        if orders not in ready:
            continue
        message, files, _, _ = socket.recv_fds(orders, ORDER_BYTES_MAX, FILES_MAX)
        if not message:
            return None
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            order: dict[str, Any] = json.loads(message)
            _take(files[1:], order["kept"])
            return order
        ends[pid] = files[0]
        for file in files[1:]:
            os.close(file)
        orders.send(str(pid).encode())


def _tell_ends(ends: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            with suppress(BrokenPipeError):
                os.write(ends[pid], str(os.waitstatus_to_exitcode(status)).encode())
            os.close(ends.pop(pid))


def _take(files: Sequence[int], kept: Sequence[int]) -> None:
    """Have these files as standard output, error and those numbers, and no other."""
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _MOVED) for file in files]
    os.closerange(3, _MOVED)
    for file, number in zip(moved, (1, 2, *kept), strict=True):
        os.dup2(file, number)
        os.close(file)


def main() -> None:
    orders = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    if "gateway.cli.serve" in sys.modules:
        importlib.import_module("gateway.wiring.foundation").load_vocabulary()
    gc.collect()
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1, "only what has one thread can be forked"
    order = _tend(orders)
    if order is None:
        return
    orders.detach()
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.argv[:] = order["arguments"]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
