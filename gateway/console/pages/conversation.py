from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.console.page import Page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.console.page import Call
    from gateway.protocol.admin_bodies import Json


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns, the oldest first; `newer` is the id to go on behind."""

    id: str
    turns: Sequence[Json]
    newer: str | None


async def view(call: Call) -> Conversation:
    conversation_id = call.path["conversation_id"]
    after = call.query.get("after") or None
    page = await call.services.operator.responses.conversation(conversation_id, after=after)
    newer = page["last_id"] if page["has_more"] else None
    return Conversation(conversation_id, page["data"], newer)


PAGE: Final = Page(
    path="/conversations/{conversation_id}",
    title="Conversation",
    template="conversation.html",
    permission="responses.read",
    view=view,
)
