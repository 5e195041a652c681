"""`POST /v1/responses/input_tokens` and `/compact`: a part of a request for a response."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import orjson

from gateway.api import dialects
from gateway.api.connection import while_connected
from gateway.protocol.responses.requests import COMPACTION, COUNTING, parse_subset

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive, Scope, Send

    from gateway.api.reading import Reading
    from gateway.protocol.responses.requests import CreateResponse, Parameters
    from gateway.services.compaction import Compaction
    from gateway.services.run_builder import RunBuilder

    Answer = Callable[[Scope, CreateResponse, int], Awaitable[bytes]]
    """Makes the JSON that answers a request, which was so many bytes long."""


class SubsetEndpoint:
    """Plain ASGI, so that the work ends when the client hangs up."""

    def __init__(self, reading: Reading, parameters: Parameters, answer: Answer) -> None:
        self._reading = reading
        self._parse = partial(
            parse_subset, parameters=parameters, limits=reading.input_limits, strict=reading.strict
        )
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._reading.body(scope, receive)
        await while_connected(scope, receive, self._respond(scope, send, body))

    async def _respond(self, scope: Scope, send: Send, body: bytes) -> None:
        request = await self._reading.parsed(body, self._parse)
        answer = await self._answer(scope, request, len(body))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(answer)),
        ]
        if request.ignored:
            scope["exchange"].facts["ignored_parameters"] = ", ".join(request.ignored)
            ignored = ", ".join(request.ignored).encode("ascii", "replace")
            headers.append((b"x-ignored-parameters", ignored))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def counting_endpoint(builder: RunBuilder, reading: Reading) -> SubsetEndpoint:
    """`POST /v1/responses/input_tokens`: how long the prompt would be. Nothing is stored."""

    async def answer(scope: Scope, request: CreateResponse, body_bytes: int) -> bytes:
        count = await builder.count(scope["principal"], request, body_bytes=body_bytes)
        return orjson.dumps({"object": "response.input_tokens", "input_tokens": count})

    return SubsetEndpoint(reading, COUNTING, answer)


def compaction_endpoint(compaction: Compaction, reading: Reading) -> SubsetEndpoint:
    """`POST /v1/responses/compact`: a conversation made short, to be sent as input from then on."""

    async def answer(scope: Scope, request: CreateResponse, body_bytes: int) -> bytes:
        compacted = await compaction.compact(scope["principal"], request, body_bytes=body_bytes)
        scope["exchange"].facts["model"] = compacted.model
        return dialects.body(scope, compacted.body)

    return SubsetEndpoint(reading, COMPACTION, answer)
