"""`POST /v1/responses`, and the endpoint that `api.chat` shares."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from starlette.responses import Response

from gateway.api import dialects, sse
from gateway.api.client_connection import CancelOnDisconnect, connection_of
from gateway.api.streaming import EventStream
from gateway.errors import InvalidRequest, RateLimited
from gateway.protocol.responses.create_request import parse_create, request_key
from gateway.services.runs.spec_builder import CreateCommand

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from starlette.types import Receive, Scope, Send

    from gateway.api.request_body import BodyReader
    from gateway.api.request_context import RequestRecord
    from gateway.api.sse import Encoder
    from gateway.protocol.chat_conversion import ParameterPaths
    from gateway.protocol.hosted_tools import HostedFamily
    from gateway.protocol.json_body import InputLimits
    from gateway.protocol.responses.create_request import CreateResponse
    from gateway.services.creation import Creation, Generation

    Headers = list[tuple[bytes, bytes]]


DROPPED_NAMES_MAX: Final = 32
"""Proxies accept only some kilobytes of headers."""


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """Parsed create request and its way of answering, here the Responses API's.

    `places` maps parameters to their names in the request of another API.
    """

    request: CreateResponse
    places: ParameterPaths | None = None

    @classmethod
    def parse(
        cls, body: bytes, *, limits: InputLimits, strict: bool, served: Collection[HostedFamily]
    ) -> Self:
        return cls(parse_create(body, limits=limits, strict=strict, served=served))

    def encoder(self, scope: Scope) -> Encoder:
        return sse.encoder_of(scope["dialect"], obfuscate=self.request.obfuscated)

    def body(self, scope: Scope, content: bytes) -> tuple[int, bytes]:
        # A failed response is an answer, too: status 200.
        return 200, dialects.body(scope, content)

    def headers(self, generation: Generation) -> Headers:
        headers: Headers = []
        if self.request.dropped_tools:
            headers.append((b"x-gateway-dropped-tools", _named(self.request.dropped_tools)))
        if generation.unread:
            counts = generation.unread.items()
            omitted = ", ".join(f"{kind};count={count}" for kind, count in counts)
            headers.append((b"x-gateway-dropped-input", omitted.encode()))
        if generation.is_repeat:
            headers.append((b"idempotent-replayed", b"true"))
        headers += generation.limit_headers
        return headers


class CreateEndpoint:
    """Plain ASGI endpoint: one task per request, one write for each arrival of events."""

    def __init__(
        self,
        creation: Creation,
        bodies: BodyReader,
        parse: Callable[..., CreateRequest],
        *,
        start_grace_s: float,
    ) -> None:
        """Hold back the status of a stream until the first token, for `start_grace_s` at most."""
        self._creation = creation
        self._bodies = bodies
        self._parse = parse
        self._start_grace_s = start_grace_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._bodies.read(scope, receive)
        policy = scope["principal"].policy
        with CancelOnDisconnect(connection_of(scope)):
            served = self._bodies.served(policy)
            create = await self._bodies.parse(body, self._parse, served=served)
            places = create.places
            work = self._answer(scope, receive, send, create, body)
            # Release the long values once the prompt is built: an answer may take minutes.
            del create, body
            try:
                await work
            except InvalidRequest as error:
                raise (places.restated(error) if places else error) from None
            except RateLimited as error:
                if places is not None and error.param is not None:
                    error.param = places.original(error.param)
                raise

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, create: CreateRequest, body: bytes
    ) -> None:
        record: RequestRecord = scope["record"]
        request = create.request
        keys = [value for name, value in scope["headers"] if name == b"idempotency-key"]
        generation = await self._creation.create(
            CreateCommand(
                principal=scope["principal"],
                request=request,
                key=request_key(keys, body, store=request.store) if keys else None,
                body_bytes=len(body),
                requested_at=record.began,
                generate=not request.prewarms,
            )
        )
        record.facts["response_id"] = generation.response_id
        record.facts["model"] = generation.model
        record.note_ignored(request.ignored)
        try:
            headers = create.headers(generation)
            if request.stream:
                stream = EventStream(scope, send, create.encoder(scope))
                del create, body, request
                # Hold back the status until the first token shows that a backend took the request:
                # a failure until then can still be an HTTP status, which clients retry.
                grace_s = self._start_grace_s
                if generation.is_durable:
                    # A status must precede the comments that are written during silence.
                    await generation.produced(grace_s)
                    await stream.write(generation.stream, headers=headers, comments=True)
                else:
                    source = partial(generation.stream, grace_s=grace_s)
                    await stream.write(source, headers=headers, comments=False)
            else:
                del body, request
                status, content = create.body(scope, await generation.response())
                response = Response(content, status, media_type="application/json")
                response.raw_headers += headers
                await response(scope, receive, send)
        finally:
            generation.cancel()
            if generation.first_token_s is not None:
                record.facts["first_token_s"] = round(generation.first_token_s, 4)


def _named(dropped: Sequence[str]) -> bytes:
    # Each tool once; the rest is counted, to bound the header.
    names = [*dict.fromkeys(dropped)]
    more = len(names) - DROPPED_NAMES_MAX
    listed = [*names[:DROPPED_NAMES_MAX], f"more;count={more}"] if more > 0 else names
    return ", ".join(listed).encode()
