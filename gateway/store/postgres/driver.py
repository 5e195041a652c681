"""Translation between asyncpg and the store: operators' database URLs, and errors.

The text of a database error may quote rows. So only texts that cannot (of privileges, missing
objects, exhausted resources) go into the message; of others only their kind. SQLSTATE classes:
https://www.postgresql.org/docs/18/errcodes-appendix.html.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit, urlunsplit

import asyncpg
from asyncpg import exceptions as asyncpg_errors

from gateway.errors import StartupError, StoreConflict, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCHEMES: Final = frozenset({"postgres", "postgresql", "postgresql+asyncpg"})
_RENAMED: Final = {"ssl": "sslmode"}
_CLIENT_SIDE: Final = frozenset(
    {
        "connect_timeout",
        "fallback_application_name",
        "gssencmode",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "pgbouncer",
        "prepared_statement_cache_size",
        "statement_cache_size",
        "tcp_user_timeout",
    }
)
"""Options of libpq or other clients; asyncpg would pass them on as server settings."""
_TLS_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_PORT_MAX: Final = 65_535
_ENCODED: Final = "In user and password write / as %2F, # as %23, ? as %3F, @ as %40, [ as %5B."


def driver_url(url: str) -> str:
    """Return an operator's URL in the form that asyncpg reads: libpq's
    (https://www.postgresql.org/docs/18/libpq-connect.html), but for the scheme, SQLAlchemy's
    spelling of the TLS mode, and some options.

    Raises `StartupError` without the password in it.
    """
    parts = _parts(url)
    if parts.scheme not in _SCHEMES:
        raise StartupError(
            f"a database URL cannot start with {parts.scheme or 'nothing'!r}",
            remedy="Write postgresql://USER:PASSWORD@HOST:PORT/DATABASE.",
        )
    options = [(_RENAMED.get(name, name), value) for name, value in parse_qsl(parts.query)]
    hosts = parts.netloc.rpartition("@")[2].split(",")
    ports = _ports(hosts)
    hosts += [host for name, value in options if name == "host" for host in value.split(",")]
    ports += [port for name, value in options if name == "port" for port in value.split(",")]
    if not all(map(_is_host, hosts)):
        raise StartupError("a host in the database URL has an empty or long label", remedy=_ENCODED)
    if not all(map(_is_port, ports)):
        raise StartupError(
            f"a port in the database URL is no number from 1 to {_PORT_MAX}", remedy=_ENCODED
        )
    for name, value in options:
        if name == "sslmode" and value not in _TLS_MODES:
            raise StartupError(
                f"{value!r} is no sslmode", remedy=f"It is one of: {', '.join(_TLS_MODES)}."
            )
    if ("channel_binding", "require") in options:
        raise StartupError(
            "channel_binding=require is not supported by the driver",
            remedy="Remove it from the database URL and use sslmode=verify-full instead.",
        )
    kept = [
        (name, value)
        for name, value in options
        if name not in _CLIENT_SIDE and name != "channel_binding"
    ]
    # Spelt out for `urlunsplit`, which drops the empty authority of postgresql:///database.
    rest = urlunsplit(("", "", parts.path, urlencode(kept, quote_via=quote), ""))
    return f"postgresql://{parts.netloc}{rest}"


def _parts(url: str) -> SplitResult:
    # A `#` belongs to a password that is not encoded; urlsplit would cut the URL there.
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None
    if parts is None or parts.fragment:
        raise StartupError("the database URL cannot be read", remedy=_ENCODED)
    return parts


def _ports(hosts: Sequence[str]) -> list[str]:
    # An IPv6 address has colons of its own.
    ports = (host.rpartition("]")[2].partition(":") for host in hosts)
    return [port for _, _, port in ports if port]


def _is_host(text: str) -> bool:
    # As it is encoded for a look-up; a folder of a socket is not.
    if text.lower().startswith(("/", "%2f")):
        return True
    try:
        text.partition(":")[0].encode("idna")
    except UnicodeError:
        return False
    return True


def _is_port(text: str) -> bool:
    return bool(_PORT.fullmatch(text)) and 0 < int(text) <= _PORT_MAX


DRIVER_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg_errors.InternalClientError,
    OSError,
)
"""`TimeoutError` and `ssl.SSLError` are `OSError`s."""

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

_SHOWN_CLASSES: Final = frozenset({"28", "3D", "3F", "53", "57", "58"})
_SHOWN_STATES: Final = frozenset(
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
    """Translate one of `DRIVER_ERRORS`.

    `StoreUnavailable` when the same work may succeed in a moment; a plain `StoreError` for a
    mistake of ours, or a schema that is not migrated.
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
    if state[:2] in _SHOWN_CLASSES or state in _SHOWN_STATES:
        text = " ".join(str(error.args[0] if error.args else "").split())[:_WORDS_MAX] or text
    return f"database: {text} ({state})" if state else f"database: {text}"
