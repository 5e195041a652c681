"""Database URLs; statements as asyncpg executes them; what is known of a connection between two."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import asyncpg
from typing_extensions import override

from gateway.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.store.postgres.statements import Statement

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


Row = Any
"""A `Record`, or what has the same fields."""


class Record(asyncpg.Record):  # type: ignore[misc] # asyncpg has no types
    """A row that a statement returned: its columns are fields, and it unpacks like a tuple."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Result(list[Any]):
    """The rows that a statement returned, or the values of one column."""

    def one(self) -> Any:
        """The only row. Raises `ValueError` when there is none, or another."""
        (found,) = self
        return found

    def one_or_none(self) -> Any:
        """The only row, None without a row. Raises `ValueError` when there are several."""
        return self.one() if self else None


@dataclass(slots=True)
class State:
    """What a connection is from its opening on, and what it was told for good."""

    is_direct: bool = False
    """At its other end is the server that executes its statements, so what it is told stays."""
    is_for_runs: bool = False
    """It has the role, and the limits, of `Database.runs_transaction` for good."""
    is_new: bool = True
    """No transaction succeeded on it yet: if it is lost, so is the server."""
    session: str = ""
    """The `SET` statements that hold for all that does not begin with others."""
    used_at: float = -math.inf
    """When it was given back last, in the loop's time."""


class Session(asyncpg.Connection):  # type: ignore[misc] # asyncpg has no types
    """A connection as the pool keeps it."""

    @override
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.state = State()


class Connection:
    """A connection of the pool, for one transaction. Raises the driver's errors."""

    __slots__ = ("driver", "state")

    def __init__(self, driver: Any) -> None:
        """`driver` is what asyncpg's pool gives for a `Session`."""
        self.driver = driver
        self.state: State = driver.state

    async def execute(
        self,
        statement: Statement,
        parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> Result:
        """Execute a statement; with several sets of parameters, of the same names, for each.

        For several, of which there is at least one, it returns nothing, and takes one round trip
        all the same.
        """
        if parameters is None or isinstance(parameters, Mapping):
            arguments = statement.arguments(parameters or {})
            return Result(await self.driver.fetch(statement.sql, *arguments))
        each = [statement.arguments(one) for one in parameters]
        await self.driver.executemany(statement.sql, each)
        return Result()

    async def scalars(
        self, statement: Statement, parameters: Mapping[str, Any] | None = None
    ) -> Result:
        """The values of the first column."""
        return Result([row[0] for row in await self.execute(statement, parameters)])

    async def scalar(
        self, statement: Statement, parameters: Mapping[str, Any] | None = None
    ) -> Any:
        """The first column of the first row; None without a row."""
        for row in await self.execute(statement, parameters):
            return row[0]
        return None

    async def count(self, statement: Statement, parameters: Mapping[str, Any]) -> int:
        """How many rows the statement changed."""
        arguments = statement.arguments(parameters)
        tag: str = await self.driver.execute(statement.sql, *arguments)
        return int(tag.rpartition(" ")[2])

    async def stand_for(self, session: str) -> None:
        """Execute these `SET` statements, unless they were the last ones that hold for good."""
        if self.state.session != session:
            self.state.session = ""
            await self.driver.execute(session)
            self.state.session = session

    async def script(self, sql: str) -> str:
        """Execute statements without parameters in one round trip; the tag of the last one."""
        tag: str = await self.driver.execute(sql)
        return tag
