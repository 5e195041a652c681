"""Request of a connection, from its frame to its last event, and the frames that answer it.

A turn differs from `POST /v1/responses` only in what it may continue: the unstored responses of its
own connection, too.

Each frame is one text frame with one JSON object, never `[DONE]`. An event goes out as it is
everywhere else, and says on which lane it came. A request that fails before its first event is
answered with one `error` frame and nothing else: clients take whatever follows for the answer to
their next request (responses-api §6.4).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.api import dialects, sse
from gateway.api.client_connection import ClientDisconnected
from gateway.api.error_responses import described, retry_headers, status_of
from gateway.api.request_context import RequestRecord
from gateway.api.streaming import Later
from gateway.errors import Draining, GatewayError
from gateway.protocol.responses.websocket import read_turn
from gateway.services.runs.run_builder import CreateCommand
from gateway.services.sessions import Memory
from gateway.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.types import Scope

    from gateway.api.client_connection import BodyReader
    from gateway.protocol.responses.websocket import ClientFrame, CreateFrame
    from gateway.protocol.stream_events import Event
    from gateway.services.creation import Creation, Generation
    from gateway.telemetry.metrics import Metrics

    SendText = Callable[[str], Awaitable[None]]

OK = 200

_log = logs.EventLog(__name__)


REMEMBERED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of the unstored responses that one connection remembers, at most."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Services of all connections. `bodies` parses frames as it does request bodies.

    `start_grace_s` is how long the first event waits for output: until then a failure is an `error`
    frame, which clients try again.
    """

    creation: Creation
    bodies: BodyReader
    metrics: Metrics
    start_grace_s: float


class ConnectionTurns:
    """Handler of the requests of one connection."""

    def __init__(self, dependencies: Dependencies, scope: Scope, send_text: SendText) -> None:
        """Send frames with `send_text`, which raises `ClientDisconnected`."""
        self._dependencies = dependencies
        self._scope = scope
        self._send_text = send_text
        self._memory = Memory(REMEMBERED_BYTES_MAX)
        self.count = 0
        """The number of requests so far, refused ones included."""
        self.is_closed = False
        """True once turns are cancelled because the connection is closed."""

    async def take(self, frame: ClientFrame) -> None:
        """Answer one request. Raises only if cancelled, which ends the generation."""
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
        """Answer a frame without a turn with an error. Raises `ClientDisconnected`."""
        record = self._begin_record()
        try:
            await self._fail(error, stream_id, record)
        finally:
            record.finish(self._dependencies.metrics)

    def _begin_record(self) -> RequestRecord:
        record = RequestRecord(self._scope)
        record.facts["connection"] = self._scope["record"].request_id
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
        principal = self._scope["principal"] = await self._scope["authenticate"]()
        bodies, policy = self._dependencies.bodies, principal.policy
        turn = await bodies.parse_request(frame.text, read_turn, policy)
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
        if turn.request.ignored:
            record.facts["ignored_parameters"] = ", ".join(turn.request.ignored)
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
    """Return the frame of an event with the JSON `data`, on the lane `stream_id`."""
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
    """Return the refusal of any `response.steer`, with its input: steering is not supported."""
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
