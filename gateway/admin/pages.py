"""The kinds of pages of OpenAI's admin API, and what asks for one.

The SDK goes on in each by `after`, but takes its value from another field: `last_id`, or the id of
the last item (`conversation_page`), or `next` (`next_page`); a `whole_page` has no next.
An SDK that misses its field ends the list silently, so each resource must use the one that
openai-python has for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from gateway.api.query import ORDERS, PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX, choice, integer
from gateway.protocol.request_errors import unknown_place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.datastructures import QueryParams

Json = dict[str, Any]

PAGE: Final = ("limit", "after")
"""Query parameters of every list."""
ORDERED_PAGE: Final = (*PAGE, "order")


class PageParams(NamedTuple):
    """Up to `limit` items of a list, from behind (or, with `before`, up to) the one of that id."""

    limit: int
    after: str | None = None
    before: str | None = None
    order: Literal["asc", "desc"] = "asc"


def page_params(query: QueryParams) -> PageParams:
    """Parse `limit` (default 20), `after`, `before` and `order`. Raises `InvalidRequest`."""
    limit = integer(query, "limit", minimum=1, maximum=PAGE_ITEMS_MAX)
    return PageParams(
        limit=limit or PAGE_ITEMS_DEFAULT,
        after=query.get("after") or None,
        before=query.get("before") or None,
        order=choice(query, "order", ORDERS) or "asc",
    )


def cut(items: Sequence[Json], asked: PageParams) -> tuple[list[Json], bool]:
    """Return one page of a complete list (the oldest first), and True if there are more.

    More are behind the page, or with `before` ahead of it. Raises `InvalidRequest`.
    """
    listed = list(items)
    if asked.order == "desc":
        listed.reverse()
    names = [one["id"] for one in listed]
    for place in (asked.after, asked.before):
        if place is not None and place not in names:
            raise unknown_place()
    if asked.before is not None:
        end = names.index(asked.before)
        begin = max(0, end - asked.limit)
        return listed[begin:end], begin > 0
    begin = 0 if asked.after is None else names.index(asked.after) + 1
    end = begin + asked.limit
    return listed[begin:end], end < len(listed)


def conversation_page(items: Sequence[Json], *, has_more: bool) -> Json:
    """Return a `SyncConversationCursorPage`, which is a `SyncCursorPage`, too."""
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }


def next_page(items: Sequence[Json], *, next_id: str | None) -> Json:
    """Return a `SyncNextCursorPage`; the next page is behind `next` (None: this is the last)."""
    return {
        "object": "list",
        "data": list(items),
        "has_more": next_id is not None,
        "next": next_id,
    }


def whole_page(items: Sequence[Json]) -> Json:
    """Return a `SyncPage`, which has all items."""
    return {"object": "list", "data": list(items)}
