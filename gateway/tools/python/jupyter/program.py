"""What a kernel has of ours: files in and out, and what came of its runs.

It is sent to the kernel as text and runs there, as the module `_gateway`, so it imports nothing of
the project. Each function is called between two runs, as kernels do one thing after another, and
answers what can be said in JSON.
"""

from __future__ import annotations

import atexit
import base64
import json
import os
import resource
import shutil
import sys
from contextlib import suppress
from importlib.util import find_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

OUTPUT_CHARS_MAX = 1024 * 1024
"""Of one run; what is printed behind is counted and dropped."""
FILES_MAX = 1000
"""So many files are looked at for changes."""
OUTCOMES_MAX = 16
"""Runs whose outcome is kept."""
NO_NAMES = ("KERNEL_GATEWAY", "GPG_KEY")
"""Of the environment what servers and images of Python put there, and code has no use for."""


class Printed:
    """Counts what a run prints, and drops what is too much: servers would drop all of it."""

    def __init__(self) -> None:
        self.chars = 0
        self.dropped = 0
        for stream in (sys.stdout, sys.stderr):
            stream.write = self._bounded(stream.write)  # type: ignore[method-assign]

    def _bounded(self, write: Callable[[str], int]) -> Callable[[str], int]:
        def bounded(text: str) -> int:
            kept = text[: max(0, OUTPUT_CHARS_MAX - self.chars)]
            self.chars += len(kept)
            self.dropped += len(text) - len(kept)
            if kept:
                write(kept)
            return len(text)

        return bounded


class Notebook:
    """The folder of a container, and the runs that there were. Paths are relative to the folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._files: dict[str, tuple[int, int]] = {}
        self._key: str | None = None
        self._token = ""
        self._outcomes: dict[str, dict[str, Any]] = {}
        self._printed = Printed()
        self._status = "interrupted"

    def tell(self, result: Any) -> None:
        """What IPython says of a run that is over."""
        self._status = "ok" if result.success else "error"

    def before(self, key: str, token: str) -> dict[str, Any]:
        """A run of this key begins, unless another one did: a key runs once. `token` is of whoever
        begins it, who may not have heard the answer.
        """
        if key == self._key or key in self._outcomes:
            return {"begun": token == self._token}
        self._key, self._token, self._status = key, token, "interrupted"
        self._files = self._found()
        self._printed.chars = self._printed.dropped = 0
        return {"begun": True}

    def after(self, key: str) -> dict[str, Any]:
        """What came of a run; nothing where this kernel knows of none."""
        if key == self._key:
            self._key = None
            before, self._files = self._files, self._found()
            self._outcomes[key] = {
                "status": self._status,
                "dropped": self._printed.dropped,
                "files": sorted(p for p, seen in self._files.items() if before.get(p) != seen),
                "gone": sorted(before.keys() - self._files.keys()),
            }
            for old in list(self._outcomes)[:-OUTCOMES_MAX]:
                del self._outcomes[old]
        return self._outcomes.get(key, {})

    def put(self, path: str, at: int, content: str) -> dict[str, Any]:
        """Write a piece of a file; the first one replaces it, and makes its folders."""
        place = os.path.join(self._folder, path)
        if at == 0:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with suppress(FileNotFoundError):
                os.remove(place)
        with open(place, "ab") as file:
            file.write(base64.b64decode(content))
        return {}

    def get(self, path: str, at: int, size: int) -> dict[str, Any]:
        """Read a piece of a file."""
        place = os.path.join(self._folder, path)
        with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            file.seek(at)
            return {"content": base64.b64encode(file.read(size)).decode()}

    def remove(self, path: str) -> dict[str, Any]:
        """Delete a file, if it is there."""
        with suppress(FileNotFoundError):
            os.remove(os.path.join(self._folder, path))
        return {}

    def _found(self) -> dict[str, tuple[int, int]]:
        """Size and time of the files, hidden ones left out."""
        found: dict[str, tuple[int, int]] = {}
        for folder, folders, names in os.walk(self._folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                path = os.path.join(folder, name)
                if not name.startswith(".") and not os.path.islink(path):
                    with suppress(OSError):
                        told = os.stat(path)
                        found[os.path.relpath(path, self._folder)] = told.st_size, told.st_mtime_ns
                if len(found) >= FILES_MAX:
                    return found
        return found


_notebooks: list[Notebook] = []


def shell_of_kernel() -> Any:
    """IPython's shell; whoever sends this text puts the kernel's `get_ipython` in its place."""
    raise NotImplementedError


def begin(
    folder: str, *, is_own: bool, limits: Mapping[str, int], packages: Sequence[str]
) -> dict[str, Any]:
    """Make the folder, bound what the kernel may use, and hear of runs; what there is."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.chdir(folder)
    if is_own:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, value in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (least, least))
    for name in NO_NAMES:
        os.environ.pop(name, None)  # noqa: TID251 - this is not the gateway
    notebook = Notebook(folder)
    shell = shell_of_kernel()
    shell.events.register("post_run_cell", notebook.tell)
    with suppress(Exception):  # of other versions it may be told otherwise
        shell.InteractiveTB.set_mode(mode="Plain")
    _notebooks[:] = [notebook]
    found = [name for name in packages if find_spec(name) is not None]
    return {"version": sys.version.split()[0], "packages": found}


def answer(order: str, given: str) -> str:
    """Do what is ordered; what came of it, in letters that nothing on the way quotes."""
    told: dict[str, Any]
    try:
        arguments = json.loads(base64.b64decode(given))
        if order == "begin":
            told = begin(**arguments)
        else:
            told = getattr(_notebooks[0], order)(**arguments)
    except OSError as error:
        told = {"refused": error.strerror or "it failed"}
    return base64.b64encode(json.dumps(told).encode()).decode()
