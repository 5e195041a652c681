"""The one place where errors of asyncpg and the socket become `StoreError`s.

The text of a database error may quote rows. Only of errors that cannot (who may not do what, what
is not there, what the server has run out of) it goes into the message, of others their kind alone.
SQLSTATE classes: https://www.postgresql.org/docs/18/errcodes-appendix.html.
"""

from __future__ import annotations

from typing import Final

import asyncpg
from asyncpg import exceptions as asyncpg_errors

from gateway.errors import StoreConflict, StoreError, StoreUnavailable

DRIVER_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg_errors.InternalClientError,
    OSError,
)
"""Errors that a statement can raise; `TimeoutError` and `ssl.SSLError` are `OSError`s."""

_CONSTRAINT_CLASS: Final = "23"
_PASSING_CLASSES: Final = frozenset(
    {
        "08",  # connection exception
        "28",  # invalid authorization: a password that is being rotated
        "3D",  # no such database: not restored yet
        "40",  # serialization failure, deadlock
        "53",  # too many connections, out of memory, disk full
        "55",  # lock not available
        "57",  # statement timeout, shutdown, crash, starting up
        "58",  # I/O error
    }
)
_PASSING_STATES: Final = frozenset(
    {
        "25006",  # read-only transaction: connected to a standby after a failover
        "25P02",  # the transaction is aborted: whatever aborted it was reported before
        "25P03",  # idle-in-transaction timeout
        "25P04",  # transaction timeout
    }
)

_TOLD_CLASSES: Final = frozenset({"28", "3D", "3F", "53", "57", "58"})
_TOLD_STATES: Final = frozenset(
    {
        "25006",  # read-only transaction
        "42501",  # insufficient privilege
        "42703",  # undefined column
        "42883",  # undefined function
        "42P01",  # undefined table
        "55P03",  # lock not available
    }
)
_WORDS_MAX: Final = 200

_LAST_WORDS: Final = ("FATAL", "PANIC")


def translate(error: BaseException) -> StoreError:
    """Translate a driver's error for callers; accepts all of `DRIVER_ERRORS`.

    `StoreUnavailable` when the same work may succeed in a moment, `StoreConflict` for a violated
    constraint, and a plain `StoreError` for a mistake of ours: SQL, types, or a schema that is not
    migrated.
    """
    if isinstance(error, asyncpg.PostgresError):
        return _from_server(error)
    kind = StoreUnavailable if _is_passing(error) else StoreError
    reason = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
    return kind(f"database: {type(error).__name__}{reason}")


def ends_connection(error: asyncpg.PostgresError) -> bool:
    """Return True if the server closes the connection after this error, which may take a moment.

    Severities: https://www.postgresql.org/docs/18/runtime-config-logging.html.
    """
    return error.severity_en in _LAST_WORDS


def _from_server(error: asyncpg.PostgresError) -> StoreError:
    state: str = error.sqlstate or ""
    if state.startswith(_CONSTRAINT_CLASS):
        return StoreConflict(error.constraint_name or error.column_name or type(error).__name__)
    passing = (
        state[:2] in _PASSING_CLASSES
        or state in _PASSING_STATES
        or isinstance(error, asyncpg_errors.InvalidCachedStatementError)
    )
    kind = StoreUnavailable if passing else StoreError
    return kind(_describe(error), state=state)


def _is_passing(error: BaseException) -> bool:
    # Errors made on this side of the wire. A `ValueError` is a wrong argument or URL.
    if isinstance(error, asyncpg.InterfaceError):
        return not isinstance(error, ValueError)
    return isinstance(error, (OSError, asyncpg_errors.InternalClientError))


def _describe(error: asyncpg.PostgresError) -> str:
    # The server's message, cut to one line, if its class is safe to show; else the error's type.
    state: str = error.sqlstate or ""
    text = type(error).__name__
    if state[:2] in _TOLD_CLASSES or state in _TOLD_STATES:
        text = " ".join(str(error.args[0] if error.args else "").split())[:_WORDS_MAX] or text
    return f"database: {text} ({state})" if state else f"database: {text}"
