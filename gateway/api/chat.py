"""`POST /v1/chat/completions` and `POST /v1/completions`, converted to Responses runs.

Errors name the parameters of the original request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import orjson
from typing_extensions import override

from gateway.api import sse
from gateway.api.create import CreateRequest
from gateway.protocol.chat_answers import failure_of
from gateway.protocol.chat_conversion import parse_chat, parse_completion

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import Scope

    from gateway.api.create import Headers
    from gateway.protocol.chat_answers import Adapter, Chunks
    from gateway.protocol.chat_conversion import Converted
    from gateway.protocol.hosted_tools import HostedFamily
    from gateway.protocol.json_body import InputLimits
    from gateway.protocol.stream_events import Deltas, Event
    from gateway.services.creation import Generation

HIDDEN_EVENTS_MAX: Final = 64
"""Events in a row that send nothing before the client gets a comment."""
ALIVE: Final = "response.in_progress"
_STATUSES: Final = {"server_error": 500, "requests": 429, "invalid_request_error": 400}


class ChunkEncoder:
    """Encoder of one stream's chunks, with both functions of `sse.Encoder`."""

    def __init__(self, chunks: Chunks, *, obfuscate: bool) -> None:
        self._chunks = chunks
        self._obfuscate = obfuscate
        self._hidden = 0

    def event(self, event: Event) -> bytes:
        """Return nothing for an event that the API does not show, but a comment after many of
        those.
        """
        chunks = self._chunks.from_event(event)
        if chunks:
            self._hidden = 0
            if self._obfuscate:
                chunks = [sse.padded(chunk, event) for chunk in chunks]
            return sse.unnamed(chunks)
        self._hidden += 1
        if event.type != ALIVE and self._hidden < HIDDEN_EVENTS_MAX:
            return b""
        self._hidden = 0
        return sse.COMMENT

    def run(self, deltas: Deltas) -> bytes:
        return b"".join(map(self.event, deltas))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCreateRequest(CreateRequest):
    adapter: Adapter

    @classmethod
    @override
    def parse(
        cls, body: bytes, *, limits: InputLimits, strict: bool, served: Collection[HostedFamily]
    ) -> Self:
        return cls._of(parse_chat(body, limits=limits, strict=strict, served=served))

    @classmethod
    def parse_completion(
        cls, body: bytes, *, limits: InputLimits, strict: bool, served: Collection[HostedFamily]
    ) -> Self:
        del served
        return cls._of(parse_completion(body, limits=limits, strict=strict))

    @classmethod
    def _of(cls, converted: Converted) -> Self:
        return cls(converted.request, converted.places, adapter=converted.adapter)

    @override
    def encoder(self, scope: Scope) -> sse.Encoder:
        encoder = ChunkEncoder(self.adapter.chunks(), obfuscate=self.request.obfuscated)
        return sse.Encoder(encoder.event, encoder.run)

    @override
    def body(self, scope: Scope, content: bytes) -> tuple[int, bytes]:
        response = orjson.loads(content)
        failure = failure_of(response)
        if failure is None:
            return 200, orjson.dumps(self.adapter.body(response))
        return _STATUSES[failure["type"]], orjson.dumps({"error": failure})

    @override
    def headers(self, generation: Generation) -> Headers:
        headers = CreateRequest.headers(self, generation)
        if generation.is_stored:
            headers.append((b"x-gateway-response-id", generation.response_id.encode()))
        return headers
