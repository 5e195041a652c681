"""`POST /v1/completions`, and endpoints like it: reads the request, waits for a place, says the
script or breaks off.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.errors import GatewayError
from gateway.simulator.engine import QueueFull
from gateway.simulator.errors import ENGINE_BUSY, ENGINE_DEAD, SimulatedError, injected
from gateway.simulator.wire.frames import DONE, Ending, event, reply_to

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from gateway.simulator.directives import Faults, Pace
    from gateway.simulator.engine import Observed, SimulatedEngine
    from gateway.simulator.options import SimulatorOptions
    from gateway.simulator.wire.frames import Reply


@dataclass(frozen=True, slots=True)
class Tempo:
    """The pace of one stream: the request's wish, else the instance's setting."""

    tokens_per_s: float | None
    ids_per_event: int
    first_token_delay_s: float
    write_ids_max: int

    @classmethod
    def of(cls, options: SimulatorOptions, wish: Pace) -> Tempo:
        """Return the tempo of one request: its own values, or those of the options."""
        size = wish.ids_per_event or options.ids_per_event
        delay = wish.first_token_delay_s
        return cls(
            tokens_per_s=wish.tokens_per_s or options.tokens_per_s,
            ids_per_event=size,
            first_token_delay_s=options.first_token_delay_s if delay is None else delay,
            write_ids_max=options.write_events_max * size,
        )

    def duration_s(self, count: int) -> float:
        # From the first id to the last of `count`.
        return max(count - 1, 0) / self.tokens_per_s if self.tokens_per_s else 0.0

    async def spans(self, count: int) -> AsyncIterator[tuple[int, int]]:
        """Yield `(start, end)` of the ids to write now, until `count` are written.

        The first span is due at once. Each stream has one timer; a stream that fell behind catches
        up with many events in one write. Without a tempo other streams get their turn after each
        write.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        start = 0
        while start < count:
            end = self._due(start, count, clock() - began)
            if end == start:
                next_end = min(start + self.ids_per_event, count)
                await asyncio.sleep(began + self.duration_s(next_end) - clock())
                end = next_end
            yield start, end
            start = end
            await asyncio.sleep(0)

    def _due(self, start: int, count: int, elapsed_s: float) -> int:
        end = min(start + self.write_ids_max, count)
        if self.tokens_per_s is None:
            return end
        said = min(1 + int(elapsed_s * self.tokens_per_s), end)
        if said == count:
            return count
        whole = (said - start) // self.ids_per_event * self.ids_per_event
        return start + max(whole, 0)


EVENT_STREAM: Final = b"text/event-stream; charset=utf-8"
JSON: Final = b"application/json"
_CUT_WAIT_S: Final = 5.0


class ClientGone(GatewayError):
    """Loss of the client: it closed the connection."""


@dataclass(slots=True)
class Line:
    """Connection to the client of one exchange. `cut`: the client has closed it."""

    cut: bool = False


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[Line]:
    """Cancel the block when the client disconnects; the block then ends without an error."""
    line = Line()
    try:
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(_until_gone(receive, line))
            yield line
            watcher.cancel()
    except* ClientGone:
        pass


async def _until_gone(receive: Receive, line: Line) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    line.cut = True
    raise ClientGone("the client closed the connection")


async def read_body(receive: Receive, bytes_max: int) -> bytes:
    """Return the body of the request. Raises `SimulatedError` 413, or `ClientGone`."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("the client closed the connection")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > bytes_max:
            raise SimulatedError(413, f"The body is larger than {bytes_max} bytes.")
        if not message.get("more_body", False):
            return b"".join(parts)


class Outlet:
    """The ASGI response of one request: its head, its parts, its end."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def open(self, status: int, content_type: bytes, *headers: tuple[bytes, bytes]) -> None:
        # Parts of the body follow.
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-type", content_type), *headers],
            }
        )

    async def write(self, data: bytes) -> None:
        # Waits while the client does not read.
        if data:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def close(self, data: bytes = b"") -> None:
        # `data` is the last part of the body.
        await self._send({"type": "http.response.body", "body": data})

    async def json(self, status: int, document: dict[str, Any]) -> None:
        """Send a response whose body is this JSON document."""
        body = orjson.dumps(document)
        await self.open(status, JSON, (b"content-length", b"%d" % len(body)))
        await self.close(body)

    async def cut(self) -> None:
        """Drop the connection without a last chunk, as the kernel does for a killed process.

        Waits for the server to notice, which cancels this call inside of `while_connected`.

        Under uvicorn `send` is a method of the object that has the transport. Elsewhere the
        response is left without an end, which servers answer by closing too.
        """
        transport = getattr(getattr(self._send, "__self__", None), "transport", None)
        if transport is not None:
            transport.abort()
            await asyncio.sleep(_CUT_WAIT_S)


class Completions:
    """The ASGI application of `POST /v1/completions`."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outlet = Outlet(send)
        try:
            completion = await self._read(scope, receive, outlet)
        except SimulatedError as error:
            await self._refuse(outlet, error)
        except ClientGone:
            return
        else:
            async with while_connected(receive) as line:
                await completion.run(line)
            completion.close(line)

    async def _refuse(self, outlet: Outlet, error: SimulatedError) -> None:
        engine = self._engine.options.engine
        if error.as_event:
            await outlet.open(200, EVENT_STREAM)
            await outlet.close(event(error.event(engine)) + DONE)
        else:
            await outlet.json(error.status, error.body(engine))

    async def _read(self, scope: Scope, receive: Receive, outlet: Outlet) -> _Completion:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        body = await read_body(receive, self._engine.options.body_bytes_max)
        if not headers.get("content-type", "").startswith("application/json"):
            message = "Unsupported Media Type: Only 'application/json' is allowed"
            raise SimulatedError(400, f"1 validation error:\n  {message}", kind="Bad Request")
        request = await self._engine.read(body, scope["path"])
        continuation = await self._engine.continuation(request)
        observed = self._engine.observe(request, continuation, headers)
        continuation = await self._engine.held(continuation, request)
        asked = continuation.directives
        return _Completion(
            self._engine,
            outlet,
            observed,
            reply_to(request, continuation),
            asked.faults,
            Tempo.of(self._engine.options, asked.pace),
        )


class _Completion:
    """Request in progress. `observed.outcome` always says how far it has come."""

    def __init__(
        self,
        engine: SimulatedEngine,
        outlet: Outlet,
        observed: Observed,
        reply: Reply,
        faults: Faults,
        tempo: Tempo,
    ) -> None:
        self._engine = engine
        self._outlet = outlet
        self._observed = observed
        self._reply = reply
        self._faults = faults
        self._tempo = tempo
        self._writer = engine.writer(self._head(), observed.request)
        self._arrived = time.monotonic()

    async def run(self, line: Line) -> None:
        # A cancellation that the client did not cause is the shutdown of the server.
        try:
            await self._admitted()
        except SimulatedError as error:
            self._observed.outcome = "rejected"
            self._observed.status = error.status
            await self._outlet.json(error.status, error.body(self._engine.options.engine))
        except asyncio.CancelledError:
            if line.cut or self._observed.outcome not in {"running", "stalled"}:
                raise
            await self._break_off_at_shutdown()

    def close(self, line: Line) -> None:
        """Record how the request ended."""
        if line.cut and self._observed.outcome in {"waiting", "running", "stalled"}:
            self._observed.outcome = "disconnected"
        if self._observed.outcome != "rejected":
            self._engine.close(self._observed)

    async def _admitted(self) -> None:
        faults = self._faults
        if faults.slow_accept_s:
            await asyncio.sleep(faults.slow_accept_s)
        if faults.status is not None:
            raise injected(faults.status)
        try:
            async with self._engine.admission.place():
                self._observed.outcome = "running"
                await (self._stream() if self._observed.request.stream else self._answer())
        except QueueFull as full:
            self._engine.metrics.rejected()
            await self._refuse(SimulatedError(503, ENGINE_BUSY), full)

    async def _refuse(self, error: SimulatedError, cause: Exception) -> None:
        if not (self._engine.options.overload_as_event and self._observed.request.stream):
            raise error from cause
        await self._outlet.open(200, EVENT_STREAM)
        await self._fail_stream(error)

    async def _stream(self) -> None:
        await self._outlet.open(200, EVENT_STREAM)
        if self._faults.first_event_error is not None:
            await self._fail_stream(injected(self._faults.first_event_error))
            return
        await asyncio.sleep(self._tempo.first_token_delay_s)
        self._engine.prefill(self._observed)
        if self._engine.options.report_cached_tokens:
            self._writer.cached = self._observed.cached_ids
        at, how = self._breakage()
        count = len(self._reply.ids) if at is None else at
        whole_ending = Ending.of(self._reply) if at is None else None
        ending = Ending("abort") if how == "abort" else whole_ending
        async for start, end in self._tempo.spans(count):
            await self._write(start, end, ending if end == count else None)
        if count == 0 and ending:
            await self._write(0, 0, ending)
        if ending:
            await self._finish_stream(ending)
        elif how is not None:
            await self._break_off(how)

    def _breakage(self) -> tuple[int | None, str | None]:
        # (ids before the break, how); (None, None) if the reply is shorter.
        breakage = self._faults.breakage
        if breakage is None or breakage[0] > len(self._reply.ids):
            return None, None
        return breakage

    async def _write(self, start: int, end: int, ending: Ending | None) -> None:
        if start == 0:
            self._engine.metrics.first_token_s.observe(time.monotonic() - self._arrived)
        ids = self._reply.ids[start:end]
        self._engine.say(self._observed, ids)
        await self._outlet.write(self._writer.events(ids, self._tempo.ids_per_event, ending))

    async def _finish_stream(self, ending: Ending) -> None:
        self._observed.outcome = ending.finish
        usage = self._writer.usage(self._engine.usage(self._observed))
        await self._outlet.close(usage + DONE)

    async def _fail_stream(self, error: SimulatedError) -> None:
        self._observed.outcome = "error"
        await self._outlet.close(event(error.event(self._engine.options.engine)) + DONE)

    async def _break_off(self, how: str) -> None:
        self._observed.outcome = how
        match how:
            case "error":
                await self._fail_stream(SimulatedError(500, ENGINE_DEAD))
            case "end":
                await self._outlet.close()
            case "stall":
                self._observed.outcome = "stalled"
                await asyncio.sleep(self._engine.options.stall_max_s)
                self._observed.outcome = "stall"
                await self._outlet.cut()
            case _:
                await self._outlet.cut()

    async def _break_off_at_shutdown(self) -> None:
        # A terminated vLLM ends its streams with `abort`.
        if self._observed.request.stream:
            await self._outlet.write(self._writer.events([], 1, Ending("abort")))
            await self._finish_stream(Ending("abort"))
        else:
            await self._answer_with(Ending("abort"))

    async def _answer(self) -> None:
        if self._faults.first_event_error is not None:
            raise injected(self._faults.first_event_error)
        at, how = self._breakage()
        ids = self._reply.ids[:at]
        tempo = self._tempo
        await asyncio.sleep(tempo.first_token_delay_s + tempo.duration_s(len(ids)))
        self._engine.prefill(self._observed)
        self._engine.say(self._observed, ids)
        if how is None or how == "abort":
            await self._answer_with(Ending("abort") if how else Ending.of(self._reply))
        elif how == "error":
            raise SimulatedError(500, ENGINE_DEAD)
        else:
            await self._break_off("stall" if how == "stall" else "die")

    async def _answer_with(self, ending: Ending) -> None:
        observed = self._observed
        observed.outcome = ending.finish
        usage = self._engine.usage(observed)
        await self._outlet.json(200, self._writer.body(observed.sent.tolist(), ending, usage))

    def _head(self) -> dict[str, Any]:
        observed = self._observed
        request_id = observed.headers.get("x-request-id") or observed.request.id
        request_id = request_id or f"{observed.number:016x}"
        prefix, kind = "cmpl-", "text_completion"
        if observed.request.chat_rules is not None:
            prefix, kind = "chatcmpl-", "chat.completion.chunk"
        is_sglang = self._engine.options.engine == "sglang"
        return {
            "id": request_id if is_sglang else f"{prefix}{request_id}",
            "object": kind,
            "created": int(time.time()),
            "model": observed.request.model,
        }
