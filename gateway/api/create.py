"""Asking for a response: `POST /v1/responses`, and what it shares with `api.chat`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gateway.api import dialects
from gateway.api.connection import CancelOnDisconnect, connection_of
from gateway.api.streaming import EventStream
from gateway.errors import InvalidRequest
from gateway.protocol.responses.requests import parse_create, request_key
from gateway.services.run_builder import CreateCommand

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Receive, Scope, Send

    from gateway.api.body import BodyReader
    from gateway.api.context import RequestRecord
    from gateway.api.sse import Encode
    from gateway.api.streaming import StreamLimits
    from gateway.protocol.json_body import InputLimits
    from gateway.protocol.responses.create import CreateResponse
    from gateway.services.creation import Creation
    from gateway.services.generation import Generation

    Headers = list[tuple[bytes, bytes]]
    Restated = Callable[[InvalidRequest], InvalidRequest]
    """The same refusal, in the words that the request was written in."""


class Asked(Protocol):
    """A request that was read, and how its client is answered."""

    @property
    def request(self) -> CreateResponse:
        """The create request that it stands for, whichever API it came in by."""
        ...

    def encoder(self, scope: Scope) -> Encode:
        """How the client of a stream is shown events."""
        ...

    def body(self, scope: Scope, content: bytes) -> tuple[int, bytes]:
        """The status, and the JSON that shows a Response object that is over."""
        ...

    def headers(self, response_id: str) -> Headers:
        """Headers of this kind of answer only."""
        ...

    @property
    def restated(self) -> Restated:
        """How a refusal is said to the client; it does not keep the request."""
        ...


class CreateEndpoint:
    """Plain ASGI: one task a request, one write a wake-up."""

    def __init__(
        self,
        creation: Creation,
        bodies: BodyReader,
        parse: Callable[[bytes], Asked],
        *,
        stream_limits: StreamLimits,
    ) -> None:
        self._creation = creation
        self._bodies = bodies
        self._parse = parse
        self._stream_limits = stream_limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._bodies.read(scope, receive)
        with CancelOnDisconnect(connection_of(scope)):
            asked = await self._bodies.parse(body, self._parse)
            restated = asked.restated
            work = self._answer(scope, send, asked, body)
            # What is long is let go of once the prompt is made of it: an answer may take minutes.
            del asked, body
            try:
                await work
            except InvalidRequest as error:
                raise restated(error) from None

    async def _answer(self, scope: Scope, send: Send, asked: Asked, body: bytes) -> None:
        record: RequestRecord = scope["record"]
        request = asked.request
        generation = await self._creation.create(
            CreateCommand(
                principal=scope["principal"],
                request=request,
                key=request_key(_idempotency_keys(scope), body, store=request.store),
                body_bytes=len(body),
                requested_at=record.began,
            )
        )
        record.facts["response_id"] = generation.response_id
        record.facts["model"] = generation.model
        if request.ignored:
            record.facts["ignored_parameters"] = ", ".join(request.ignored)
        try:
            answer = self._stream if request.stream else _json
            work = answer(scope, send, asked, generation)
            del asked, body, request
            await work
        finally:
            generation.cancel()
            if generation.first_token_s is not None:
                record.facts["first_token_s"] = round(generation.first_token_s, 4)

    async def _stream(self, scope: Scope, send: Send, asked: Asked, generation: Generation) -> None:
        """Events as they come.

        The status is held back for `start_grace_s` at most: until the first token shows that a
        backend took the request, a failure can still be an HTTP status, which clients retry.
        """
        stream = EventStream(scope, send, self._stream_limits, asked.encoder(scope))
        headers = _headers(asked, generation)
        del asked
        source, grace_s = generation.stream, self._stream_limits.start_grace_s
        if generation.is_durable:
            # What is said into its silence comes behind a status.
            await generation.produced(grace_s)
            await stream.write(source, headers=headers, comments=True)
        else:
            await stream.write(partial(source, grace_s=grace_s), headers=headers, comments=False)


def create_endpoint(
    creation: Creation, bodies: BodyReader, *, stream_limits: StreamLimits
) -> CreateEndpoint:
    """`POST /v1/responses`."""
    parse = partial(_parse, limits=bodies.input_limits, strict=bodies.strict)
    return CreateEndpoint(creation, bodies, parse, stream_limits=stream_limits)


@dataclass(frozen=True, slots=True)
class _ResponseAsked:
    """A request of the Responses API, which is answered in its client's dialect."""

    request: CreateResponse

    def encoder(self, scope: Scope) -> Encode:
        return dialects.encoder(scope, obfuscate=self.request.obfuscated)

    def body(self, scope: Scope, content: bytes) -> tuple[int, bytes]:
        """A response that failed is an answer, too."""
        return 200, dialects.body(scope, content)

    def headers(self, _: str) -> Headers:
        return []

    @property
    def restated(self) -> Restated:
        return _as_it_is


def _as_it_is(error: InvalidRequest) -> InvalidRequest:
    return error


def _parse(body: bytes, *, limits: InputLimits, strict: bool) -> Asked:
    return _ResponseAsked(parse_create(body, limits=limits, strict=strict))


async def _json(scope: Scope, send: Send, asked: Asked, generation: Generation) -> None:
    status, content = asked.body(scope, await generation.response())
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(content)),
        *_headers(asked, generation),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _idempotency_keys(scope: Scope) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == b"idempotency-key"]


def _headers(asked: Asked, generation: Generation) -> Headers:
    """Names of parameters that this gateway does not know and types of tools that it does not run,
    so that nothing is lost silently; and whether this is the answer to an earlier request.
    """
    request = asked.request
    headers = asked.headers(generation.response_id)
    if request.ignored:
        ignored = ", ".join(request.ignored).encode("ascii", "replace")
        headers.append((b"x-ignored-parameters", ignored))
    if request.dropped_tools:
        dropped = ", ".join(dict.fromkeys(request.dropped_tools))
        headers.append((b"x-gateway-dropped-tools", dropped.encode()))
    if generation.is_repeat:
        headers.append((b"idempotent-replayed", b"true"))
    return headers
