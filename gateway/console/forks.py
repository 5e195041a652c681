"""Fork of a stored response: its context up to an item.

It shows content, so it takes `content.read` and a reveal, which the tenant's audit log has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.console.questions import number
from gateway.errors import InvalidRequest, PermissionDenied
from gateway.protocol.pages import PageParams

if TYPE_CHECKING:
    from gateway.console.page import Call
    from gateway.protocol.admin_bodies import Json

ITEMS_MAX: Final = 1000
"""Items that a request refers to."""
PAGE_ITEMS: Final = 100


@dataclass(frozen=True, slots=True)
class Fork:
    """Response that is continued behind output item `item`; None: behind the last."""

    response_id: str
    item: int | None
    tenant: str
    project_id: str
    model: str


async def find_fork(call: Call, response_id: str, item: str) -> Fork:
    """Raise `PermissionDenied` unless the response is revealed to the operator."""
    if not call.may("content.read"):
        raise PermissionDenied(
            "A fork shows what a response says, which takes the permission 'content.read'. Ask an "
            "owner of this gateway.",
            code="insufficient_permissions",
        )
    index = number(item, "item", "'item' is no number of an output item.") if item else None
    stored = call.services.operator.responses
    record = await stored.get(call.author, response_id)
    if record["content"]["revealed_until"] is None:
        raise PermissionDenied(
            "A fork shows what the response says, which is not revealed to you, or no longer. "
            "Reveal the response on its page, with a reason, and fork it from there.",
            code="content_not_revealed",
        )
    return Fork(
        response_id,
        index,
        record["tenant"]["name"],
        record["project_id"],
        record["model"],
    )


async def context_of(call: Call, fork: Fork) -> tuple[Json, list[Json]]:
    """Return parameters and items of a request that goes on from the fork.

    Behind the last item it continues the response itself; before it, it refers to each item of the
    context, which the API copies.
    """
    stored = call.services.operator.responses
    page = PageParams(limit=PAGE_ITEMS, order="asc")
    content = await stored.items(call.author, fork.response_id, page)
    output = (content["response"] or {}).get("output") or []
    if fork.item is None or fork.item == len(output) - 1:
        return {"previous_response_id": fork.response_id}, []
    if fork.item >= len(output):
        raise InvalidRequest(
            f"The response has {len(output)} output items, counted from 0.", param="item"
        )
    items: list[Json] = list(content["input"])
    while content["has_more"]:
        if len(items) >= ITEMS_MAX:
            raise InvalidRequest(
                f"The context before this item has more than {ITEMS_MAX} items. Fork the response "
                "behind its last item: that continues it as it is stored.",
                param="item",
            )
        page = PageParams(limit=PAGE_ITEMS, order="asc", after=items[-1]["id"])
        content = await stored.items(call.author, fork.response_id, page)
        items += content["input"]
    copied = [*items, *output[: fork.item + 1]]
    return {}, [{"type": "item_reference", "id": item["id"]} for item in copied]
