"""SQL statements with named parameters, and with `$1`, `$2` … as PostgreSQL takes them.

Of many rows in one statement a column is one parameter, an array. Of a few rows each value is a
parameter: asyncpg inspects each element of an array, and the server takes it apart again, which for
a single row costs several times as much as all the rest.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from functools import cache, cached_property
from itertools import zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gateway.tenancy import TenantId

    Row = Mapping[str, Any]

_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z]\w*)")
"""Neither the second colon of a cast, nor one behind a word."""


class Statement:
    """SQL with parameters `:name`. No literal or comment may contain what looks like one."""

    __slots__ = ("names", "sql", "text")

    def __init__(self, text: str) -> None:
        places: dict[str, str] = {}

        def place(match: re.Match[str]) -> str:
            return places.setdefault(match[1], f"${len(places) + 1}")

        self.text = text
        self.sql = _PARAMETER.sub(place, text)
        self.names = tuple(places)

    def arguments(self, parameters: Mapping[str, Any]) -> list[Any]:
        # In the order of `names`. Raises `KeyError` for a missing one.
        return list(map(parameters.__getitem__, self.names))


def insert_into(table: str, columns: Iterable[str]) -> str:
    names = tuple(columns)
    values = ", ".join(f":{name}" for name in names)
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values})"  # noqa: S608 - constants


Of = TypeVar("Of")

FORMS: Final = (0, 1, 2, 4, 8)
"""Row counts with a statement form of their own, which has to be prepared: counts in between take
the next form and fill it with NULLs."""


class Rows:
    """Rows that a statement is sent; `name` is their alias in its FROM."""

    def __init__(self, name: str, columns: Mapping[str, str]) -> None:
        # Names and types of the columns; the first is never null in a row.
        self.name = name
        self.columns = tuple(columns)
        self.kinds = tuple(columns.values())
        # Names of parameters: one for a column of many rows, or one for each value of a few rows.
        self._in_arrays = tuple(f"{name}_{column}" for column in self.columns)
        self._in_values = [
            tuple(f"{name}_{column}_{at}" for column in self.columns) for at in range(FORMS[-1])
        ]
        self.names = ", ".join(self.columns)

    @cached_property
    def source(self) -> str:
        arrays = (
            f"CAST(:{parameter} AS {kind}[])"
            for parameter, kind in zip(self._in_arrays, self.kinds, strict=True)
        )
        return f"unnest({', '.join(arrays)}) AS {self.name} ({self.names})"

    def few(self, count: int) -> str:
        none = ["NULL"] * len(self.columns)
        sent = [[f":{parameter}" for parameter in names] for names in self._in_values[:count]]
        rows = ", ".join(map(self._spelled_row, sent or [none]))
        return (
            f"(SELECT * FROM (VALUES {rows}) AS each ({self.names})"  # noqa: S608 - constants only
            f" WHERE {self.columns[0]} IS NOT NULL) AS {self.name}"
        )

    def parameters(self, rows: Sequence[Row]) -> dict[str, list[Any]]:
        # Each row has all the columns.
        return {
            parameter: [row[column] for row in rows]
            for parameter, column in zip(self._in_arrays, self.columns, strict=True)
        }

    def values(self, rows: Sequence[Row], count: int) -> dict[str, Any]:
        sent: dict[str, Any] = {}
        for names, row in zip_longest(self._in_values[:count], rows):
            if row is None:
                sent |= dict.fromkeys(names)
            else:
                sent.update(zip(names, map(row.__getitem__, self.columns), strict=True))
        return sent

    def _spelled_row(self, values: Iterable[str]) -> str:
        of_a_kind = zip(values, self.kinds, strict=True)
        return f"({', '.join(f'CAST({value} AS {kind})' for value, kind in of_a_kind)})"


class Batch:
    """A statement over rows: `{name}` stands for the source of the rows of that name."""

    def __init__(self, sql: str, *kinds: Rows) -> None:
        self._sql = sql
        self._kinds = kinds
        self._statement = cache(self._new_statement)

    def of(self, *rows: Sequence[Row]) -> tuple[Statement, dict[str, Any]]:
        forms: list[int | None] = []
        parameters: dict[str, Any] = {}
        for kind, some in zip(self._kinds, rows, strict=True):
            if len(some) > FORMS[-1]:
                forms.append(None)
                parameters |= kind.parameters(some)
            else:
                form = FORMS[bisect_left(FORMS, len(some))]
                forms.append(form)
                parameters |= kind.values(some, form)
        return self._statement(tuple(forms)), parameters

    def _new_statement(self, forms: tuple[int | None, ...]) -> Statement:
        # A form is a number of rows; None stands for arrays of any length.
        sources = {
            kind.name: kind.source if form is None else kind.few(form)
            for kind, form in zip(self._kinds, forms, strict=True)
        }
        return Statement(self._sql.format(**sources))


def by_tenant(rows: Iterable[tuple[TenantId, Of]]) -> list[tuple[TenantId, list[tuple[int, Of]]]]:
    """Group rows by tenant, each row with its index.

    Tenants ascend, so that all transactions lock rows of several tenants in the same order.
    """
    groups: dict[TenantId, list[tuple[int, Of]]] = defaultdict(list)
    for place, (tenant_id, row) in enumerate(rows):
        groups[tenant_id].append((place, row))
    return sorted(groups.items(), key=itemgetter(0))
