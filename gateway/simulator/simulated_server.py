from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gateway.models.harmony.tokenizer import Vocabulary
from gateway.simulator.completion_wire import (
    CHAT_PATH,
    DONE,
    PATH,
    ChatWriter,
    Conversations,
    EventTails,
    EventWriter,
    SimulatedError,
    json_object,
    reply_to,
    request_of,
)
from gateway.simulator.scripted_model import read_prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.simulator.completion_wire import CompletionRequest, SimulatorOptions

_LANDING: Final = """This is the simulated backend of Harmony Gateway.

It speaks the token API of vLLM or SGLang (POST /v1/completions) and their chat API, but
there is no model in it: what it says is scripted, chosen by rules from the conversation, and means
nothing.
"""
WRITE_IDS_MAX: Final = 64
"""Ids whose events are joined into one write."""
EVENT_STREAM: Final = b"text/event-stream; charset=utf-8"
JSON: Final = b"application/json"


def create_simulator(options: SimulatorOptions) -> ASGIApp:
    return Simulator(SimulatedEngine(options))


class Simulator:
    """ASGI application. Completions bypass Starlette, which would build objects for each."""

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
            await self.complete(scope, receive, Outlet(send))
        else:
            await self._others(scope, receive, send)

    async def complete(self, scope: Scope, receive: Receive, outlet: Outlet) -> None:
        engine = self._engine
        try:
            request = await read_request(engine, scope, receive)
            rest = await engine.rest_of_turn(request)
        except SimulatedError as error:
            await outlet.json(error.status, error.body(engine.options.engine))
        except ClientDisconnect:
            return
        else:
            engine.running += 1
            try:
                await _answer(engine, outlet, request, rest)
            finally:
                engine.running -= 1


def _routes(engine: SimulatedEngine) -> list[Route]:
    options, started = engine.options, int(time.time())

    async def health(_: Request) -> Response:
        return Response()

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
        "vllm": [Route("/version", version), Route("/load", load), Route("/metrics", metrics)],
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


async def read_request(
    engine: SimulatedEngine, scope: Scope, receive: Receive
) -> CompletionRequest:
    body = await _read_body(receive, engine.options.body_bytes_max)
    if not dict(scope["headers"]).get(b"content-type", b"").startswith(JSON):
        message = "Unsupported Media Type: Only 'application/json' is allowed"
        raise SimulatedError(400, f"1 validation error:\n  {message}", kind="Bad Request")
    return await engine.read(body, scope["path"])


async def _read_body(receive: Receive, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > bytes_max:
            raise SimulatedError(413, f"The body is larger than {bytes_max} bytes.")
        if not message.get("more_body", False):
            return b"".join(parts)


class Outlet:
    def __init__(self, send: Send) -> None:
        self.send = send

    async def open(self, status: int, content_type: bytes, *headers: tuple[bytes, bytes]) -> None:
        await self.send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-type", content_type), *headers],
            }
        )

    async def write(self, data: bytes) -> None:
        # Waits while the client does not read.
        if data:
            await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def close(self, data: bytes = b"") -> None:
        await self.send({"type": "http.response.body", "body": data})

    async def json(self, status: int, document: dict[str, Any]) -> None:
        body = orjson.dumps(document)
        await self.open(status, JSON, (b"content-length", b"%d" % len(body)))
        await self.close(body)


async def _answer(
    engine: SimulatedEngine, outlet: Outlet, request: CompletionRequest, rest: list[int]
) -> None:
    ids, ending = reply_to(request, rest)
    writer = engine.writer(head_of(request, engine.options, request.id), request)
    usage = engine.usage(len(request.prompt), len(ids))
    if not request.stream:
        await outlet.json(200, writer.body(ids, ending, usage))
        return
    await outlet.open(200, EVENT_STREAM)
    for start in range(0, max(len(ids), 1), WRITE_IDS_MAX):
        end = min(start + WRITE_IDS_MAX, len(ids))
        is_last = end == len(ids)
        await outlet.write(writer.events(ids[start:end], 1, ending if is_last else None))
        await asyncio.sleep(0)  # other streams get their turn
    await outlet.close(writer.usage(usage) + DONE)


def head_of(
    request: CompletionRequest, options: SimulatorOptions, request_id: str | None
) -> dict[str, Any]:
    request_id = request_id or secrets.token_hex(8)
    prefix, kind = "cmpl-", "text_completion"
    if request.chat_rules is not None:
        prefix, kind = "chatcmpl-", "chat.completion.chunk"
    return {
        "id": request_id if options.engine == "sglang" else f"{prefix}{request_id}",
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
    }


class SimulatedEngine:
    """State that the requests of one server share."""

    def __init__(self, options: SimulatorOptions) -> None:
        self.options = options
        self.vocabulary = Vocabulary.load()
        self.conversations = Conversations(self.vocabulary, context_length=options.context_length)
        self.tails = EventTails(self.vocabulary)
        self.running = 0

    @property
    def paths(self) -> frozenset[str]:
        return frozenset({PATH, CHAT_PATH})

    async def read(self, body: bytes, path: str = PATH) -> CompletionRequest:
        if path == CHAT_PATH:
            return await asyncio.to_thread(self.conversations.read, body, self.options)
        return request_of(json_object(body), self.options)

    async def rest_of_turn(self, request: CompletionRequest) -> list[int]:
        reading = read_prompt(request.prompt, self.vocabulary)
        return await asyncio.to_thread(reading.rest) if reading.is_shaped else reading.rest()

    def writer(self, head: dict[str, Any], request: CompletionRequest) -> EventWriter:
        if request.chat_rules is None:
            return EventWriter(head, request, self.tails, self.options)
        parser = self.conversations.format.new_parser(request.chat_rules)
        return ChatWriter(head, request, self.tails, self.options, parser)

    def usage(self, prompt: int, completion: int) -> dict[str, Any]:
        usage = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }
        return usage | ({"reasoning_tokens": 0} if self.options.engine == "sglang" else {})

    def metrics(self) -> bytes:
        label = f'{{engine="0",model_name="{self.options.models[0]}"}}'
        gauges = {"vllm:num_requests_running": self.running, "vllm:num_requests_waiting": 0}
        lines = (f"# TYPE {name} gauge\n{name}{label} {at}\n" for name, at in gauges.items())
        return "".join(lines).encode()

    def server_info(self) -> dict[str, Any]:
        """Return those arguments of SGLang 0.5.23 that matter to the gateway."""
        options = self.options
        return {
            "served_model_name": options.models[0],
            "context_length": options.context_length,
            "grammar_backend": "xgrammar",
            "enable_priority_scheduling": True,
            "schedule_low_priority_values_first": False,
            "incremental_streaming_output": False,
            "stream_interval": 1,
            "enable_cache_report": False,
            "internal_states": [],
            "version": options.engine_version,
            "frontend": "python",
        }

    def model_rows(self, created: int) -> list[dict[str, Any]]:
        return [
            {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": self.options.engine,
                "root": name,
                "parent": None,
                "max_model_len": self.options.context_length,
                "permission": [],
            }
            for name in self.options.models
        ]
