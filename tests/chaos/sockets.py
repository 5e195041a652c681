"""A client of WebSocket mode that goes to another replica when a connection breaks."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from tests.chaos.history import Connection, Frame, is_terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.readers import Clients

PATIENCE_S: Final = 8.0
"""Silence after which a connection is given up: longer than what a client of HTTP waits, because
nothing of what it asked for can be read elsewhere."""
CLOSE_S: Final = 0.2
_GONE: Final = (OSError, WebSocketException, TimeoutError)


class Socket:
    """One connection at a time, to any replica; what is asked over it is asked in turn."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._open: ClientConnection | None = None
        self._replica = 0

    @property
    def is_open(self) -> bool:
        """As far as one knows; what was remembered for it is still there then."""
        return self._open is not None

    async def ask(
        self, body: dict[str, Any], stop: Callable[[Connection], bool] = lambda _: False
    ) -> Connection:
        """One turn, as the same words would be answered over HTTP; status 0: it broke off."""
        body = {name: value for name, value in body.items() if name not in _OF_HTTP}
        try:
            async with asyncio.timeout(PATIENCE_S):
                socket = await self._opened()
                connection = Connection(self._replica, opened_s=time.monotonic())
                await socket.send(orjson.dumps({"type": "response.create", **body}).decode())
        except _GONE:
            await self.close()
            return Connection(self._replica)
        try:
            await _read(socket, connection, stop)
        except _GONE:
            await self.close()
        if connection.left:
            await self.close()
        return connection

    async def close(self) -> None:
        """Hang up. May be repeated."""
        socket, self._open = self._open, None
        if socket is not None:
            with suppress(*_GONE):
                await socket.close()

    async def _opened(self) -> ClientConnection:
        if self._open is None:
            self._replica = self._clients.anywhere()
            url = self._clients.urls[self._replica].replace("http", "ws", 1)
            self._open = await connect(
                f"{url}/v1/responses",
                additional_headers={"authorization": f"Bearer {self._clients.key}"},
                proxy=None,
                max_queue=None,
                close_timeout=CLOSE_S,
                ping_interval=None,
            )
        return self._open


_OF_HTTP: Final = ("stream", "background")


async def _read(
    socket: ClientConnection, connection: Connection, stop: Callable[[Connection], bool]
) -> None:
    """Frames until the last of the turn. Raises what ends the connection, or its silence."""
    while not connection.done and not connection.left:
        async with asyncio.timeout(PATIENCE_S):
            data = await socket.recv(decode=False)
        frame = orjson.loads(data)
        if frame["type"] == "error" and "sequence_number" not in frame:
            connection.status, connection.body = frame["status"], data
            connection.headers = frame["headers"]
            return
        connection.status = 200
        connection.frames.append(Frame(data, time.monotonic()))
        connection.done = is_terminal(frame)
        connection.left = not connection.done and stop(connection)
