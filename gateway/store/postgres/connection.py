"""Statements, executed by asyncpg: the only way from a statement to the wire.

Where there may be no named prepared statement (behind a transaction pooler) each execution is
prepared under no name: one round trip and a planning more.
"""

from __future__ import annotations

import math
from collections import OrderedDict, namedtuple
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import asyncpg

    from gateway.store.postgres.statements import Statement

Row = Any
"""A named tuple: one field for each column that the statement returns."""


class Result:
    """What a statement returned: rows with named fields, or the values of one column."""

    __slots__ = ("_found", "rowcount")

    def __init__(self, found: list[Any], rowcount: int) -> None:
        self._found = found
        self.rowcount = rowcount
        """How many rows the statement returned or changed."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self._found)

    def all(self) -> list[Any]:
        """In the order of the statement."""
        return self._found

    def one(self) -> Any:
        """Raises `ValueError` when there is none, or another."""
        (found,) = self._found
        return found

    def one_or_none(self) -> Any:
        """Raises `ValueError` when there are several."""
        return self.one() if self._found else None


@dataclass(slots=True)
class _Prepared:
    statement: Any
    make_row: Callable[[Any], Any] | None = None


class Connection:
    """One connection, for one transaction at a time. Errors are the driver's."""

    def __init__(
        self, driver: asyncpg.Connection, *, statements_max: int, is_direct: bool = False
    ) -> None:
        """`statements_max` statements stay prepared on it; 0 where none may. `is_direct`: at its
        other end is the server that executes its statements, so what it is told stays.
        """
        self.driver = driver
        self.is_direct = is_direct
        self.session = ""
        """What it was told to stand for in all that does not begin otherwise."""
        self.used_at = -math.inf
        """When it was given back last, in the loop's time."""
        self.is_new = True
        """Nothing was done on it yet: if it is lost, so is the server."""
        self.is_for_runs = False
        """It has the role, and the limits, of `engine.Database.runs_transaction` for good."""
        self._statements_max = statements_max
        self._prepared: OrderedDict[str, _Prepared] = OrderedDict()
        self._names_given = 0

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
            return await self._execute(statement, parameters or {})
        prepared = await self._prepare(statement.sql)
        await prepared.statement.executemany([statement.arguments(one) for one in parameters])
        return Result([], len(parameters))

    async def scalars(
        self, statement: Statement, parameters: Mapping[str, Any] | None = None
    ) -> Result:
        """The values of the first column."""
        found = await self._execute(statement, parameters or {})
        return Result([row[0] for row in found], found.rowcount)

    async def scalar(
        self, statement: Statement, parameters: Mapping[str, Any] | None = None
    ) -> Any:
        """The first column of the first row; None without a row."""
        for row in await self._execute(statement, parameters or {}):
            return row[0]
        return None

    async def stand_for(self, session: str) -> None:
        """Have what it is told here stand. A round trip, unless it was the same before."""
        if self.session != session:
            self.session = ""
            await self.driver.execute(session)
            self.session = session

    async def script(self, sql: str) -> str:
        """Execute statements without parameters in one round trip; the tag of the last one."""
        tag: str = await self.driver.execute(sql)
        return tag

    async def _execute(self, statement: Statement, parameters: Mapping[str, Any]) -> Result:
        prepared = await self._prepare(statement.sql)
        records = await prepared.statement.fetch(*statement.arguments(parameters))
        if prepared.make_row is None:
            prepared.make_row = _row_maker(prepared.statement)
        rows = list(map(prepared.make_row, records))
        return Result(rows, _count(prepared.statement.get_statusmsg()))

    async def _prepare(self, sql: str) -> _Prepared:
        """Round trips: none for one that is kept, else one."""
        prepared = self._prepared.get(sql)
        if prepared is not None:
            self._prepared.move_to_end(sql)
            return prepared
        self._names_given += 1
        name = f"statement_{self._names_given}" if self._statements_max else ""
        prepared = _Prepared(await self.driver.prepare(sql, name=name))
        if self._statements_max:
            self._prepared[sql] = prepared
            if len(self._prepared) > self._statements_max:
                self._prepared.popitem(last=False)
        return prepared


def _row_maker(statement: Any) -> Callable[[Any], Any]:
    names = [attribute.name for attribute in statement.get_attributes()]
    row: Any = namedtuple("Row", names, rename=True)  # type: ignore[misc]
    make: Callable[[Any], Any] = row._make
    return make


def _count(tag: str) -> int:
    """The number at the end of a command tag, such as `DELETE 3`."""
    number = tag.rpartition(" ")[2]
    return int(number) if number.isdecimal() else 0
