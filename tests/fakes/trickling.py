"""A service whose answer comes byte by byte, each before a client would give one up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

PAUSE_S: Final = 0.05


def create_trickling(body: bytes) -> Starlette:
    async def pieces() -> AsyncIterator[bytes]:
        for byte in body:
            await asyncio.sleep(PAUSE_S)
            yield bytes([byte])

    async def answer(_request: Request) -> StreamingResponse:
        return StreamingResponse(pieces())

    return Starlette(routes=[Route("/{path:path}", answer, methods=["POST"])])
