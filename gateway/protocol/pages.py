"""Pages of lists, from the query of a client to the statements that read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


class PageParams(NamedTuple):
    """Up to `limit` items of a list, from behind (or, with `before`, up to) the one of that id."""

    limit: int
    after: str | None = None
    before: str | None = None
    order: Literal["asc", "desc"] = "asc"


class Page(NamedTuple, Generic[T]):
    """Some items of a list, and whether there are more behind them."""

    rows: Sequence[T]
    has_more: bool
