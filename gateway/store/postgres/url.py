"""Database URLs: what operators write, as asyncpg reads it."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

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


def driver_url(url: str) -> str:
    """What operators write, as asyncpg reads it. Raises `StartupError`, without the password in it.

    asyncpg understands libpq's form (https://www.postgresql.org/docs/18/libpq-connect.html) on its
    own: hosts, unix sockets, `?host=`, `sslmode`, `sslrootcert`. Only the scheme, SQLAlchemy's
    spelling of the TLS mode, and libpq options that asyncpg would pass on as server settings are
    mended here.
    """
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise StartupError(
            f"a database URL cannot start with {parts.scheme or 'nothing'!r}",
            remedy="Write postgresql://USER:PASSWORD@HOST:PORT/DATABASE.",
        )
    options = [(_RENAMED.get(name, name), value) for name, value in parse_qsl(parts.query)]
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
