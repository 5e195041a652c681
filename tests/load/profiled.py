"""Run the gateway of the current folder and note which of its functions are called.

`python tests/load/profiled.py FILE PORT serve ...` runs `python -m gateway serve ...`. SIGUSR1
begins to note, SIGUSR2 ends it and writes what was noted into FILE as JSON: `calls`, a list of
`[file, line, function]` below `gateway/`, and `order`, indices into it as the calls came, with -1
where bytes went to the port PORT of the loopback interface. Left out is what tasks do that repeat
their work (`JOBS`): no request asks for it, and it may begin during one. The loop is asyncio's own:
uvloop's sends are not seen by `sys.setprofile`.

It imports nothing of the project, so that it can run any commit.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType
from typing import Any, Final
from weakref import WeakSet

import uvloop

SENT: Final = -1
JOBS: Final = frozenset(
    {"run_periodically", "Snapshots.run", "Pool._describe_until_left", "Listener.run"}
)
"""Coroutines of tasks that repeat their work at intervals."""
_SENDS: Final = {"send", "sendmsg", "sendto"}


class Recorder:
    """Notes calls while `is_on`. `root` is the folder of the package, ending in a slash."""

    def __init__(self, root: str, port: int) -> None:
        self.is_on = False
        self._root = root
        self._port = port
        self._numbers: dict[CodeType, int] = {}
        self._order: list[int] = []
        self._jobs: WeakSet[asyncio.Task[Any]] = WeakSet()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        # Always: a task goes on in its outermost coroutine, which may await one of `JOBS`.
        if event == "call" and frame.f_code.co_qualname in JOBS and (task := _current_task()):
            self._jobs.add(task)
        if not self.is_on:
            return
        if event == "call":
            code = frame.f_code
            if code.co_filename.startswith(self._root) and _current_task() not in self._jobs:
                self._order.append(self._numbers.setdefault(code, len(self._numbers)))
        elif event == "c_call" and self._sends(arg):
            self._order.append(SENT)

    def begin(self, *_: object) -> None:
        self._numbers, self._order = {}, []
        self.is_on = True

    def write(self, file: Path) -> None:
        """End noting. The file appears as a whole."""
        self.is_on = False
        calls = [
            (code.co_filename.removeprefix(self._root), code.co_firstlineno, code.co_qualname)
            for code in self._numbers
        ]
        part = file.with_suffix(".part")
        part.write_text(json.dumps({"calls": calls, "order": self._order}))
        part.rename(file)

    def _sends(self, called: Any) -> bool:
        if not isinstance(called, BuiltinFunctionType) or called.__name__ not in _SENDS:
            return False
        end = called.__self__
        if isinstance(end, socket.socket):
            with suppress(OSError):
                return bool(end.getpeername()[1] == self._port)
        return False


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None  # a thread without a loop


def main() -> None:
    """Run what stands behind FILE and PORT on the command line."""
    file, port = Path(sys.argv[1]), int(sys.argv[2])
    recorder = Recorder(f"{Path.cwd() / 'gateway'}{os.sep}", port)
    signal.signal(signal.SIGUSR1, recorder.begin)
    signal.signal(signal.SIGUSR2, lambda *_: recorder.write(file))
    uvloop.new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    sys.path[0] = str(Path.cwd())
    sys.argv = ["gateway", *sys.argv[3:]]
    runpy.run_module("gateway", run_name="__main__")


if __name__ == "__main__":
    main()
