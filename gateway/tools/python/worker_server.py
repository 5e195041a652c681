"""Containers for gateways elsewhere: an engine of this machine, over HTTP.

    GET    /                                          what its containers can do
    POST   /containers           limits               {"id": …}: a new container
    GET    /containers/ID                             204, or 404 for one that is gone
    DELETE /containers/ID
    POST   /containers/ID/runs   key, code, timeout_s the result, once it is over
    GET    /containers/ID/runs/KEY?wait_s=            the same of a run that was begun
    POST   /containers/ID/interrupt   key             nobody waits for that run any more
    PUT    /containers/ID/files?path=                 422: why it was refused
    GET    /containers/ID/files?path=&bytes_max=
    DELETE /containers/ID/files?path=

A run belongs to its container, not to the connection that began it: a client that was cut off
repeats the request with the same key, for which it is begun once.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gateway.tools.python.container_engine import (
    TIMEOUT_MAX_S,
    ContainerLimits,
    EngineBroken,
    FileRefused,
    RunResult,
    data_path,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from gateway.tools.python.container_engine import Container, ContainerEngine

SWEEP_INTERVAL_S: Final = 15.0
RUNS_MAX: Final = 16
"""Runs of a container: results that are kept, and runs that are not over."""


@dataclass(frozen=True, slots=True)
class WorkerServerLimits:
    """`unused_s`: idle time of a container that was opened, and then not used. Whoever opened it
    may be gone, and not know its id.
    """

    containers_max: int = 64
    idle_s: float = 1200.0
    unused_s: float = 60.0
    body_bytes_max: int = 64 * 1024**2 + 1024


class RunRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    key: str = Field(min_length=1, max_length=200)
    code: str
    timeout_s: float = Field(gt=0, le=TIMEOUT_MAX_S)


class InterruptRequest(BaseModel):
    key: str


_LIMITS: Final = TypeAdapter(ContainerLimits)


@dataclass(slots=True)
class ServedContainer:
    """Container with its runs by key."""

    container: Container
    used_at: float
    is_used: bool = False
    runs: dict[str, asyncio.Task[RunResult]] = field(default_factory=dict)

    @property
    def is_busy(self) -> bool:
        return any(not run.done() for run in self.runs.values())


class WorkerServer:
    """ASGI application for a network that only gateways reach. `run` has to run beside it."""

    def __init__(
        self, engine: ContainerEngine, token: str, limits: WorkerServerLimits | None = None
    ) -> None:
        self._engine = engine
        self._token = f"Bearer {token}".encode()
        self._limits = limits or WorkerServerLimits()
        self._served: dict[str, ServedContainer] = {}
        self._opening = 0
        one = "/containers/{container_id}"
        self._app = Starlette(
            routes=[
                Route("/", self._describe),
                Route("/containers", self._open, methods=["POST"]),
                Route(one, self._look, methods=["GET"]),
                Route(one, self._delete, methods=["DELETE"]),
                Route(f"{one}/runs", self._run, methods=["POST"]),
                Route(f"{one}/runs/{{key:path}}", self._result),
                Route(f"{one}/interrupt", self._interrupt, methods=["POST"]),
                Route(f"{one}/files", self._get, methods=["GET"]),
                Route(f"{one}/files", self._put, methods=["PUT"]),
                Route(f"{one}/files", self._remove, methods=["DELETE"]),
            ],
            exception_handlers={
                ValidationError: _answered(400),
                FileRefused: _answered(422),
                EngineBroken: _answered(404),
            },
        )

    async def run(self) -> None:
        # Ends idle containers until cancelled.
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            await self.sweep()

    async def sweep(self) -> None:
        now, limits = self._time(), self._limits
        for container_id, served in list(self._served.items()):
            idle_s = limits.idle_s if served.is_used else limits.unused_s
            if served.used_at < now - idle_s and not served.is_busy:
                await self._end(container_id)

    async def close(self) -> None:
        for container_id in list(self._served):
            await self._end(container_id)
        await self._engine.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            shown = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(shown, self._token):
                refusal = PlainTextResponse("show the token of this server", 401)
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _describe(self, _: Request) -> Response:
        return Response(orjson.dumps(await self._engine.describe()))

    async def _open(self, request: Request) -> Response:
        limits = _LIMITS.validate_json(await self._body(request))
        container_id = secrets.token_hex(16)
        self._opening += 1
        try:
            if len(self._served) + self._opening > self._limits.containers_max:
                await self._make_room()
            container = await self._engine.open(limits)
            self._served[container_id] = ServedContainer(container, self._time())
        finally:
            self._opening -= 1
        return Response(orjson.dumps({"id": container_id}))

    async def _make_room(self) -> None:
        # Ends the container that was idle longest. Raises `HTTPException` where all run code, or
        # are being opened.
        idle = [(one.used_at, name) for name, one in self._served.items() if not one.is_busy]
        if not idle:
            raise HTTPException(503, "every container runs code; try again later")
        await self._end(min(idle)[1])

    async def _look(self, request: Request) -> Response:
        self._find(request)
        return Response(status_code=204)

    async def _delete(self, request: Request) -> Response:
        self._find(request)
        await self._end(request.path_params["container_id"])
        return Response(status_code=204)

    async def _run(self, request: Request) -> Response:
        served = self._find(request)
        run_request = RunRequest.model_validate_json(await self._body(request))
        run = served.runs.get(run_request.key)
        if run is None:
            if sum(not one.done() for one in served.runs.values()) >= RUNS_MAX:
                raise HTTPException(503, "this container has too many runs; try again later")
            loop = asyncio.get_running_loop()
            work = served.container.run(
                run_request.code, timeout_s=run_request.timeout_s, key=run_request.key
            )
            run = served.runs[run_request.key] = loop.create_task(work)
            # Retrieve the exception, because the result may never be requested.
            run.add_done_callback(lambda over: over.cancelled() or over.exception())
            for key in list(served.runs)[:-RUNS_MAX]:
                if served.runs[key].done():
                    del served.runs[key]
        return await self._await_run(served, run)

    async def _result(self, request: Request) -> Response:
        served = self._find(request)
        run = served.runs.get(request.path_params["key"])
        if run is None:
            raise HTTPException(404, "no run has this key")
        try:
            wait_s = min(float(request.query_params.get("wait_s", "0")), TIMEOUT_MAX_S)
        except ValueError:
            wait_s = math.nan
        if math.isnan(wait_s):
            raise HTTPException(400, "wait_s is no number")
        await asyncio.wait({run}, timeout=wait_s)
        if not run.done():
            raise HTTPException(404, "the run is not over")
        return await self._await_run(served, run)

    async def _await_run(self, served: ServedContainer, run: asyncio.Task[RunResult]) -> Response:
        # The run goes on when the client disconnects.
        await asyncio.wait({run})
        served.used_at = self._time()
        if run.cancelled():
            raise HTTPException(404, "the run was interrupted")
        return Response(run.result().model_dump_json())

    async def _interrupt(self, request: Request) -> Response:
        served = self._find(request)
        key = InterruptRequest.model_validate_json(await self._body(request)).key
        if (run := served.runs.get(key)) is not None:
            run.cancel()
            await asyncio.wait({run})
        return Response(status_code=204)

    async def _get(self, request: Request) -> Response:
        served, path = self._find(request), _path(request)
        try:
            requested = int(request.query_params.get("bytes_max", "0"))
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        bytes_max = min(requested, self._limits.body_bytes_max)
        return Response(await served.container.get(path, bytes_max=bytes_max))

    async def _put(self, request: Request) -> Response:
        served, path = self._find(request), _path(request)
        await served.container.put(path, await self._body(request))
        return Response(status_code=204)

    async def _remove(self, request: Request) -> Response:
        await self._find(request).container.remove(_path(request))
        return Response(status_code=204)

    def _find(self, request: Request) -> ServedContainer:
        served = self._served.get(request.path_params["container_id"])
        if served is None or not served.container.is_alive:
            raise HTTPException(404, "there is no such container")
        served.used_at, served.is_used = self._time(), True
        return served

    async def _end(self, container_id: str) -> None:
        served = self._served.pop(container_id, None)
        if served is None:
            return
        for run in served.runs.values():
            run.cancel()
        if served.runs:
            await asyncio.wait(served.runs.values())
        with suppress(EngineBroken):
            await served.container.close()

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        try:
            async for part in request.stream():
                body += part
                if len(body) > self._limits.body_bytes_max:
                    raise HTTPException(413, "the body is too long")
        except ClientDisconnect:
            raise HTTPException(400, "the request broke off") from None
        return bytes(body)

    @staticmethod
    def _time() -> float:
        return asyncio.get_running_loop().time()


def _path(request: Request) -> str:
    try:
        return data_path(request.query_params.get("path", ""))
    except ValueError as error:
        raise HTTPException(400, str(error)) from None


def _answered(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(_: Request, error: Exception) -> Response:
        return PlainTextResponse(str(error), status)

    return answer
