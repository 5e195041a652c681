"""The interpreter of one container. It runs in the sandbox, and imports nothing of the project.

`python worker.py LIMITS`: resource limits as JSON, as in `{"RLIMIT_CORE": 0}`. A frame is four
bytes of length, most significant first, and so many bytes of JSON.

    in    {"run": 3, "code": "…"}     {"interrupt": 3}
          {"put": 4, "path": "/mnt/data/a.csv", "at": 0, "content": "base64"}
          {"get": 5, "path": "/mnt/data/a.csv", "at": 0, "size": 1000}
          {"remove": 6, "path": "/mnt/data/a.csv"}
    out   {"ready": "3.11.7", "packages": ["numpy", …]}
          {"ran": 3, "status": "ok" | "error" | "interrupted", "output": "…", "dropped": 0,
           "images": ["/mnt/data/.display/1.png"], "files": ["/mnt/data/a.csv"], "gone": []}
          {"printed": 3, "output": "…"}, what there is of it when the run is interrupted
          {"put": 4}   {"get": 5, "content": "base64"}   {"remove": 6}
          {"get": 5, "refused": "why"}, as to any other order about a file
"""

from __future__ import annotations

import ast
import base64
import io
import json
import linecache
import os
import queue
import resource
import signal
import stat
import struct
import sys
import threading
import traceback
import warnings
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain, islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

OUTPUT_BYTES_MAX = 1024 * 1024
"""Further bytes are counted and dropped."""
FILES_MAX = 1000
"""Looked at for changes, beside those that are known."""
IMAGES_MAX = 16
DATA = "/mnt/data"
DISPLAY = f"{DATA}/.display"
PACKAGES = ("numpy", "pandas", "matplotlib", "scipy", "sympy", "PIL", "openpyxl", "sklearn")
"""Named to a model, if they are installed."""


class Output:
    """Printed text, also of a library in C or a child process; a thread reads it from a pipe."""

    def __init__(self) -> None:
        self._read, write = os.pipe()
        for stream in (1, 2):
            os.dup2(write, stream)
        os.close(write)
        self._mark = os.urandom(16)
        self._seen = threading.Event()
        self._kept = bytearray()
        self._dropped = 0
        sys.stdout = open(1, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)
        sys.stderr = open(2, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)
        threading.Thread(target=self._pump, daemon=True).start()

    def take(self) -> tuple[str, int]:
        """Return the text since the last call, and how many of its bytes were dropped."""
        _flush()
        self._seen.clear()
        os.write(1, self._mark)
        self._seen.wait()
        kept, dropped = bytes(self._kept), self._dropped
        self._kept, self._dropped = bytearray(), 0
        return kept.decode("utf-8", "replace"), dropped

    def so_far(self) -> str:
        # For a run whose output ends early.
        return bytes(self._kept).decode("utf-8", "replace")

    def _pump(self) -> None:
        # The mark may arrive in pieces.
        tail = b""
        while data := os.read(self._read, 65536):
            text = tail + data
            before, mark, behind = text.partition(self._mark)
            held = 0 if mark else _overlap(before, self._mark)
            self._keep(before[: len(before) - held])
            tail = before[len(before) - held :]
            if mark:
                tail = behind
                self._seen.set()

    def _keep(self, data: bytes) -> None:
        room = max(0, OUTPUT_BYTES_MAX - len(self._kept))
        self._kept += data[:room]
        self._dropped += max(0, len(data) - room)


def _overlap(text: bytes, mark: bytes) -> int:
    # The number of bytes at the end of `text` that may begin `mark`.
    for size in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0


class Frames:
    """Both ends of the protocol, kept from the code that runs."""

    def __init__(self) -> None:
        self._input = os.fdopen(os.dup(0), "rb")
        self._output = os.fdopen(os.dup(1), "wb")
        self._lock = threading.Lock()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        sys.stdin = io.StringIO()

    def read(self) -> dict[str, Any] | None:
        head = self._input.read(4)
        if len(head) < 4:
            return None
        frame: dict[str, Any] = json.loads(self._input.read(struct.unpack(">I", head)[0]))
        return frame

    def write(self, frame: dict[str, Any]) -> None:
        # Names of files need not be UTF-8: such a one is reported, but cannot be read by that.
        data = json.dumps(frame, ensure_ascii=False).encode("utf-8", "replace")
        with self._lock:
            self._output.write(struct.pack(">I", len(data)) + data)
            self._output.flush()


class Notebook:
    def __init__(self, output: Output) -> None:
        self._output = output
        self._names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
        self._names["display"] = self._display
        self._images: list[str] = []
        self._count = 0
        self._is_executing = False
        self.files = _files()

    def run(self, number: int, code: str) -> dict[str, Any]:
        signal.signal(signal.SIGINT, self._interrupt)
        for path in self._images:
            with suppress(OSError):
                os.remove(path)
        self._images = []
        try:
            self._is_executing = True
            status = self._attempt(f"<cell {number}>", code)
        except KeyboardInterrupt:
            status = "interrupted"
        finally:
            self._is_executing = False
            self._forget_figures()
        text, dropped = self._output.take()
        before, self.files = self.files, _files(self.files)
        changed = sorted(path for path, seen in self.files.items() if before.get(path) != seen)
        return {
            "ran": number, "status": status, "output": text, "dropped": dropped,
            "images": self._images, "files": changed,
            "gone": sorted(before.keys() - self.files.keys()),
        }  # fmt: skip

    def _interrupt(self, *_: object) -> None:
        # Only user code is interrupted, not the report of it.
        if self._is_executing:
            raise KeyboardInterrupt

    def _attempt(self, name: str, code: str) -> str:
        # Raises `KeyboardInterrupt`, also while an error describes itself.
        try:
            self._execute(name, code)
            self._draw()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, the container lives on
            _print_error(error)
            return "error"
        return "ok"

    def _execute(self, name: str, code: str) -> None:
        # The value of a last expression is shown, as in a notebook.
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), self._names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), self._names)
            if value is not None:
                self._names["_"] = value
                self._display(value)

    def _display(self, *values: object) -> None:
        for value in values:
            draw = getattr(type(value), "_repr_png_", None)
            image = draw(value) if callable(draw) else None
            if isinstance(image, bytes) and len(self._images) < IMAGES_MAX:
                with open(self._new_image(), "wb") as file:
                    file.write(image)
            else:
                print(repr(value))

    def _draw(self) -> None:
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        for figure in pyplot.get_fignums()[: IMAGES_MAX - len(self._images)]:
            pyplot.figure(figure).savefig(self._new_image(), bbox_inches="tight")

    @staticmethod
    def _forget_figures() -> None:
        # Figures of a failed run are not shown with the next one.
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None:
            with suppress(Exception):
                pyplot.close("all")

    def _new_image(self) -> str:
        # Images of an earlier interpreter may be there: clients have their URLs.
        os.makedirs(DISPLAY, exist_ok=True)
        path = ""
        while not path or os.path.lexists(path):
            self._count += 1
            path = f"{DISPLAY}/{self._count}.png"
        self._images.append(path)
        return path


def _print_error(error: BaseException) -> None:
    # Without the frames of this file; to the pipe, for code may have closed or replaced the stream.
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, trace))
    except Exception:  # noqa: BLE001 - an error of the code may fail to describe itself
        text = f"{type(error).__name__}\n"
    _flush()
    with suppress(OSError), open(2, "wb", closefd=False) as stream:
        stream.write(text.encode("utf-8", "replace"))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _files(paths: Iterable[str] = ()) -> dict[str, tuple[int, int]]:
    # Size and modification time by path: of these files, and of the first that are not hidden.
    files: dict[str, tuple[int, int]] = {}
    for path in chain(paths, islice(_visible(), FILES_MAX)):
        with suppress(OSError):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                files[path] = (status.st_size, status.st_mtime_ns)
    return files


def _visible() -> Iterator[str]:
    for folder, folders, names in os.walk(DATA):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (os.path.join(folder, name) for name in names if not name.startswith("."))


class Files:
    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook

    def serve(self, frame: dict[str, Any]) -> dict[str, Any]:
        order = next(name for name in ("put", "get", "remove") if name in frame)
        answer = {order: frame[order]}
        try:
            serve: Callable[[str, dict[str, Any]], dict[str, Any]] = getattr(self, order)
            return answer | serve(frame["path"], frame)
        except OSError as error:
            return answer | {"refused": error.strerror or "it failed"}

    def put(self, path: str, frame: dict[str, Any]) -> dict[str, Any]:
        """Write a piece of a file; the first replaces the file."""
        if frame["at"] == 0:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with suppress(FileNotFoundError):
                os.remove(path)
        with open(path, "ab") as file:
            file.write(base64.b64decode(frame["content"]))
        self._seen(path)
        return {}

    def get(self, path: str, frame: dict[str, Any]) -> dict[str, Any]:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            file.seek(frame["at"])
            return {"content": base64.b64encode(file.read(frame["size"])).decode()}

    def remove(self, path: str, _frame: dict[str, Any]) -> dict[str, Any]:
        with suppress(FileNotFoundError):
            os.remove(path)
        self._notebook.files.pop(path, None)
        return {}

    def _seen(self, path: str) -> None:
        status = os.stat(path)
        self._notebook.files[path] = (status.st_size, status.st_mtime_ns)


def _listen(frames: Frames, output: Output, runs: queue.SimpleQueue[dict[str, Any]]) -> None:
    # Runs beside the code: an interrupt must not wait for its end.
    main = threading.main_thread().ident
    assert main is not None
    while (frame := frames.read()) is not None:
        if "interrupt" in frame:
            signal.pthread_kill(main, signal.SIGINT)
            frames.write({"printed": frame["interrupt"], "output": output.so_far()})
        else:
            runs.put(frame)
    # Whoever started it is gone, and its code may never end.
    os._exit(0)


def main() -> None:
    for name, value in json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}").items():
        resource.setrlimit(getattr(resource, name), (value, value))
    frames = Frames()
    output = Output()
    notebook = Notebook(output)
    files = Files(notebook)
    warnings.filterwarnings("ignore", message=".*non-interactive.*")
    signal.signal(signal.SIGINT, lambda *_: None)
    with suppress(OSError):
        os.chdir(DATA)
    runs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(frames, output, runs), daemon=True).start()
    packages = [name for name in PACKAGES if find_spec(name) is not None]
    frames.write({"ready": sys.version.split()[0], "packages": packages})
    while True:
        frame = runs.get()
        if "run" in frame:
            frames.write(notebook.run(frame["run"], frame["code"]))
        else:
            frames.write(files.serve(frame))


if __name__ == "__main__":
    main()
