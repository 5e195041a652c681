"""Many rows in one statement: a column of all rows is one parameter, an array."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy.dialects import postgresql

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Column

    from gateway.tenancy import TenantId

Of = TypeVar("Of")

_DIALECT: Final = postgresql.dialect()  # type: ignore[no-untyped-call]


class Rows:
    """Rows that a statement is sent. `source` is SQL for its FROM, where they are called `name`."""

    def __init__(self, name: str, columns: Iterable[Column[Any]]) -> None:
        self.columns = tuple(column.name for column in columns)
        kinds = {column.name: column.type.dialect_impl(_DIALECT) for column in columns}
        self._ways = {
            f"{name}_{column}": (column, kind.bind_processor(_DIALECT))
            for column, kind in kinds.items()
        }
        arrays = ", ".join(
            f"CAST(:{name}_{column} AS {kind.compile(_DIALECT)}[])"
            for column, kind in kinds.items()
        )
        self.names = ", ".join(self.columns)
        """As a list of columns."""
        self.source = f"unnest({arrays}) AS {name} ({self.names})"

    def parameters(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
        """What the statement is sent for these rows, which have all the columns."""
        return {
            parameter: [row[column] for row in rows]
            if convert is None
            else [convert(row[column]) for row in rows]
            for parameter, (column, convert) in self._ways.items()
        }


def by_tenant(rows: Iterable[tuple[TenantId, Of]]) -> Iterator[tuple[TenantId, list[Of]]]:
    """Tenants ascending: whatever locks rows of several does so in this order."""
    first = itemgetter(0)
    for tenant_id, group in groupby(sorted(rows, key=first), key=first):
        yield tenant_id, [row for _, row in group]
