"""A kernel as small as one can be: cells, what they show, expressions, interrupts.

It runs in a sandbox, under another Python, so it imports nothing. Requests are lines of JSON on its
standard input, messages are lines on its standard output; `kernel_gateway.py` knows both.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import os
import queue
import signal
import sys
import threading
import traceback
from contextlib import suppress
from types import SimpleNamespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Stream(io.TextIOBase):
    """What is printed is told at once."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self._kernel = kernel
        self._name = name

    def write(self, text: str) -> int:  # type: ignore[explicit-override]
        self._kernel.tell("stream", name=self._name, text=text)
        return len(text)


class Kernel:
    """Runs requests one after the other."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        self._lock = threading.Lock()
        self._parent = ""
        self._is_executing = False
        self._hooks: list[Callable[[Any], None]] = []
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (1, 2):
            os.dup2(nothing, descriptor)
        sys.stdout, sys.stderr = Stream(self, "stdout"), Stream(self, "stderr")
        events = SimpleNamespace(register=lambda _, hook: self._hooks.append(hook))
        shell = SimpleNamespace(events=events)
        self.names: dict[str, Any] = {
            "__name__": "__main__",
            "get_ipython": lambda: shell,
            "display": self._display,
            "input": _no_input,
        }

    def tell(self, kind: str, channel: str = "iopub", **content: Any) -> None:
        message = {"kind": kind, "channel": channel, "parent": self._parent, "content": content}
        with self._lock:
            self._out.write(json.dumps(message) + "\n")
            self._out.flush()

    def execute(self, request: dict[str, Any]) -> None:
        self._parent = request["id"]
        self.tell("status", execution_state="busy")
        status, told = "ok", {}
        try:
            self._is_executing = True
            self._run(request["code"])
            for name, expression in request["user_expressions"].items():
                value = eval(expression, self.names)
                data = {"text/plain": repr(value)}
                told[name] = {"status": "ok", "data": data, "metadata": {}}
        except BaseException as error:  # noqa: BLE001 - whatever it is, the kernel lives on
            self._is_executing = False
            status = "error"
            trace = traceback.format_exception(type(error), error, error.__traceback__)
            name = type(error).__name__
            self.tell("error", ename=name, evalue=str(error), traceback=trace)
        self._is_executing = False
        if not request["silent"]:
            for hook in self._hooks:
                hook(SimpleNamespace(success=status == "ok"))
        self.tell("execute_reply", "shell", status=status, user_expressions=told)
        self.tell("status", execution_state="idle")

    def _run(self, code: str) -> None:
        tree = ast.parse(code)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<cell>", "exec"), self.names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), self.names)
            if value is not None:
                self._show("execute_result", value)

    def _display(self, value: object) -> None:
        self._show("display_data", value)

    def _show(self, kind: str, value: object) -> None:
        data = {"text/plain": repr(value)}
        draw = getattr(type(value), "_repr_png_", None)
        if draw is not None:
            data["image/png"] = base64.b64encode(draw(value)).decode()
        self.tell(kind, data=data, metadata={})

    def interrupt(self, *_: object) -> None:
        if self._is_executing:
            raise KeyboardInterrupt


def _no_input(*_: object) -> str:
    raise EOFError("this frontend does not support input requests")


def main() -> None:
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    main_thread = threading.main_thread().ident
    assert main_thread is not None

    def listen() -> None:
        for line in os.fdopen(os.dup(0), encoding="utf-8"):
            request = json.loads(line)
            if "interrupt" in request:
                signal.pthread_kill(main_thread, signal.SIGINT)
            else:
                requests.put(request)
        os._exit(0)

    kernel = Kernel()
    threading.Thread(target=listen, daemon=True).start()
    while True:
        with suppress(KeyboardInterrupt):
            signal.signal(signal.SIGINT, kernel.interrupt)
            kernel.execute(requests.get())


if __name__ == "__main__":
    main()
