"""WebSocket mode of `/v1/responses`.

A connection lasts until its client leaves, it is old or idle, or the process ends; unless the
client has left, requests that have begun are answered first.

Each frame is one text frame with one JSON object, never `[DONE]`. A request that fails before its
first event is answered with exactly one `error` frame: clients take a further one for the answer to
their next request.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.api import dialects, sse
from gateway.api.client_connection import ClientDisconnected
from gateway.api.error_responses import described, retry_headers, status_of
from gateway.api.request_context import WEBSOCKET, RequestRecord
from gateway.api.streaming import WRITE_TIMEOUT_S, Later
from gateway.errors import Draining, GatewayError, InvalidRequest, Leaving, RateLimited
from gateway.protocol.responses.websocket import STEER, read_frame, read_steer, read_turn
from gateway.services.runs.spec_builder import CreateCommand
from gateway.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractContextManager

    from starlette.types import Message, Receive, Scope, Send

    from gateway.api.request_body import BodyReader
    from gateway.protocol.responses.websocket import ClientFrame, CreateFrame
    from gateway.protocol.stream_events import Event
    from gateway.services.creation import Creation, Generation
    from gateway.services.sessions import Memory, Sessions
    from gateway.telemetry.metrics import Metrics
    from gateway.telemetry.tracing import Tracing
    from gateway.tenancy import Principal

    SendText = Callable[[str], Awaitable[None]]

    Lane = str | None
    TakeTurn = Callable[[ClientFrame], Awaitable[None]]


LIFETIME_S: Final = 3600.0
"""OpenAI's 60 minutes."""
IDLE_TIMEOUT_S: Final = 900.0
GOING_AWAY: Final = 1001
SERVICE_RESTART: Final = 1012
"""Close codes (RFC 6455 §7.4.1) after which OpenAI's SDK reconnects by itself."""

_log = logs.EventLog(__name__)
OK = 200
LANES_MAX: Final = 32
"""Named lanes."""
IN_FLIGHT_MAX: Final = 16
WAITING_MAX: Final = 64


class WebSocketEndpoint:
    def __init__(self, dependencies: Dependencies, sessions: Sessions) -> None:
        self._dependencies = dependencies
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record: RequestRecord = scope["record"]
        await receive()  # websocket.connect
        principal: Principal = scope["principal"]
        connected = self._dependencies.connected(principal)
        with self._sessions.connected(principal.tenant_id) as memory, connected:
            await send({"type": "websocket.accept"})
            record.finish(self._dependencies.metrics)
            leaving = self._sessions.leaving
            connection = WebSocketConnection(self._dependencies, scope, send, leaving, memory)
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
                # Break the reference cycle: the remembered responses and a partial frame would stay
                # until a garbage collection.
                del connection.turns


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a connection whose client is still there.

    `refusal` answers requests that come meanwhile, and with `is_announced` is sent at the end in
    any case.
    """

    refusal: Exception
    code: int
    reason: str
    is_announced: bool = False


def expired(lifetime_s: float) -> Ending:
    refusal = InvalidRequest(
        f"Responses websocket connection limit reached ({lifetime_s / 60:g} minutes). Create a new "
        "websocket connection to continue.",
        code="websocket_connection_limit_reached",
    )
    return Ending(refusal, GOING_AWAY, "connection limit reached", is_announced=True)


def idle(idle_timeout_s: float) -> Ending:
    refusal = InvalidRequest(
        f"This connection was closed after {idle_timeout_s:g} seconds without a request. Create a "
        "new websocket connection to continue.",
        code="websocket_connection_limit_reached",
    )
    return Ending(refusal, GOING_AWAY, "idle")


class WebSocketConnection:
    def __init__(
        self,
        dependencies: Dependencies,
        scope: Scope,
        send: Send,
        leaving: asyncio.Event,
        memory: Memory,
    ) -> None:
        self._bodies = dependencies.bodies
        self._send = send
        self._leaving = leaving
        self._request_id: str = scope["record"].request_id
        self._expires_at = asyncio.get_running_loop().time() + LIFETIME_S
        self._listening = asyncio.timeout(None)
        self._is_gone = False
        self.turns = ConnectionTurns(dependencies, scope, self._send_text, memory)
        self.reason = "the client left"

    async def serve(self, receive: Receive) -> None:
        try:
            await self._serve(receive)
        except asyncio.CancelledError:
            # The server's grace is over. The cancellation is intended: raised again, it would be
            # logged as an error.
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
        ending = await self._ending(lanes)
        self.reason = ending.reason
        try:
            for frame in lanes.refuse(ending.refusal):
                await self.turns.refuse(ending.refusal, frame.stream_id)
            await lanes.at_rest()
            if ending.is_announced:
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
            # The client does not read or is gone (uvicorn raises an OSError), or the server has
            # closed the connection because a ping was not answered.
            self.reason = "the client did not read or was gone"
            self._hang_up()
            raise ClientDisconnected from None

    def _hang_up(self) -> None:
        # When listening stops, everything else of the connection ends.
        if not self._is_gone:
            self._is_gone = True
            self._listening.reschedule(asyncio.get_running_loop().time())


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Services of all connections.

    `connected` counts a connection, and raises `RateLimited`. The first event waits up to
    `start_grace_s` for output: until then a failure is an `error` frame, which clients retry.
    """

    creation: Creation
    connected: Callable[[Principal], AbstractContextManager[None]]
    bodies: BodyReader
    metrics: Metrics
    start_grace_s: float
    tracing: Tracing | None = None


class ConnectionTurns:
    """Handler of a connection's requests, which may also continue its unstored responses."""

    def __init__(
        self, dependencies: Dependencies, scope: Scope, send_text: SendText, memory: Memory
    ) -> None:
        self._dependencies = dependencies
        self._scope = scope
        self._send_text = send_text
        self._memory = memory
        self.count = 0
        """Refused requests included."""
        self.is_closed = False
        """True while turns are cancelled because the connection is closed."""

    async def take(self, frame: ClientFrame) -> None:
        """Answer a request. Raises only if cancelled, which ends the generation."""
        record = self._begin_record()
        try:
            await self._answer(frame, record)
        except ClientDisconnected:
            self._note_left(record)
        except asyncio.CancelledError:
            if self.is_closed:
                self._note_left(record)
            raise
        finally:
            record.finish(self._dependencies.metrics)

    def _note_left(self, record: RequestRecord) -> None:
        self._dependencies.metrics.client_disconnected()
        record.facts["reason"] = "the client left"

    async def refuse(self, error: Exception, stream_id: str | None) -> None:
        record = self._begin_record()
        try:
            await self._fail(error, stream_id, record)
        finally:
            record.finish(self._dependencies.metrics)

    def _begin_record(self) -> RequestRecord:
        record = RequestRecord(self._scope)
        connection: RequestRecord = self._scope["record"]
        record.facts["connection"] = connection.request_id
        if (tracing := self._dependencies.tracing) is not None:
            record.span = tracing.turn(WEBSOCKET, connection.span)
        logs.bind(request_id=record.request_id, connection=record.facts["connection"])
        self._dependencies.metrics.requests_in_flight += 1
        self.count += 1
        return record

    async def _fail(self, error: Exception, stream_id: str | None, record: RequestRecord) -> None:
        record.status = status_of(error).status
        if not isinstance(error, GatewayError):
            _log.error("unexpected error", path=self._scope["path"], error=error)
        await self._send_text(error_frame(error, stream_id=stream_id, request_id=record.request_id))

    async def _answer(self, frame: ClientFrame, record: RequestRecord) -> None:
        try:
            await self._generate(frame, record)
        except ClientDisconnected:
            raise
        except Exception as error:  # noqa: BLE001 - the outermost frame of a request
            self._memory.forget(frame.stream_id, frame.previous_response_id)
            await self._fail(error, frame.stream_id, record)

    async def _generate(self, frame: ClientFrame, record: RequestRecord) -> None:
        # The key may have been disabled since the last request, or its tenant's policy changed.
        principal = self._scope["principal"] = await self._scope["authenticate"](self._scope)
        bodies = self._dependencies.bodies
        served = bodies.served(principal.policy)
        turn = await bodies.parse(frame.text, read_turn, served=served)
        generation = await self._dependencies.creation.create(
            CreateCommand(
                principal=principal,
                request=turn.request,
                key=None,
                body_bytes=len(frame.text),
                requested_at=record.began,
                local=self._memory,
                tool_values=self._memory.tool_values,
                remembered=True,
                generate=turn.generate,
            )
        )
        record.facts["response_id"] = generation.response_id
        record.facts["model"] = generation.model
        record.note_ignored(turn.request.ignored)
        try:
            await self._send_events(frame, turn, generation, record)
        finally:
            generation.cancel()
            if generation.first_token_s is not None:
                record.facts["first_token_s"] = round(generation.first_token_s, 4)

    async def _send_events(
        self, frame: ClientFrame, turn: CreateFrame, generation: Generation, record: RequestRecord
    ) -> None:
        await generation.produced(self._dependencies.start_grace_s)
        record.status = OK
        is_over = False

        async def send(events: Sequence[Event]) -> None:
            nonlocal is_over
            for event in events:
                if event.is_terminal:
                    self._note_end(frame, event, generation)
                    is_over = True
                await self._send_event(frame, turn, event)

        await generation.stream(lambda events: Later(partial(send, events)))
        if not is_over:
            raise Draining

    async def _send_event(self, frame: ClientFrame, turn: CreateFrame, event: Event) -> None:
        data = dialects.data(self._scope, event)
        if not data:
            return
        if turn.obfuscated:
            data = sse.padded(data, event)
        await self._send_text(event_frame(data, frame.stream_id))

    def _note_end(self, frame: ClientFrame, event: Event, generation: Generation) -> None:
        # Before the last event is sent, so that the client can continue the response at once.
        if event.type == "response.failed":
            self._memory.forget(frame.stream_id, frame.previous_response_id)
        elif (parent := generation.continued()) is not None:
            self._memory.remember(frame.stream_id, generation.response_id, parent)


def event_frame(data: bytes, stream_id: str | None) -> str:
    if stream_id is None:
        return data.decode()
    return (b'%s,"stream_id":"%s"}' % (data[:-1], stream_id.encode())).decode()


def error_frame(error: BaseException, *, stream_id: str | None, request_id: str) -> str:
    """Return the answer to a request that failed.

    `error.code` is always a string, as Open Responses demands. The headers that the answer would
    have over HTTP are where OpenAI's SDK (`error.headers`) and where Codex look for them.
    """
    answer, detail = described(error)
    headers = {"x-request-id": request_id, **retry_headers(answer)}
    return _frame(
        {
            "type": "error",
            "status": answer.status,
            "error": {
                "type": answer.type,
                "code": detail.code or answer.type,
                "message": detail.message,
                "param": detail.param,
                "headers": headers,
            },
            "headers": headers,
        },
        stream_id,
    )


def unsteered_frame(steer: dict[str, Any]) -> str:
    """Return the refusal of a `response.steer`, with its input."""
    return _frame(
        {
            "type": "response.steer.failed",
            "sequence_number": 0,
            "error": {
                "type": "invalid_request_error",
                "code": "steering_not_supported",
                "message": "A response cannot be steered while it is generated. Send the input in "
                "a response.create that continues it.",
            },
            "steer": steer,
        },
        None,
    )


def _frame(fields: dict[str, Any], stream_id: str | None) -> str:
    if stream_id is not None:
        fields["stream_id"] = stream_id
    return orjson.dumps(fields).decode()


class Lanes:
    """Queues of frames that `take_turn` gets one after the other on a lane, lanes in parallel.

    `quiet_since` is the loop's time. A busy lane has a task in `group`, which an exception would
    end: `take_turn` must raise none.
    """

    def __init__(
        self, group: asyncio.TaskGroup, take_turn: TakeTurn, *, waiting_bytes_max: int
    ) -> None:
        self._group = group
        self._take_turn = take_turn
        self._waiting_bytes_max = waiting_bytes_max
        self._queues: dict[Lane, deque[ClientFrame]] = {}
        self._busy: dict[Lane, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._waiting = 0
        self._waiting_bytes = 0
        self._refusal: Exception | None = None
        self._rest = asyncio.Event()
        self._rest.set()
        self.quiet_since = asyncio.get_running_loop().time()

    @property
    def is_at_rest(self) -> bool:
        return self._rest.is_set()

    def put(self, frame: ClientFrame) -> None:
        """Queue a frame. Raises `InvalidRequest` for too many lanes, `RateLimited` for too many
        requests, and the `refusal` after `refuse`.
        """
        if self._refusal is not None:
            raise self._refusal
        lane = frame.stream_id
        self._check_room(frame)
        self._queues.setdefault(lane, deque()).append(frame)
        self._count(frame, 1)
        if lane not in self._busy:
            self._rest.clear()
            self._busy[lane] = self._group.create_task(self._work(lane))

    def refuse(self, refusal: Exception) -> list[ClientFrame]:
        """Refuse later frames; drop and return the waiting ones. Requests that have begun go on."""
        self._refusal = refusal
        dropped = [frame for queue in self._queues.values() for frame in queue]
        for queue in self._queues.values():
            queue.clear()
        self._waiting = self._waiting_bytes = 0
        return dropped

    async def at_rest(self) -> None:
        await self._rest.wait()

    def cancel(self) -> None:
        for task in self._busy.values():
            task.cancel()

    def _check_room(self, frame: ClientFrame) -> None:
        lane = frame.stream_id
        if lane is not None and lane not in self._queues:
            named = len(self._queues) - (None in self._queues)
            if named >= LANES_MAX:
                raise InvalidRequest(
                    f"This connection has {LANES_MAX} streams already. Use one of their "
                    "'stream_id's, or open another connection.",
                    code="websocket_stream_limit_reached",
                    param="stream_id",
                )
        is_next = lane not in self._busy and not self._places.locked()
        size_bytes = self._waiting_bytes + len(frame.text)
        is_full = self._waiting >= WAITING_MAX or size_bytes > self._waiting_bytes_max
        if not is_next and is_full:
            raise RateLimited(
                "This connection has as many requests waiting as it may. Wait until one of them "
                "has been answered.",
                code="rate_limit_exceeded",
            )

    async def _work(self, lane: Lane) -> None:
        queue = self._queues[lane]
        try:
            while queue:
                async with self._places:
                    if queue:
                        frame = queue.popleft()
                        self._count(frame, -1)
                        await self._take_turn(frame)
        finally:
            del self._busy[lane]
            if not self._busy:
                self.quiet_since = asyncio.get_running_loop().time()
                self._rest.set()

    def _count(self, frame: ClientFrame, sign: int) -> None:
        self._waiting += sign
        self._waiting_bytes += sign * len(frame.text)
