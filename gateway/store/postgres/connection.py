"""Statements, executed by asyncpg, and what it knows of a connection from one use to the next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.store.postgres.statements import Statement


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
