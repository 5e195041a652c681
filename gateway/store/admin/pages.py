"""One page of a list of rows that have `created_at` and `id`, for statements of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from gateway.protocol.request_errors import unknown_place
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from gateway.store.postgres.database import Connection, Row

T = TypeVar("T")

_LIST = """
SELECT {columns} FROM {table}
WHERE tenant_id = :tenant AND {condition}
  AND (CAST(:after AS uuid) IS NULL
       OR (created_at, id) {beyond} (CAST(:after_at AS timestamptz), CAST(:after AS uuid)))
ORDER BY created_at {direction}, id {direction}
LIMIT :row_limit
"""


class PagePosition(NamedTuple):
    """Up to `limit` rows by age, behind the one of the id `after`."""

    limit: int
    after: UUID | None = None
    descends: bool = False


class Page(NamedTuple, Generic[T]):
    """Some rows, and whether there are more behind them."""

    rows: Sequence[T]
    has_more: bool


class PagedStatement(Generic[T]):
    """`SELECT` of the rows of one tenant in a table that meet a condition, page by page."""

    def __init__(self, table: str, columns: str, condition: str, made: Callable[[Row], T]) -> None:
        parts = {"table": table, "columns": columns, "condition": condition}
        self._made = made
        self._find = Statement(
            f"SELECT created_at FROM {table}"  # noqa: S608 - constants only
            f" WHERE tenant_id = :tenant AND id = :after AND {condition}"
        )
        self._lists = {
            descends: Statement(
                _LIST.format(
                    **parts,
                    beyond="<" if descends else ">",
                    direction="DESC" if descends else "ASC",
                )
            )
            for descends in (False, True)
        }

    async def page(
        self, connection: Connection, parameters: Mapping[str, Any], place: PagePosition
    ) -> Page[T]:
        """Return the page at `place`. Raises `InvalidRequest` for an unknown `after`."""
        asked = {**parameters, "after": place.after, "after_at": None}
        if place.after is not None:
            asked["after_at"] = await connection.scalar(self._find, asked)
            if asked["after_at"] is None:
                raise unknown_place()
        asked["row_limit"] = place.limit + 1
        rows = await connection.execute(self._lists[place.descends], asked)
        return Page([self._made(row) for row in rows[: place.limit]], len(rows) > place.limit)
