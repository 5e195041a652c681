"""`POST /v1/embeddings` and `POST /v1/rerank`: passed through to the model's server."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import Response

from gateway.api.client_connection import CancelOnDisconnect, connection_of
from gateway.protocol.passed import parse_passed

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from gateway.api.client_connection import BodyReader
    from gateway.protocol.passed import PassedKind
    from gateway.services.passing import PassThrough


class PassingEndpoint:
    """Reads a body, and answers what the server answers. Nothing is stored."""

    def __init__(self, kind: PassedKind, passing: PassThrough, bodies: BodyReader) -> None:
        self._kind = kind
        self._passing = passing
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._bodies.read(scope, receive)
        with CancelOnDisconnect(connection_of(scope)):
            request = await self._bodies.parse(body, partial(parse_passed, kind=self._kind))
            passed = await self._passing.ask(scope["principal"], request)
            scope["record"].facts["model"] = passed.model
            response = Response(passed.answer, media_type="application/json")
            response.raw_headers += passed.headers
            await response(scope, receive, send)
