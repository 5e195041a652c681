"""Serve an ASGI application on a real socket of this event loop."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import uvicorn

from gateway.cli.websocket import PatientWebSocketProtocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[str]:
    """The base URL of `app` while entered; its lifespan runs."""
    # The protocol is named: asyncio turns Nagle's algorithm off only for sockets that say they are
    # TCP, and without that every other small write waits 40 ms for an acknowledgement.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
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
    await server.on_tick(
        0
    )  # the headers of every answer; the rest of `main_loop` waits to be ended
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await server.shutdown(sockets=[listener])
