"""`POST /v1/responses`: read the request, then answer with one body or a stream."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gateway.api import sse
from gateway.api.body import read_body
from gateway.api.connection import while_connected
from gateway.api.streaming import EventStream
from gateway.protocol.idempotency import request_key
from gateway.protocol.requests import parse_create
from gateway.services.creation import Order

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from gateway.api.context import Exchange
    from gateway.api.streaming import StreamLimits
    from gateway.protocol.limits import InputLimits
    from gateway.protocol.requests import CreateResponse
    from gateway.services.creation import Creation
    from gateway.services.generation import Generation
    from gateway.services.threads import Threads

    Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Bounds on what a client may send, and on how long a stream waits for its status."""

    body_bytes_max: int
    body_timeout_s: float
    start_grace_s: float


class CreateEndpoint:
    """`POST /v1/responses`, as plain ASGI: one task a request, one write a wake-up."""

    def __init__(
        self,
        creation: Creation,
        threads: Threads,
        *,
        limits: EdgeLimits,
        input_limits: InputLimits,
        stream_limits: StreamLimits,
        strict: bool,
    ) -> None:
        self._creation = creation
        self._threads = threads
        self._limits = limits
        self._stream_limits = stream_limits
        self._parse = partial(parse_create, limits=input_limits, strict=strict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(
            scope,
            receive,
            bytes_max=self._limits.body_bytes_max,
            timeout_s=self._limits.body_timeout_s,
        )
        await while_connected(receive, self._respond(scope, send, body))

    async def _respond(self, scope: Scope, send: Send, body: bytes) -> None:
        exchange: Exchange = scope["exchange"]
        request = await self._threads.run(partial(self._parse, body), size_bytes=len(body))
        generation = await self._creation.create(
            Order(
                principal=scope["principal"],
                request=request,
                key=request_key(_idempotency_keys(scope), body, store=request.store),
                body_bytes=len(body),
                requested_at=exchange.began,
            )
        )
        exchange.facts["response_id"] = generation.response_id
        exchange.facts["model"] = generation.model
        try:
            if request.stream:
                await self._stream(send, request, generation)
            else:
                await self._json(send, request, generation)
        finally:
            generation.cancel()
            if generation.first_token_s is not None:
                exchange.facts["first_token_s"] = round(generation.first_token_s, 4)

    async def _json(self, send: Send, request: CreateResponse, generation: Generation) -> None:
        body = await generation.response()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            *_extra_headers(request, generation),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, send: Send, request: CreateResponse, generation: Generation) -> None:
        """Events as they come.

        The status is held back for `start_grace_s` at most: until the first token shows that a
        backend took the request, a failure can still be an HTTP status, which clients retry.
        """
        try:
            async with asyncio.timeout(self._limits.start_grace_s):
                await generation.produced()
        except TimeoutError:
            pass
        encode = partial(sse.frame, obfuscate=request.obfuscated)
        stream = EventStream(send, self._stream_limits, encode)
        await stream.write(
            generation.follow(),
            headers=_extra_headers(request, generation),
            comments=generation.is_durable,
        )


def _idempotency_keys(scope: Scope) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == b"idempotency-key"]


def _extra_headers(request: CreateResponse, generation: Generation) -> Headers:
    """Names of parameters that this gateway does not know and types of tools that it does not run,
    so that nothing is lost silently; and whether this is the answer to an earlier request.
    """
    headers: Headers = []
    if request.ignored:
        ignored = ", ".join(request.ignored).encode("ascii", "replace")
        headers.append((b"x-ignored-parameters", ignored))
    if request.dropped_tools:
        dropped = ", ".join(dict.fromkeys(request.dropped_tools))
        headers.append((b"x-gateway-dropped-tools", dropped.encode()))
    if generation.is_repeat:
        headers.append((b"idempotent-replayed", b"true"))
    return headers
