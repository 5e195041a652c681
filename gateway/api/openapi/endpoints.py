"""`GET /openapi.json` and `GET /docs`: what is served, for programs and for people."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Final

import orjson
from starlette.responses import Response

from gateway.api.openapi.packaged import packaged
from gateway.api.openapi.page import page

if TYPE_CHECKING:
    from starlette.requests import Request

_SECURITY: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class OpenApiEndpoints:
    """The packaged document, read and shown when somebody first asks for it."""

    async def document(self, request: Request) -> Response:
        """`GET /openapi.json`"""
        return _cached(request, self._document, "application/json")

    async def page(self, request: Request) -> Response:
        """`GET /docs`"""
        return _cached(request, self._page, "text/html")

    @cached_property
    def _document(self) -> bytes:
        return packaged()

    @cached_property
    def _page(self) -> bytes:
        return page(orjson.loads(self._document)).encode()


def _cached(request: Request, body: bytes, media_type: str) -> Response:
    """The body, or that it is the one that the client has already."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**_SECURITY, "etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=media_type)
