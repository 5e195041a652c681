"""`POST /v1/embeddings` and `POST /v1/rerank`: passed through to the model's server."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import Response

from gateway.api.client_connection import CancelOnDisconnect, connection_of
from gateway.protocol.proxied import parse_proxied

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from gateway.api.request_body import BodyReader
    from gateway.protocol.proxied import ProxiedKind
    from gateway.services.proxy import Proxy


class ProxyEndpoint:
    def __init__(self, kind: ProxiedKind, proxy: Proxy, bodies: BodyReader) -> None:
        self._kind = kind
        self._proxy = proxy
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._bodies.read(scope, receive)
        with CancelOnDisconnect(connection_of(scope)):
            request = await self._bodies.parse(body, partial(parse_proxied, kind=self._kind))
            scope["record"].note_ignored(request.ignored)
            answer = await self._proxy.ask(scope["principal"], request)
            scope["record"].facts["model"] = answer.model
            response = Response(answer.body, media_type="application/json")
            response.raw_headers += answer.headers
            await response(scope, receive, send)
