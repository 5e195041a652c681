"""Output for people: colours only on a terminal, NO_COLOR honoured, lines never broken.

rich is imported when there is something to show: a server would hold 5 MiB of it for nothing.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from contextlib import contextmanager
from functools import cache
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import (
    ContentSealed,
    RequestError,
    ResourceNotFound,
    StartupError,
    StoreConflict,
    StoreError,
    StoreUnavailable,
)
from gateway.telemetry.logs import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import Console


OK = "✓"
BAD = "✗"
SKIPPED = "-"
WARNING = "!"
_STYLES = {OK: "green", BAD: "red", SKIPPED: "yellow", WARNING: "yellow"}

PROGRESS_LINE_S = 5.0
FAILED = 1

_UNREACHABLE: Final = "Is PostgreSQL running, and are host and port in DATABASE_URL right?"
_REFUSED: Final = "PostgreSQL says no; its own log says more."
_SEALED: Final = (
    "What was sealed with a key that was destroyed is lost; one that its provider refuses has to "
    "be permitted there. See: harmony-gateway encryption status TENANT"
)
_REMEDIES: Final = {
    "08": _UNREACHABLE,
    "25006": "DATABASE_URL leads to a standby, which is read-only: name the primary.",
    "28": "Are user and password in DATABASE_URL right, and does pg_hba.conf let them in?",
    "3D": "Is the name of the database in DATABASE_URL right? If it is, an administrator has to "
    "make it: CREATE DATABASE … OWNER …;",
    "42501": "The user in DATABASE_URL has to own the database and its tables, or an administrator "
    "has to grant what is named above.",
    "42703": "Run: harmony-gateway db upgrade",
    "42883": "Run: harmony-gateway db upgrade",
    "42P01": "Run: harmony-gateway db upgrade",
    "53100": "Make room on the disk of the database.",
    "53300": "Raise max_connections of PostgreSQL, or lower database.pool_size_max.",
    "55P03": "Another migration or a long transaction is in the way: try again when it has ended.",
    "57014": "The database took too long: is it overloaded, or is a long transaction in the way?",
    "57P": "PostgreSQL is starting or stopping: try again in a moment.",
}
"""Remedies by SQLSTATE, or its first characters."""
_LISTS: Final = {
    "tenant": "tenants list",
    "project_id": "projects list TENANT",
    "key": "keys list TENANT",
    "key_id": "keys list TENANT",
    "id": "operators list",
    "budget": "budgets list TENANT",
    "model": "prices list",
    "label": "mcp list",
    "workload_identity_provider_id": "issuers list TENANT",
    "issuer_id": "operator-issuers list",
}
"""Command that lists what a parameter names."""
_CREATE_TENANT: Final = "harmony-gateway tenants create NAME"


@cache
def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, soft_wrap=True, stderr=stderr)


def show(text: str, *, end: str = "\n") -> None:
    _console().print(text, end=end)


def show_once(text: str) -> None:
    """Print what cannot be shown again. Raises `StartupError` if standard output takes nothing."""
    if sys.stdout is None:  # it was closed before this process began
        raise _unwritable(os.strerror(errno.EBADF))
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except OSError as error:
        raise _unwritable(error.strerror) from error


def _unwritable(reason: str | None) -> StartupError:
    return StartupError(
        f"standard output cannot be written: {reason}",
        remedy="Run it again with an output that is read: a key that was made is disabled.",
    )


def note(text: str) -> None:
    _console(stderr=True).print(text)


def failure(message: str, remedy: str) -> None:
    from rich.text import Text

    console = _console(stderr=True)
    console.print(Text("error: ", style="bold red").append(message, style="red"))
    console.print(Text(f"  {remedy}"))


def step(mark: str, name: str, detail: str, seconds: float | None = None) -> None:
    from rich.text import Text

    line = Text("  ").append(f"{mark} ", style=_STYLES[mark])
    line.append(f"{printable(name):<11} ").append(printable(detail))
    if seconds is not None:
        line.append(f"   {seconds:.1f} s", style="dim")
    _console().print(line)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows without cutting cells.

    Text from a backend or a page is one line, without control characters.
    """
    from rich.cells import cell_len
    from rich.text import Text

    lines = [headings, *(tuple(map(printable, row)) for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for number, row in enumerate(lines):
        cells = (
            cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)
        )
        line = "  ".join(cells).rstrip()
        _console().print(Text(line, style="" if number else "bold"))


def listing(
    rows: Sequence[dict[str, Any]],
    columns: Mapping[str, str | Callable[[dict[str, Any]], str]],
    *,
    as_json: bool,
) -> None:
    """Print rows as JSON, or as a table of their fields, or of what functions make of a row."""
    if as_json:
        show(json.dumps(rows))
        return
    cells = [
        [str(row[cell]) if isinstance(cell, str) else cell(row) for cell in columns.values()]
        for row in rows
    ]
    table(tuple(columns), cells)


def remedy_for(error: StoreError) -> str:
    if isinstance(error, ContentSealed):
        return _SEALED
    if not error.state:
        return _UNREACHABLE if isinstance(error, StoreUnavailable) else _REFUSED
    for length in (5, 3, 2):
        if (remedy := _REMEDIES.get(error.state[:length])) is not None:
            return remedy
    return _REFUSED


def remedy_for_request(error: RequestError) -> str:
    listing = _LISTS.get(error.param or "") if isinstance(error, ResourceNotFound) else None
    if listing is None:
        return "See the command's --help."
    if error.param == "tenant":
        return f"List tenants: harmony-gateway {listing}. Create one: {_CREATE_TENANT}"
    return f"List those that exist: harmony-gateway {listing}"


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Yield a function that counts work.

    A terminal shows a bar. Elsewhere a line is written every `PROGRESS_LINE_S`, whether or not
    anything was counted, so quick work writes none. Both are on standard error.
    """
    console = _console(stderr=True)
    if not console.is_terminal:
        with _ticking_lines(what, total) as advance:
            yield advance
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("  {task.description}"), BarColumn(), TextColumn("{task.completed}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda count: bars.advance(task, count)


@contextmanager
def _ticking_lines(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    began, done, is_over = time.monotonic(), 0, Event()

    def advance(count: int) -> None:
        nonlocal done
        done += count

    def tell() -> None:
        of_all = f" of {total}" if total is not None else ""
        while not is_over.wait(PROGRESS_LINE_S):
            note(f"{what}: {done}{of_all} after {time.monotonic() - began:.0f} s")

    # A thread, because what takes long may be one call.
    telling = Thread(target=tell, daemon=True)
    telling.start()
    try:
        yield advance
    finally:
        is_over.set()
        telling.join()


@contextmanager
def report_errors() -> Iterator[None]:
    try:
        yield
    except StartupError as error:
        failure(str(error), error.remedy)
    except StoreConflict as error:
        failure(str(error), "Something of that name exists already; choose another.")
    except StoreError as error:
        failure(str(error), remedy_for(error))
    except RequestError as error:
        failure(error.message, remedy_for_request(error))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        failure("there is no room where the output goes", "Make room; what was done is done.")
    else:
        return
    raise SystemExit(FAILED)
