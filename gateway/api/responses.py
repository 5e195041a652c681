"""`/v1/responses/{id}`: retrieve (JSON or stream), cancel, delete, list input items."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from starlette.responses import Response

from gateway.api import dialects, sse
from gateway.api.connection import while_connected
from gateway.api.pages import list_body, page_query
from gateway.api.query import boolean, check_include, integer
from gateway.api.streaming import EventStream

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.api.streaming import StreamLimits
    from gateway.services.retrieval import Retrieval


class ResponseEndpoints:
    """Reading, following, cancelling and deleting what is there."""

    def __init__(self, responses: Retrieval, limits: StreamLimits) -> None:
        self._responses = responses
        self._limits = limits

    async def one(self, request: Request) -> ASGIApp:
        """Two methods of one URL: with a route for each, a 405 would name one of them only."""
        if request.method == "DELETE":
            return await self.delete(request)
        return await self.retrieve(request)

    async def retrieve(self, request: Request) -> ASGIApp:
        """`GET /v1/responses/{id}`"""
        query = request.query_params
        check_include(query)
        obfuscate = boolean(query, "include_obfuscation", default=True)
        if boolean(query, "stream"):
            return await self._stream(request, obfuscate=obfuscate)
        response_id = request.path_params["response_id"]
        body = await self._responses.get(request.scope["principal"], response_id)
        return Response(dialects.body(request.scope, body), media_type="application/json")

    async def _stream(self, request: Request, *, obfuscate: bool) -> ASGIApp:
        """`GET /v1/responses/{id}?stream=true&starting_after=N`"""
        after = integer(request.query_params, "starting_after", minimum=0)
        response_id = request.path_params["response_id"]
        source = await self._responses.stream(
            request.scope["principal"], response_id, after=-1 if after is None else after
        )
        request.scope["exchange"].facts["response_id"] = response_id
        if request.method == "HEAD":
            return _head_of_stream()

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            encode = dialects.encoder(scope, obfuscate=obfuscate)
            stream = EventStream(scope, send, self._limits, encode)
            await while_connected(scope, receive, stream.write(source, comments=True))

        return answer

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/responses/{id}/cancel`; its body, if there is one, says nothing."""
        response_id = request.path_params["response_id"]
        body = await self._responses.cancel(request.scope["principal"], response_id)
        return Response(dialects.body(request.scope, body), media_type="application/json")

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/responses/{id}`"""
        response_id = request.path_params["response_id"]
        await self._responses.delete(request.scope["principal"], response_id)
        body = {"id": response_id, "object": "response", "deleted": True}
        return Response(orjson.dumps(body), media_type="application/json")

    async def input_items(self, request: Request) -> Response:
        """`GET /v1/responses/{id}/input_items`"""
        page = await self._responses.input_items(
            request.scope["principal"],
            request.path_params["response_id"],
            **page_query(request.query_params),
        )
        body = list_body(page.items, has_more=page.has_more)
        content = dialects.body(request.scope, orjson.dumps(body))
        return Response(content, media_type="application/json")


def _head_of_stream() -> Response:
    """The headers of a stream, whose length nobody knows."""
    response = Response(headers={name.decode(): text.decode() for name, text in sse.HEADERS})
    del response.headers["content-length"]
    return response
