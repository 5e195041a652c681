"""Database URLs: what operators write, as asyncpg reads it."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit, urlunsplit

from gateway.errors import StartupError

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
"""No server setting: libpq's own, or another client's. Their like are constructor arguments."""
_TLS_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_PORT_MAX: Final = 65_535
_ENCODED: Final = "In user and password write / as %2F, # as %23, ? as %3F, @ as %40, [ as %5B."


def driver_url(url: str) -> str:
    """Return an operator's URL in the form that asyncpg reads.

    asyncpg understands libpq's form (https://www.postgresql.org/docs/18/libpq-connect.html): hosts,
    unix sockets, `?host=`, `sslmode`, `sslrootcert`. Only the scheme, SQLAlchemy's spelling of the
    TLS mode, and libpq options that asyncpg would pass on as server settings are changed here.
    Raises `StartupError`, without the password in it.
    """
    parts = _parts(url)
    if parts.scheme not in _SCHEMES:
        raise StartupError(
            f"a database URL cannot start with {parts.scheme or 'nothing'!r}",
            remedy="Write postgresql://USER:PASSWORD@HOST:PORT/DATABASE.",
        )
    if not all(map(_is_port, _ports(parts.netloc))):
        raise StartupError(
            f"a port in the database URL is no number from 1 to {_PORT_MAX}", remedy=_ENCODED
        )
    options = [(_RENAMED.get(name, name), value) for name, value in parse_qsl(parts.query)]
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


def _ports(netloc: str) -> list[str]:
    # An IPv6 address has colons of its own.
    hosts = netloc.rpartition("@")[2].split(",")
    ports = (host.rpartition("]")[2].partition(":") for host in hosts)
    return [port for _, _, port in ports if port]


def _is_port(text: str) -> bool:
    return bool(_PORT.fullmatch(text)) and 0 < int(text) <= _PORT_MAX
