"""The dialect of answers to a client, OpenAI's or Open Responses', and answers in it.

Everything is generated and stored in OpenAI's. Open Responses 2026-04-24 (`open_responses`) is for
requests below `/openresponses/v1` and for keys that were created with that dialect:
`api.access.authentication` writes it into `scope["dialect"]`. Nothing else depends on it: clients
of either can read, resume or continue responses of the other.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import orjson

from gateway.api import sse
from gateway.protocol.responses import open_responses

if TYPE_CHECKING:
    from starlette.types import Scope

    from gateway.protocol.stream_events import Deltas, Event

BASE_PATH: Final = "/openresponses"
"""Path before `/v1` in requests for Open Responses."""


def encoder(scope: Scope, *, obfuscate: bool) -> sse.Encoder:
    """Return the encoder of a stream's events; `obfuscate` pads deltas."""
    encoder = sse.OBFUSCATED if obfuscate else sse.PLAIN
    if scope["dialect"] == "openai":
        return encoder
    return sse.Encoder(partial(_event, encoder), partial(_run, encoder))


def body(scope: Scope, content: bytes) -> bytes:
    """Convert a JSON body with items: a Response object, a list of items, a compaction."""
    if scope["dialect"] == "openai":
        return content
    return orjson.dumps(open_responses.body(orjson.loads(content)))


def data(scope: Scope, event: Event) -> bytes:
    """Return an event as a JSON object; empty if the dialect does not have it."""
    if scope["dialect"] == "openai":
        return event.data
    shown = open_responses.shown(event)
    return shown.data if shown else b""


def _event(encoder: sse.Encoder, event: Event) -> bytes:
    # An event that Open Responses does not have becomes a comment, which still shows the client
    # that the response goes on.
    shown = open_responses.shown(event)
    return encoder.event(shown) if shown else sse.COMMENT


def _run(encoder: sse.Encoder, deltas: Deltas) -> bytes:
    shown = open_responses.shown_deltas(deltas)
    return encoder.run(shown) if shown else sse.COMMENT * len(deltas)
