from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


Order = Literal["asc", "desc"]


class PageParams(NamedTuple):
    """Up to `limit` items of a list after (or before) the one of that id."""

    limit: int
    after: str | None = None
    before: str | None = None
    order: Order = "asc"

    @property
    def cursor(self) -> str | None:
        return self.after if self.before is None else self.before

    @property
    def cursor_name(self) -> str:
        return "after" if self.before is None else "before"

    @property
    def order_from_cursor(self) -> Order:
        if self.before is None:
            return self.order
        return "desc" if self.order == "asc" else "asc"

    def of(self, rows: Sequence[T]) -> Page[T]:
        """Make the page from its rows in the order from the cursor, and one more if there is."""
        step = 1 if self.before is None else -1
        return Page(rows[: self.limit][::step], len(rows) > self.limit)


class Page(NamedTuple, Generic[T]):
    rows: Sequence[T]
    has_more: bool
