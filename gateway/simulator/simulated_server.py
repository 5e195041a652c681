"""The simulated server. It is scripted: rules choose what it says, there is no model in it.

Routes of vLLM: `/v1/completions`, `/v1/chat/completions`, `/v1/models`, `/health`, `/ping`,
`/version`, `/load` and `/metrics`; of SGLang: those but for the last three, and `/ready`,
`/model_info`, `/server_info` and its older name; of ours: `/`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gateway.errors import GatewayError
from gateway.simulator.completion_wire import DONE, Ending, event, reply_to
from gateway.simulator.directives import __doc__ as directives_text
from gateway.simulator.simulated_engine import SimulatedEngine
from gateway.simulator.simulated_errors import ENGINE_DEAD, SimulatedError, injected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.simulator.directives import Attempts, Directives
    from gateway.simulator.scripted_turns import Continuation
    from gateway.simulator.simulated_engine import Exchange
    from gateway.simulator.simulator_options import SimulatorOptions

_LANDING: Final = f"""This is the simulated backend of Harmony Gateway.

It speaks the token API of vLLM or SGLang (POST /v1/completions) and their chat API, but
there is no model in it: what it says is scripted, chosen by rules from the conversation, and means
nothing.

{directives_text}"""
WRITE_EVENTS_MAX: Final = 64
"""Events joined into one write when a stream is behind its pace or has none."""


def create_simulator(options: SimulatorOptions, attempts: Attempts | None = None) -> ASGIApp:
    """Return the ASGI app of one instance.

    Instances in one process may share `attempts`, so that `times=1` means once for all of them.
    Raises `ConfigError` for a bad fault plan, `VocabularyError` for a damaged rank file.
    """
    return Simulator(SimulatedEngine(options, attempts))


class Simulator:
    """The ASGI application. Completions bypass Starlette: they need the server's own `send`."""

    def __init__(self, engine: SimulatedEngine, more: Sequence[Route] = ()) -> None:
        # Routes of `more` precede those of the same path.
        self._engine = engine
        self._others = Starlette(
            routes=[*more, *_routes(engine)],
            exception_handlers={HTTPException: _detail, SimulatedError: _error},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        if is_post and scope["path"] in self._engine.paths:
            await _complete(self._engine, scope, receive, Outlet(send))
        else:
            await self._others(scope, receive, send)


def _routes(engine: SimulatedEngine) -> list[Route]:
    options, started = engine.options, int(time.time())

    async def health(_: Request) -> Response:
        return Response(status_code=engine.faults.standing.faults.health or 200)

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": engine.model_rows(started)})

    async def completions(_: Request) -> Response:
        raise HTTPException(405, headers={"allow": "POST"})

    async def landing(_: Request) -> Response:
        return PlainTextResponse(_LANDING)

    async def version(_: Request) -> Response:
        return JSONResponse({"version": options.engine_version})

    async def load(_: Request) -> Response:
        return JSONResponse({"server_load": engine.running})

    async def metrics(_: Request) -> Response:
        media_type = "text/plain; version=1.0.0; charset=utf-8"
        return Response(engine.metrics(), media_type=media_type)

    async def server_info(_: Request) -> Response:
        return JSONResponse(engine.server_info())

    async def model_info(_: Request) -> Response:
        name = options.models[0]
        return JSONResponse({"model_path": name, "served_model_name": name})

    of_engine = {
        "vllm": [
            Route("/version", version),
            Route("/load", load),
            Route("/metrics", metrics),
        ],
        "sglang": [
            *([Route("/ready", health)] if options.has_ready else []),
            Route("/server_info", server_info),
            Route("/get_server_info", server_info),
            Route("/model_info", model_info),
        ],
    }
    return [
        *of_engine[options.engine],
        Route("/", landing),
        Route("/health", health),
        Route("/ping", health, methods=["GET", "POST"]),
        Route("/v1/models", models),
        *(Route(path, completions) for path in engine.paths),
    ]


async def _detail(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = {"detail": error.detail}
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _error(_: Request, error: Exception) -> Response:
    assert isinstance(error, SimulatedError)
    return JSONResponse(error.body(), status_code=error.status)


@dataclass(frozen=True, slots=True)
class Tempo:
    """The pace of one stream: the request's wish, else the instance's setting."""

    tokens_per_s: float | None
    ids_per_event: int
    first_token_delay_s: float

    @classmethod
    def of(cls, options: SimulatorOptions, asked: Directives) -> Tempo:
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


async def _complete(
    engine: SimulatedEngine, scope: Scope, receive: Receive, outlet: Outlet
) -> None:
    try:
        completion = await _begun(engine, scope, receive, outlet)
    except SimulatedError as error:
        await _refuse(outlet, error, engine.options)
    except ClientGone:
        return
    else:
        async with while_connected(receive) as line:
            await completion.run(line)
        completion.close(line)


async def _refuse(outlet: Outlet, error: SimulatedError, options: SimulatorOptions) -> None:
    if error.as_event:
        await outlet.open(200, EVENT_STREAM)
        await outlet.close(event(error.event(options.engine)) + DONE)
    else:
        await outlet.json(error.status, error.body(options.engine))


async def _begun(
    engine: SimulatedEngine, scope: Scope, receive: Receive, outlet: Outlet
) -> _Completion:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    body = await read_body(receive, engine.options.body_bytes_max)
    if not headers.get("content-type", "").startswith("application/json"):
        message = "Unsupported Media Type: Only 'application/json' is allowed"
        raise SimulatedError(400, f"1 validation error:\n  {message}", kind="Bad Request")
    request = await engine.read(body, scope["path"])
    continuation = await engine.continuation(request)
    exchange = engine.begin(request, continuation, headers)
    return _Completion(engine, outlet, exchange, await engine.held(continuation, request))


class _Completion:
    """Request in progress. `exchange.outcome` always says how far it has come."""

    def __init__(
        self,
        engine: SimulatedEngine,
        outlet: Outlet,
        exchange: Exchange,
        continuation: Continuation,
    ) -> None:
        self._engine = engine
        self._outlet = outlet
        self._exchange = exchange
        self._ids, self._ending = reply_to(exchange.request, continuation)
        self._faults = continuation.directives.faults
        self._tempo = Tempo.of(engine.options, continuation.directives)
        self._writer = engine.writer(self._head(), exchange.request)

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
        usage = self._writer.usage(self._engine.usage(self._exchange))
        await self._outlet.close(usage + DONE)

    async def _fail_stream(self, error: SimulatedError) -> None:
        self._exchange.outcome = "error"
        await self._outlet.close(event(error.event(self._engine.options.engine)) + DONE)

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
        usage = self._engine.usage(exchange)
        await self._outlet.json(200, self._writer.body(exchange.sent.tolist(), ending, usage))

    def _head(self) -> dict[str, Any]:
        exchange = self._exchange
        request_id = exchange.request_id or secrets.token_hex(8)
        prefix, kind = "cmpl-", "text_completion"
        if exchange.request.chat_rules is not None:
            prefix, kind = "chatcmpl-", "chat.completion.chunk"
        is_sglang = self._engine.options.engine == "sglang"
        return {
            "id": request_id if is_sglang else f"{prefix}{request_id}",
            "object": kind,
            "created": int(time.time()),
            "model": exchange.request.model,
        }
