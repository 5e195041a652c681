"""`POST /v1/chat/completions` and `POST /v1/completions`: further writers over the same runs.

What is asked becomes a request of the Responses API, what is answered is made from its events or
its body, and every refusal names the parameters of the request that was sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import orjson

from gateway.api import sse
from gateway.api.create import CreateEndpoint
from gateway.protocol.chat.adapters import failure_of
from gateway.protocol.chat.to_responses import parse_chat, parse_completion

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Scope

    from gateway.api.body import BodyReader
    from gateway.api.create import Headers
    from gateway.api.streaming import StreamLimits
    from gateway.errors import InvalidRequest
    from gateway.protocol.chat.adapters import Chunks
    from gateway.protocol.chat.to_responses import Converted
    from gateway.protocol.events import Event
    from gateway.protocol.responses.create import CreateResponse
    from gateway.services.creation import Creation

HIDDEN_EVENTS_MAX: Final = 64
"""After so many events that show this client nothing, it is shown that there is life."""
ALIVE: Final = "response.in_progress"


class Encoder:
    """How one client is shown one stream: `sse.Encode`, with what was shown so far."""

    def __init__(self, chunks: Chunks, *, obfuscate: bool) -> None:
        self._chunks = chunks
        self._obfuscate = obfuscate
        self._hidden = 0

    def __call__(self, event: Event) -> bytes:
        """The frames of the next event; a comment where there has been none for long."""
        chunks = self._chunks.of(event)
        if not chunks:
            return self._hide(event)
        self._hidden = 0
        if self._obfuscate:
            chunks = [sse.padded(chunk, event) for chunk in chunks]
        return b"data: %b\n\n" % b"\n\ndata: ".join(chunks)

    def _hide(self, event: Event) -> bytes:
        self._hidden += 1
        if event.type != ALIVE and self._hidden < HIDDEN_EVENTS_MAX:
            return b""
        self._hidden = 0
        return sse.COMMENT


@dataclass(frozen=True, slots=True)
class _ChatAsked:
    """A request of one of the two: `api.create.Asked`."""

    converted: Converted

    @property
    def request(self) -> CreateResponse:
        return self.converted.request

    def encoder(self, _: Scope) -> sse.Encode:
        return Encoder(self.converted.adapter.chunks(), obfuscate=self.request.obfuscated)

    def body(self, _: Scope, content: bytes) -> tuple[int, bytes]:
        """These APIs know no answer that failed: it is an error."""
        response = orjson.loads(content)
        failure = failure_of(response)
        if failure is None:
            return 200, orjson.dumps(self.converted.adapter.body(response))
        status = 400 if failure["type"] == "invalid_request_error" else 500
        return status, orjson.dumps({"error": failure})

    def headers(self, response_id: str) -> Headers:
        """The id under which `/v1/responses` knows what is stored."""
        return [(b"x-gateway-response-id", response_id.encode())] if self.request.store else []

    @property
    def restated(self) -> Callable[[InvalidRequest], InvalidRequest]:
        return self.converted.places.restated


def chat_endpoint(
    creation: Creation, bodies: BodyReader, *, stream_limits: StreamLimits
) -> CreateEndpoint:
    """`POST /v1/chat/completions`."""
    parse = partial(parse_chat, limits=bodies.input_limits, strict=bodies.strict)
    return CreateEndpoint(creation, bodies, _asked(parse), stream_limits=stream_limits)


def completion_endpoint(
    creation: Creation, bodies: BodyReader, *, stream_limits: StreamLimits
) -> CreateEndpoint:
    """`POST /v1/completions`."""
    parse = partial(parse_completion, limits=bodies.input_limits, strict=bodies.strict)
    return CreateEndpoint(creation, bodies, _asked(parse), stream_limits=stream_limits)


def _asked(parse: Callable[[bytes], Converted]) -> Callable[[bytes], _ChatAsked]:
    return lambda body: _ChatAsked(parse(body))
