"""`/v1/responses`: create (JSON or stream), retrieve, delete, list input items."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import orjson
from starlette.responses import Response

from gateway.api import sse
from gateway.api.body import ClientDisconnected, read_body
from gateway.api.connection import while_connected
from gateway.api.query import boolean, check_include, choice, integer
from gateway.protocol.requests import parse_create

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from gateway.api.context import Exchange
    from gateway.protocol.events import Event
    from gateway.protocol.limits import InputLimits
    from gateway.protocol.requests import CreateResponse
    from gateway.services.responses import Generation, Responses
    from gateway.services.threads import Threads

PAGE_ITEMS_MAX = 100
PAGE_ITEMS_DEFAULT = 20
ORDERS: Final[tuple[Literal["asc", "desc"], ...]] = ("asc", "desc")


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Bounds on what a client may send, and on how slowly it may read."""

    body_bytes_max: int
    body_timeout_s: float
    start_grace_s: float
    write_timeout_s: float
    write_bytes_max: int


class CreateEndpoint:
    """`POST /v1/responses`, as plain ASGI: one task a request, one write a wake-up."""

    def __init__(
        self,
        responses: Responses,
        limits: EdgeLimits,
        input_limits: InputLimits,
        threads: Threads,
        *,
        strict: bool,
    ) -> None:
        self._responses = responses
        self._limits = limits
        self._threads = threads
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
        generation = await self._responses.create(
            scope["principal"], request, body_bytes=len(body), requested_at=exchange.began
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
        body = orjson.dumps(await generation.response())
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            *_ignored_header(request),
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
        headers = [*sse.HEADERS, *_ignored_header(request)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with aclosing(generation.follow()) as batches:
            async for events in batches:
                await self._write(send, events, obfuscate=request.obfuscated)
        await send({"type": "http.response.body", "body": b""})

    async def _write(self, send: Send, events: list[Event], *, obfuscate: bool) -> None:
        """Write events; a client that does not read one write within the bound counts as gone."""
        limits = self._limits
        for chunk in sse.writes(events, obfuscate=obfuscate, bytes_max=limits.write_bytes_max):
            try:
                async with asyncio.timeout(limits.write_timeout_s):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except TimeoutError:
                raise ClientDisconnected from None


def _ignored_header(request: CreateResponse) -> list[tuple[bytes, bytes]]:
    """Names of parameters that this gateway does not know, so that nothing is lost silently."""
    if not request.ignored:
        return []
    return [(b"x-ignored-parameters", ", ".join(request.ignored).encode("ascii", "replace"))]


class ResponseEndpoints:
    """Reading and deleting what is stored."""

    def __init__(self, responses: Responses) -> None:
        self._responses = responses

    async def retrieve(self, request: Request) -> Response:
        """`GET /v1/responses/{id}`"""
        response_id = request.path_params["response_id"]
        principal = request.scope["principal"]
        query = request.query_params
        check_include(query)
        boolean(query, "include_obfuscation")
        if boolean(query, "stream"):
            integer(query, "starting_after", minimum=0)
            await self._responses.check_replay(principal, response_id)
        body = await self._responses.get(principal, response_id)
        return Response(body, media_type="application/json")

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/responses/{id}`"""
        response_id = request.path_params["response_id"]
        await self._responses.delete(request.scope["principal"], response_id)
        body = {"id": response_id, "object": "response", "deleted": True}
        return Response(orjson.dumps(body), media_type="application/json")

    async def input_items(self, request: Request) -> Response:
        """`GET /v1/responses/{id}/input_items`"""
        query = request.query_params
        check_include(query)
        page = await self._responses.input_items(
            request.scope["principal"],
            request.path_params["response_id"],
            limit=integer(query, "limit", minimum=1, maximum=PAGE_ITEMS_MAX) or PAGE_ITEMS_DEFAULT,
            order=choice(query, "order", ORDERS) or "desc",
            after=query.get("after") or None,
        )
        listed = [orjson.loads(item) for item in page.items]
        body = {
            "object": "list",
            "data": listed,
            "first_id": listed[0]["id"] if listed else None,
            "last_id": listed[-1]["id"] if listed else None,
            "has_more": page.has_more,
        }
        return Response(orjson.dumps(body), media_type="application/json")
