"""Answers in OpenAI's dialect or in Open Responses 2026-04-24 (`open_responses`).

Everything is generated and stored in OpenAI's, so clients of either can read, resume or continue
responses of the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from gateway.protocol.responses import open_responses

if TYPE_CHECKING:
    from starlette.types import Scope

    from gateway.protocol.stream_events import Event

BASE_PATH: Final = "/openresponses"


def body(scope: Scope, content: bytes) -> bytes:
    """Convert a Response, a list of items or a compaction."""
    if scope["dialect"] == "openai":
        return content
    return orjson.dumps(open_responses.body(orjson.loads(content)))


def data(scope: Scope, event: Event) -> bytes:
    """Return an event's JSON; empty if the dialect does not have it."""
    if scope["dialect"] == "openai":
        return event.data
    shown = open_responses.shown(event)
    return shown.data if shown else b""
