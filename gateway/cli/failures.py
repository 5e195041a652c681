"""Expected trouble is one red line and what to do; only the unexpected has a traceback."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from gateway.cli import terminal
from gateway.errors import RequestError, StartupError, StoreConflict, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

FAILED = 1
INTERRUPTED = 130


@contextmanager
def told_plainly() -> Iterator[None]:
    """Turn this package's errors into two lines on standard error and a non-zero exit."""
    try:
        yield
    except StartupError as error:
        terminal.failure(str(error), error.remedy)
    except StoreConflict as error:
        terminal.failure(str(error), "Something of that name exists already; choose another.")
    except StoreError as error:
        terminal.failure(str(error), "Is PostgreSQL running, and is DATABASE_URL right?")
    except RequestError as error:
        terminal.failure(error.message, "See the command's --help.")
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    else:
        return
    raise SystemExit(FAILED)
