"""Lists, page by page: what the query asks for, and the object that answers it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

import orjson

from gateway.api.query import check_include, choice, integer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.datastructures import QueryParams


PAGE_ITEMS_MAX: Final = 100
PAGE_ITEMS_DEFAULT: Final = 20
ORDERS: Final[tuple[Literal["asc", "desc"], ...]] = ("asc", "desc")


class PageQuery(TypedDict):
    """Which page of a list is asked for; `after` is the id of the item before it."""

    limit: int
    order: Literal["asc", "desc"]
    after: str | None


def page_query(query: QueryParams) -> PageQuery:
    """The page that a query asks for. Raises `InvalidRequest`."""
    check_include(query)
    return PageQuery(
        limit=integer(query, "limit", minimum=1, maximum=PAGE_ITEMS_MAX) or PAGE_ITEMS_DEFAULT,
        order=choice(query, "order", ORDERS) or "desc",
        after=query.get("after") or None,
    )


def list_body(items: Sequence[bytes], *, has_more: bool) -> dict[str, Any]:
    """The list object of items that are JSON; an empty one has no ids."""
    listed = [orjson.loads(item) for item in items]
    return {
        "object": "list",
        "data": listed,
        "first_id": listed[0]["id"] if listed else None,
        "last_id": listed[-1]["id"] if listed else None,
        "has_more": has_more,
    }
