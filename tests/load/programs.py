"""The native programs: compiled when the benchmark needs them, into .make/bench."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCES: Final = Path(__file__).parent / "native"
BUILT: Final = Path(__file__).resolve().parents[2] / ".make" / "bench"
FLAGS: Final = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror")
BUILD_TIMEOUT_S: Final = 120.0
_BACKEND: Final = ("backend", "answers", "shared")
_LOAD: Final = ("load", "answer_reader", "transcript", "shared")


class NoCompiler(Exception):
    """There is no `cc`, or it does not take our sources."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the backend and the load generator are."""

    backend: Path
    load: Path


def build(into: Path = BUILT) -> Programs:
    """Compile what is older than its sources. Raises `NoCompiler`."""
    into.mkdir(parents=True, exist_ok=True)
    return Programs(
        backend=_compile(into / "backend", _BACKEND), load=_compile(into / "load", _LOAD)
    )


def _compile(program: Path, parts: Sequence[str]) -> Path:
    newest = max(path.stat().st_mtime for path in SOURCES.iterdir())
    if program.exists() and program.stat().st_mtime > newest:
        return program
    compiler = shutil.which("cc")
    if compiler is None:
        raise NoCompiler("there is no C compiler here: install one that is called cc, such as gcc")
    sources = [str(SOURCES / f"{part}.c") for part in parts]
    done = subprocess.run(
        [compiler, *FLAGS, "-o", str(program), *sources],
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise NoCompiler(f"{program.name} does not compile:\n{done.stderr}")
    return program
