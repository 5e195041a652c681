"""`POST /v1/responses/compact`: what it answers, and the item that compactions become."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway import ids
from gateway.protocol.responses import usage_body

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from gateway.generation import TokenUsage


def compaction_body(item_id: str, seal: str) -> dict[str, Any]:
    """A compaction item as clients are shown it. It has a status in none of the published types."""
    return {"id": item_id, "type": "compaction", "encrypted_content": seal}


def compacted_response(
    uuid: UUID, created_at: int, output: Sequence[dict[str, Any]], usage: TokenUsage
) -> dict[str, Any]:
    """The answer of `POST /v1/responses/compact`; `created_at` is in unix seconds.

    Keys are those of `CompactResource` (Open Responses 2026-04-24) and OpenAI's SDK.
    """
    return {
        "id": ids.response_id(uuid),
        "object": "response.compaction",
        "created_at": created_at,
        "output": list(output),
        "usage": usage_body(usage),
    }
