from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import orjson
from starlette.responses import Response

from gateway.api import dialects, sse
from gateway.api.client_connection import CancelOnDisconnect, connection_of
from gateway.api.query import boolean, include_of, integer, json_response, list_body, page_query
from gateway.api.streaming import EventStream
from gateway.protocol.responses.create_request import COMPACTION, COUNTING, parse_subset, refuse_key
from gateway.services.runs.spec_builder import CreateCommand

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.api.request_body import BodyReader
    from gateway.protocol.responses.create_request import Parameters
    from gateway.services.creation import Creation
    from gateway.services.retrieval import Retrieval

    Headers = Sequence[tuple[bytes, bytes]]
    Answer = Callable[[Scope, CreateCommand], Awaitable[tuple[bytes, Headers]]]


class ResponseEndpoints:
    def __init__(self, responses: Retrieval) -> None:
        self._responses = responses

    async def one(self, request: Request) -> ASGIApp:
        """Retrieve, stream or delete: with a route for each method a 405 would name only one of
        them.
        """
        if request.method == "DELETE":
            return await self._delete(request)
        query = request.query_params
        include = include_of(query)
        obfuscate = boolean(query, "include_obfuscation", default=True)
        if boolean(query, "stream"):
            return await self._stream(request, include, obfuscate=obfuscate)
        response_id = request.path_params["response_id"]
        body = await self._responses.get(request.scope["principal"], response_id, include=include)
        return Response(dialects.body(request.scope, body), media_type="application/json")

    async def _stream(
        self, request: Request, include: frozenset[str], *, obfuscate: bool
    ) -> ASGIApp:
        # Sends recorded events after `starting_after`, then new ones.
        after = integer(request.query_params, "starting_after", minimum=0)
        response_id = request.path_params["response_id"]
        source = await self._responses.stream(
            request.scope["principal"],
            response_id,
            after=-1 if after is None else after,
            include=include,
        )
        request.scope["record"].facts["response_id"] = response_id
        if request.method == "HEAD":
            return _head_of_stream()

        async def answer(scope: Scope, _receive: Receive, send: Send) -> None:
            encode = sse.encoder_of(scope["dialect"], obfuscate=obfuscate)
            stream = EventStream(scope, send, encode)
            with CancelOnDisconnect(connection_of(scope)):
                await stream.write(source, comments=True)

        return answer

    async def cancel(self, request: Request) -> Response:
        response_id = request.path_params["response_id"]
        body = await self._responses.cancel(request.scope["principal"], response_id)
        return Response(dialects.body(request.scope, body), media_type="application/json")

    async def _delete(self, request: Request) -> Response:
        response_id = request.path_params["response_id"]
        await self._responses.delete(request.scope["principal"], response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        page = await self._responses.input_items(
            request.scope["principal"],
            request.path_params["response_id"],
            page_query(request.query_params),
            include=include_of(request.query_params),
        )
        body = list_body(map(orjson.loads, page.rows), has_more=page.has_more)
        content = dialects.body(request.scope, orjson.dumps(body))
        return Response(content, media_type="application/json")


class SubsetEndpoint:
    """Endpoint for a subset of the create parameters; a disconnect cancels the work."""

    def __init__(self, bodies: BodyReader, parameters: Parameters, answer: Answer) -> None:
        self._bodies = bodies
        self._parameters = parameters
        self._parse = partial(parse_subset, parameters=parameters)
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._parameters is COMPACTION:
            refuse_key(scope["headers"])  # a summary is generated, and paid for
        body = await self._bodies.read(scope, receive)
        served = self._bodies.served(scope["principal"].policy)
        with CancelOnDisconnect(connection_of(scope)):
            request = await self._bodies.parse(body, self._parse, served=served)
            command = CreateCommand(scope["principal"], request, None, len(body), 0.0)
            content, headers = await self._answer(scope, command)
            scope["record"].note_ignored(request.ignored)
            response = Response(content, media_type="application/json")
            response.raw_headers += headers
            await response(scope, receive, send)


def counting_endpoint(creation: Creation, bodies: BodyReader) -> SubsetEndpoint:
    async def answer(_scope: Scope, command: CreateCommand) -> tuple[bytes, Headers]:
        count, headers = await creation.count(command)
        return orjson.dumps({"object": "response.input_tokens", "input_tokens": count}), headers

    return SubsetEndpoint(bodies, COUNTING, answer)


def compaction_endpoint(creation: Creation, bodies: BodyReader) -> SubsetEndpoint:
    async def answer(scope: Scope, command: CreateCommand) -> tuple[bytes, Headers]:
        compacted, headers = await creation.compact(command)
        scope["record"].facts["model"] = compacted.plan.spec.model
        return dialects.body(scope, compacted.body), headers

    return SubsetEndpoint(bodies, COMPACTION, answer)


def _head_of_stream() -> Response:
    # The length of a stream is unknown.
    response = Response(headers={name.decode(): text.decode() for name, text in sse.HEADERS})
    del response.headers["content-length"]
    return response
