"""`GET /v1/responses` with an upgrade: WebSocket mode (responses-api §1.12).

A connection takes frames as they come and answers them on their lanes (`lanes`,
`connection_turns`). It ends when its client leaves, when it is old or idle, and when the process
ends. Unless the client has left, the requests that have begun are answered first.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.api.client_connection import ClientDisconnected
from gateway.api.streaming import WRITE_TIMEOUT_S
from gateway.api.websocket.connection_turns import ConnectionTurns, error_frame, unsteered_frame
from gateway.api.websocket.lanes import Lanes
from gateway.errors import InvalidRequest, Leaving
from gateway.protocol.responses.websocket import STEER, read_frame, read_steer
from gateway.telemetry import logs

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from gateway.api.request_context import RequestRecord
    from gateway.api.websocket.connection_turns import Dependencies
    from gateway.services.sessions import Sessions

LIFETIME_S: Final = 3600.0
"""Seconds until a connection must be opened anew: OpenAI's 60 minutes."""
IDLE_TIMEOUT_S: Final = 900.0
"""Seconds without a request after which a connection is closed."""
GOING_AWAY: Final = 1001
SERVICE_RESTART: Final = 1012
"""Close codes (RFC 6455 §7.4.1) after which OpenAI's SDK opens a new connection by itself."""

_log = logs.EventLog(__name__)


class WebSocketEndpoint:
    """Endpoint that accepts connections, and serves each until it ends."""

    def __init__(self, dependencies: Dependencies, sessions: Sessions) -> None:
        self._dependencies = dependencies
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record: RequestRecord = scope["record"]
        await receive()  # websocket.connect
        connected = self._dependencies.creation.connected(scope["principal"])
        with self._sessions.connected(), connected:
            await send({"type": "websocket.accept"})
            record.finish(self._dependencies.metrics)
            connection = WebSocketConnection(
                self._dependencies, scope, send, self._sessions.leaving
            )
            try:
                await connection.serve(receive)
            finally:
                logs.bind(request_id=record.request_id)
                _log.info(
                    "connection closed",
                    path=scope["path"],
                    tenant=scope["principal"].tenant_name,
                    seconds=round(time.perf_counter() - record.began, 4),
                    count=connection.turns.count,
                    reason=connection.reason,
                )


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a connection whose client is still there.

    Requests that come meanwhile are answered with `refusal`; with `is_told` it is sent at the end
    in any case. `code` and `reason` are those of the close frame.
    """

    refusal: Exception
    code: int
    reason: str
    is_told: bool = False


def expired(lifetime_s: float) -> Ending:
    """Return the end of a connection that reached its lifetime, in OpenAI's words."""
    refusal = InvalidRequest(
        f"Responses websocket connection limit reached ({lifetime_s / 60:g} minutes). Create a new "
        "websocket connection to continue.",
        code="websocket_connection_limit_reached",
    )
    return Ending(refusal, GOING_AWAY, "connection limit reached", is_told=True)


def idle(idle_timeout_s: float) -> Ending:
    """Return the end of a connection without a request for `idle_timeout_s`."""
    refusal = InvalidRequest(
        f"This connection was closed after {idle_timeout_s:g} seconds without a request. Create a "
        "new websocket connection to continue.",
        code="websocket_connection_limit_reached",
    )
    return Ending(refusal, GOING_AWAY, "idle")


class WebSocketConnection:
    """Connection of one client, from the accepted upgrade to the end. `reason` is why it ended."""

    def __init__(
        self, dependencies: Dependencies, scope: Scope, send: Send, leaving: asyncio.Event
    ) -> None:
        self._bodies = dependencies.bodies
        self._send = send
        self._leaving = leaving
        self._request_id: str = scope["record"].request_id
        self._expires_at = asyncio.get_running_loop().time() + LIFETIME_S
        self._listening = asyncio.timeout(None)
        self._is_gone = False
        self.turns = ConnectionTurns(dependencies, scope, self._send_text)
        self.reason = "the client left"

    async def serve(self, receive: Receive) -> None:
        # Requests in progress are cancelled when the connection ends.
        try:
            await self._serve(receive)
        except asyncio.CancelledError:
            # The server ends, and its grace is over. This is what it wanted: raised again, it would
            # be logged as an error of ours.
            with suppress(ClientDisconnected):
                await self._send_message({"type": "websocket.close", "code": SERVICE_RESTART})

    async def _serve(self, receive: Receive) -> None:
        async with asyncio.TaskGroup() as group:
            lanes = Lanes(group, self.turns.take, waiting_bytes_max=self._bodies.bytes_max)
            ending = group.create_task(self._end(lanes))
            try:
                with suppress(TimeoutError, ClientDisconnected):
                    async with self._listening:
                        await self._listen(receive, lanes)
                self.turns.is_closed = True
            finally:
                self._is_gone = True
                ending.cancel()
                lanes.cancel()

    async def _listen(self, receive: Receive, lanes: Lanes) -> None:
        while (message := await receive())["type"] != "websocket.disconnect":
            await self._take(message, lanes)

    async def _take(self, message: Message, lanes: Lanes) -> None:
        stream_id = None
        try:
            text, limits = self._text_of(message), self._bodies.input_limits
            read = partial(read_frame, text, limits)
            frame = await self._bodies.executor.run(read, size_bytes=len(text))
            stream_id = frame.stream_id
            if frame.type == STEER:
                await self._send_text(unsteered_frame(read_steer(text, limits)))
            else:
                lanes.put(frame)
        except ClientDisconnected:
            raise
        except Exception as error:  # noqa: BLE001 - the outermost frame of a request
            await self.turns.refuse(error, stream_id)

    def _text_of(self, message: Message) -> bytes:
        text: str | None = message.get("text")
        if text is None:
            raise InvalidRequest(
                "Binary frames are not accepted. Send each event as one text frame with one JSON "
                "object."
            )
        encoded = text.encode()
        if len(encoded) > self._bodies.bytes_max:
            raise self._bodies.too_large("frame")
        return encoded

    async def _end(self, lanes: Lanes) -> None:
        # Does not raise.
        ending = await self._ending(lanes)
        self.reason = ending.reason
        try:
            for frame in lanes.refuse(ending.refusal):
                await self.turns.refuse(ending.refusal, frame.stream_id)
            await lanes.at_rest()
            if ending.is_told:
                await self._send_text(
                    error_frame(ending.refusal, stream_id=None, request_id=self._request_id)
                )
            await self._send_message(
                {"type": "websocket.close", "code": ending.code, "reason": ending.reason}
            )
        except ClientDisconnected:
            pass
        self._hang_up()

    async def _ending(self, lanes: Lanes) -> Ending:
        # Returns only if the connection has to end while its client is there.
        clock = asyncio.get_running_loop().time
        while True:
            quiet_since = lanes.quiet_since if lanes.is_at_rest else clock()
            try:
                async with asyncio.timeout_at(min(self._expires_at, quiet_since + IDLE_TIMEOUT_S)):
                    await self._leaving.wait()
            except TimeoutError:
                if clock() >= self._expires_at:
                    return expired(LIFETIME_S)
                if lanes.is_at_rest and clock() >= lanes.quiet_since + IDLE_TIMEOUT_S:
                    return idle(IDLE_TIMEOUT_S)
            else:
                return Ending(Leaving(), SERVICE_RESTART, "the server restarts")

    async def _send_text(self, text: str) -> None:
        # Concurrent calls are safe: a server sends each frame as a whole.
        await self._send_message({"type": "websocket.send", "text": text})

    async def _send_message(self, message: Message) -> None:
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._send(message)
        except (TimeoutError, OSError, RuntimeError):
            # It does not read, it is gone (uvicorn raises an OSError), or the server itself has
            # closed the connection meanwhile, because a ping was not answered.
            self.reason = "the client did not read or was gone"
            self._hang_up()
            raise ClientDisconnected from None

    def _hang_up(self) -> None:
        # When listening stops, everything else of the connection ends.
        if not self._is_gone:
            self._is_gone = True
            self._listening.reschedule(asyncio.get_running_loop().time())
