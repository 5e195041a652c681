"""Running a program, and saying what it said when it failed."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SAID_MAX = 4_000


class CommandFailed(Exception):
    """A program's exit status was not 0."""


def run(
    command: Sequence[str], *, environ: Mapping[str, str] | None = None, timeout_s: float = 300
) -> str:
    """What the program wrote to its standard output. Raises `CommandFailed`."""
    return pipe(command, b"", environ=environ, timeout_s=timeout_s).decode("utf-8", "replace")


def pipe(
    command: Sequence[str],
    given: bytes,
    *,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = 300,
) -> bytes:
    """The same, in bytes, of a program that reads `given`. Raises `CommandFailed`."""
    result = subprocess.run(
        command,
        env={**os.environ, **(environ or {})},
        input=given,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )
    if result.returncode != 0:
        said = (result.stdout + result.stderr).decode("utf-8", "replace")[-SAID_MAX:]
        raise CommandFailed(f"{' '.join(command)}: exit status {result.returncode}\n{said}")
    return result.stdout


def succeeds(command: Sequence[str], *, environ: Mapping[str, str] | None = None) -> bool:
    """Is there such a program, and is its exit status 0?"""
    try:
        run(command, environ=environ, timeout_s=60)
    except (CommandFailed, OSError, subprocess.TimeoutExpired):
        return False
    return True
