"""Statements of SQLAlchemy Core, executed by asyncpg: the only way from a statement to the wire.

SQLAlchemy defines the tables and compiles a statement to SQL, once; nothing else of it is between a
request and the database. Its engine costs several times what the driver does, on every statement.
`Connection` has the part of SQLAlchemy's interface that the store uses, so a store function reads
the same: `execute`, `scalar` and `scalars` take a Core statement and named parameters.

Where there may be no named prepared statement (behind a transaction pooler) each execution is
prepared under no name: one round trip and a planning more.
"""

from __future__ import annotations

import math
from collections import OrderedDict, namedtuple
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy.dialects.postgresql import asyncpg as dialects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import asyncpg
    from sqlalchemy import Executable
    from sqlalchemy.types import TypeEngine

    Convert = Callable[[Any], Any]

Row = Any
"""A named tuple: one field for each column that the statement returns."""

_DIALECT: Final = dialects.dialect()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Compiled:
    """SQL with `$1`, `$2` … for the parameters `names`, in this order.

    `given` are the values that the statement brings along. `to_wire` and `from_wire` convert the
    values of parameters and of columns, by their place; most need no conversion.
    """

    sql: str
    names: tuple[str, ...]
    given: Mapping[str, Any]
    to_wire: Mapping[int, Convert]
    from_wire: Mapping[int, Convert]

    def arguments(self, parameters: Mapping[str, Any]) -> list[Any]:
        """The values in the order of `names`. Raises `KeyError` for one that is missing."""
        known = {**self.given, **parameters} if self.given else parameters
        values = [known[name] for name in self.names]
        for at, convert in self.to_wire.items():
            values[at] = convert(values[at])
        return values


# By the names of the parameters, because those of an INSERT without values are its columns.
_compiled: WeakKeyDictionary[Executable, dict[tuple[str, ...], Compiled]] = WeakKeyDictionary()


def compiled(statement: Executable, names: tuple[str, ...]) -> Compiled:
    """The statement for parameters of these names; compiled when it is first asked for."""
    forms = _compiled.get(statement)
    if forms is None:
        forms = _compiled[statement] = {}
    form = forms.get(names)
    if form is None:
        form = forms[names] = _compile(statement, names)
    return form


def _compile(statement: Executable, names: tuple[str, ...]) -> Compiled:
    form: Any = statement.compile(  # type: ignore[attr-defined]
        dialect=_DIALECT, column_keys=list(names)
    )
    names = tuple(form.positiontup or ())
    binds = [form.binds[name] for name in names]
    columns = getattr(statement, "exported_columns", ())
    return Compiled(
        sql=form.string,
        names=names,
        given={
            name: bind.effective_value
            for name, bind in zip(names, binds, strict=True)
            if not bind.required
        },
        to_wire=_converters(
            kind.bind_processor(_DIALECT) for kind in _native(bind.type for bind in binds)
        ),
        from_wire=_converters(
            kind.result_processor(_DIALECT, None) for kind in _native(one.type for one in columns)
        ),
    )


def _native(types: Iterable[TypeEngine[Any]]) -> Iterator[TypeEngine[Any]]:
    return (kind.dialect_impl(_DIALECT) for kind in types)


def _converters(found: Iterable[Convert | None]) -> dict[int, Convert]:
    return {at: convert for at, convert in enumerate(found) if convert is not None}


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
        statement: Executable,
        parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> Result:
        """Execute a statement; with several sets of parameters, of the same names, for each.

        For several, of which there is at least one, it returns nothing, and takes one round trip
        all the same.
        """
        if parameters is None or isinstance(parameters, Mapping):
            return await self._execute(statement, parameters or {})
        form = compiled(statement, tuple(parameters[0]))
        prepared = await self._prepare(form.sql)
        await prepared.statement.executemany([form.arguments(one) for one in parameters])
        return Result([], len(parameters))

    async def scalars(
        self, statement: Executable, parameters: Mapping[str, Any] | None = None
    ) -> Result:
        """The values of the first column."""
        found = await self._execute(statement, parameters or {})
        return Result([row[0] for row in found], found.rowcount)

    async def scalar(
        self, statement: Executable, parameters: Mapping[str, Any] | None = None
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

    async def _execute(self, statement: Executable, parameters: Mapping[str, Any]) -> Result:
        form = compiled(statement, tuple(parameters))
        prepared = await self._prepare(form.sql)
        records = await prepared.statement.fetch(*form.arguments(parameters))
        if prepared.make_row is None:
            prepared.make_row = _row_maker(prepared.statement, form.from_wire)
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


def _row_maker(statement: Any, from_wire: Mapping[int, Convert]) -> Callable[[Any], Any]:
    names = [attribute.name for attribute in statement.get_attributes()]
    row: Any = namedtuple("Row", names, rename=True)  # type: ignore[misc]
    if not from_wire:
        make: Callable[[Any], Any] = row._make
        return make

    def convert(record: Any) -> Any:
        values = list(record)
        for at, one in from_wire.items():
            values[at] = one(values[at])
        return row._make(values)

    return convert


def _count(tag: str) -> int:
    """The number at the end of a command tag, such as `DELETE 3`."""
    number = tag.rpartition(" ")[2]
    return int(number) if number.isdecimal() else 0
