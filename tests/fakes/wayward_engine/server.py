"""The server of the wayward engine: it streams at a pace, breaks off, and notes who hung up."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.requests import ClientDisconnect
from typing_extensions import override

from gateway.errors import GatewayError
from gateway.simulator.completion_wire import DONE, Ending, SimulatedError, event
from gateway.simulator.simulated_server import (
    EVENT_STREAM,
    Outlet,
    Simulator,
    head_of,
    read_request,
)
from tests.fakes.wayward_engine.engine_errors import ENGINE_DEAD, StreamedError, event_of, injected
from tests.fakes.wayward_engine.generate_endpoint import GenerateWriter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.routing import Route
    from starlette.types import Receive, Scope

    from tests.fakes.wayward_engine.directives import Directives
    from tests.fakes.wayward_engine.engine import WaywardEngine
    from tests.fakes.wayward_engine.instruments import Observed
    from tests.fakes.wayward_engine.misbehaviour import WaywardContinuation
    from tests.fakes.wayward_engine.options import WaywardOptions

WRITE_EVENTS_MAX: Final = 64
"""Events joined into one write when a stream is behind its pace or has none."""


@dataclass(frozen=True, slots=True)
class Tempo:
    """The pace of one stream: the request's wish, else the instance's setting."""

    tokens_per_s: float | None
    ids_per_event: int
    first_token_delay_s: float

    @classmethod
    def of(cls, options: WaywardOptions, asked: Directives) -> Tempo:
        delay = asked.pace.first_token_delay_s
        return cls(
            tokens_per_s=asked.pace.tokens_per_s or options.tokens_per_s,
            ids_per_event=asked.pace.ids_per_event or 1,
            first_token_delay_s=options.first_token_delay_s if delay is None else delay,
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
        end = min(start + WRITE_EVENTS_MAX * self.ids_per_event, count)
        if self.tokens_per_s is None:
            return end
        said = min(1 + int(elapsed_s * self.tokens_per_s), end)
        if said == count:
            return count
        whole = (said - start) // self.ids_per_event * self.ids_per_event
        return start + max(whole, 0)


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


class WaywardOutlet(Outlet):
    """A response that may be cut off."""

    async def cut(self) -> None:
        """Drop the connection without a last chunk, as the kernel does for a killed process.

        Waits for the server to notice, which cancels this call inside of `while_connected`.

        Under uvicorn `send` is a method of the object that has the transport. Elsewhere the
        response is left without an end, which servers answer by closing too.
        """
        transport = getattr(getattr(self.send, "__self__", None), "transport", None)
        if transport is not None:
            transport.abort()
            await asyncio.sleep(_CUT_WAIT_S)


class WaywardServer(Simulator):
    """The ASGI application of one instance."""

    def __init__(self, engine: WaywardEngine, more: Sequence[Route]) -> None:
        super().__init__(engine, more)
        self._wayward = engine

    @override
    async def complete(self, scope: Scope, receive: Receive, outlet: Outlet) -> None:
        engine, outlet = self._wayward, WaywardOutlet(outlet.send)
        try:
            completion = await _begun(engine, scope, receive, outlet)
        except SimulatedError as error:
            await _refuse(outlet, error, engine.options)
        except ClientDisconnect:
            return
        else:
            async with while_connected(receive) as line:
                await completion.run(line)
            completion.close(line)


async def _refuse(outlet: Outlet, error: SimulatedError, options: WaywardOptions) -> None:
    if isinstance(error, StreamedError):
        await outlet.open(200, EVENT_STREAM)
        await outlet.close(event(event_of(error, options.engine)) + DONE)
    else:
        await outlet.json(error.status, error.body(options.engine))


async def _begun(
    engine: WaywardEngine, scope: Scope, receive: Receive, outlet: WaywardOutlet
) -> _Completion:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    request = await read_request(engine, scope, receive)
    continuation = await engine.continuation(request)
    exchange = engine.begin(request, continuation, headers)
    return _Completion(engine, outlet, exchange, await engine.held(continuation, request))


class _Completion:
    """Request in progress. `exchange.outcome` always says how far it has come."""

    def __init__(
        self,
        engine: WaywardEngine,
        outlet: WaywardOutlet,
        exchange: Observed,
        continuation: WaywardContinuation,
    ) -> None:
        self._engine = engine
        self._outlet = outlet
        self._exchange = exchange
        self._ids, self._ending = continuation.reply_to(exchange.request)
        self._faults = continuation.directives.faults
        self._tempo = Tempo.of(engine.options, continuation.directives)
        self._writer = engine.writer(
            head_of(exchange.request, engine.options, exchange.request_id), exchange.request
        )

    async def run(self, line: Line) -> None:
        # A cancellation that the client did not cause is the shutdown of the server.
        try:
            await self._admitted()
        except SimulatedError as error:
            self._exchange.outcome = "rejected"
            self._exchange.status = error.status
            await _refuse(self._outlet, error, self._engine.options)
        except asyncio.CancelledError:
            if line.cut or self._exchange.outcome not in {"running", "stalled"}:
                raise
            await self._break_off_at_shutdown()

    def close(self, line: Line) -> None:
        """Record how the request ended."""
        if line.cut and self._exchange.outcome in {"waiting", "running", "stalled"}:
            self._exchange.outcome = "disconnected"
        if self._exchange.outcome != "rejected":
            self._engine.close(self._exchange)

    async def _admitted(self) -> None:
        faults = self._faults
        if faults.slow_accept_s:
            await asyncio.sleep(faults.slow_accept_s)
        if faults.status is not None:
            raise injected(faults.status)
        async with self._engine.place(self._exchange):
            self._exchange.outcome = "running"
            await (self._stream() if self._exchange.request.stream else self._answer())

    async def _stream(self) -> None:
        await self._outlet.open(200, EVENT_STREAM)
        if self._faults.first_event_error is not None:
            await self._fail_stream(injected(self._faults.first_event_error))
            return
        await asyncio.sleep(self._tempo.first_token_delay_s)
        self._engine.prefill(self._exchange)
        if isinstance(self._writer, GenerateWriter):
            self._writer.cached = self._exchange.cached_ids
        at, how = self._breakage()
        count = len(self._ids) if at is None else at
        whole_ending = self._ending if at is None else None
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
        if breakage is None or breakage[0] > len(self._ids):
            return None, None
        return breakage

    async def _write(self, start: int, end: int, ending: Ending | None) -> None:
        ids = self._ids[start:end]
        self._engine.say(self._exchange, ids)
        await self._outlet.write(self._writer.events(ids, self._tempo.ids_per_event, ending))

    async def _finish_stream(self, ending: Ending) -> None:
        self._exchange.outcome = ending.finish
        usage = self._writer.usage(self._engine.usage_of(self._exchange))
        await self._outlet.close(usage + DONE)

    async def _fail_stream(self, error: SimulatedError) -> None:
        self._exchange.outcome = "error"
        await self._outlet.close(event(event_of(error, self._engine.options.engine)) + DONE)

    async def _break_off(self, how: str) -> None:
        self._exchange.outcome = how
        match how:
            case "error":
                await self._fail_stream(SimulatedError(500, ENGINE_DEAD))
            case "end":
                await self._outlet.close()
            case "stall":
                self._exchange.outcome = "stalled"
                await asyncio.sleep(self._engine.options.stall_max_s)
                self._exchange.outcome = "stall"
                await self._outlet.cut()
            case _:
                await self._outlet.cut()

    async def _break_off_at_shutdown(self) -> None:
        # A terminated vLLM ends its streams with `abort`.
        if self._exchange.request.stream:
            await self._outlet.write(self._writer.events([], 1, Ending("abort")))
            await self._finish_stream(Ending("abort"))
        else:
            await self._answer_with(Ending("abort"))

    async def _answer(self) -> None:
        if self._faults.first_event_error is not None:
            raise injected(self._faults.first_event_error)
        at, how = self._breakage()
        ids = self._ids[:at]
        tempo = self._tempo
        await asyncio.sleep(tempo.first_token_delay_s + tempo.duration_s(len(ids)))
        self._engine.prefill(self._exchange)
        self._engine.say(self._exchange, ids)
        if how is None or how == "abort":
            await self._answer_with(Ending("abort") if how else self._ending)
        elif how == "error":
            raise SimulatedError(500, ENGINE_DEAD)
        else:
            await self._break_off("stall" if how == "stall" else "die")

    async def _answer_with(self, ending: Ending) -> None:
        exchange = self._exchange
        exchange.outcome = ending.finish
        usage = self._engine.usage_of(exchange)
        await self._outlet.json(200, self._writer.body(exchange.sent.tolist(), ending, usage))
