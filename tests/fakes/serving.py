"""Serve an ASGI application on a real socket of this event loop."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from gateway.server.server import Server, listen
from gateway.settings import Server as ServerSettings
from gateway.settings import Settings
from gateway.settings.sections import Limits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp

WEBSOCKETS: Final = Settings(limits=Limits(body_bytes_max=1 << 23))


@asynccontextmanager
async def serving(app: ASGIApp, *, connections_max: int = 4096) -> AsyncIterator[str]:
    """The base URL of `app` while entered, on the gateway's own server; its lifespan runs."""
    settings = ServerSettings(drain_grace_s=5, connections_max=connections_max)
    with listen("127.0.0.1", 0, 100) as listener:
        server = Server(app, listener, settings, websockets=WEBSOCKETS)
        async with server:
            # Not a task group: a failing test should fail with what failed, not with a group of it.
            ticking = asyncio.create_task(server.main_loop())
            try:
                yield server.url
            finally:
                server.handle_exit(0)
                await ticking
