"""Serve an ASGI application on a real socket of this event loop."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import uvicorn

from gateway.server.websocket_protocol import PatientWebSocketProtocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[str]:
    """The base URL of `app` while entered; its lifespan runs."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        log_config=None,
        lifespan="on",
        http="httptools",
        ws=PatientWebSocketProtocol,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=5,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    assert server.started, "the application did not start"
    # Not a task group: a failing test should fail with what failed, not with a group of it.
    ticking = asyncio.create_task(server.main_loop())
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await ticking
        await server.shutdown(sockets=[listener])
