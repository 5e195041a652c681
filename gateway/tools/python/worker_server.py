"""Containers for gateways elsewhere: an engine of this machine, over HTTP.

    GET    /                                          what its containers can do
    POST   /containers           limits               {"id": …}: a new container
    GET    /containers/ID                             204, or 404 for one that is gone
    DELETE /containers/ID
    POST   /containers/ID/runs   key, code, timeout_s what came of the run, once it is over
    GET    /containers/ID/runs/KEY?wait_s=            the same of a run that was begun; 404: unknown
    POST   /containers/ID/interrupt   key             nobody waits for that run any more
    PUT    /containers/ID/files?path=                 write a file
    GET    /containers/ID/files?path=&bytes_max=      read one
    DELETE /containers/ID/files?path=

Every request shows a token. A run belongs to its container, not to the connection that asked for
it: who was cut off asks again under the same key. A run is begun once for its key. 422 says why a
file was refused. A container that is not used for `idle_s` is ended.

It is an ASGI application; any server runs it, behind a network that only gateways reach.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gateway.tools.python.container_engine import (
    TIMEOUT_MAX_S,
    ContainerLimits,
    EngineBroken,
    FileRefused,
    RunResult,
    data_path,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence

    from gateway.tools.python.container_engine import Container, ContainerEngine

    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

SWEEP_INTERVAL_S: Final = 15.0
RUNS_MAX: Final = 16
"""Runs of a container whose results are kept."""


@dataclass(frozen=True, slots=True)
class WorkerServerLimits:
    """Limits of a server: the number of containers, their idle time, and the size of a body."""

    containers_max: int = 64
    idle_s: float = 1200.0
    body_bytes_max: int = 64 * 1024**2 + 1024


class RunRequest(BaseModel):
    """The body of a request to run code."""

    model_config = ConfigDict(extra="forbid")

    key: str = Field(min_length=1, max_length=200)
    code: str
    timeout_s: float = Field(gt=0, le=TIMEOUT_MAX_S)


class InterruptRequest(BaseModel):
    """The body of a request to interrupt a run."""

    key: str


_LIMITS: Final = TypeAdapter(ContainerLimits)


class Answered(Exception):
    """The answer to a request that is refused."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class ServedContainer:
    """A container with its runs by key. Times are of the loop's clock."""

    container: Container
    used_at: float
    runs: dict[str, asyncio.Task[RunResult]] = field(default_factory=dict)

    @property
    def is_busy(self) -> bool:
        return any(not run.done() for run in self.runs.values())


class WorkerServer:
    """The application. `run` has to run beside it; `close` ends all containers."""

    def __init__(
        self, engine: ContainerEngine, token: str, limits: WorkerServerLimits | None = None
    ) -> None:
        self._engine = engine
        self._token = f"Bearer {token}".encode()
        self._limits = limits or WorkerServerLimits()
        self._served: dict[str, ServedContainer] = {}

    async def run(self) -> None:
        # Ends idle containers until cancelled.
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            await self.sweep()

    async def sweep(self) -> None:
        """End the containers that were idle for too long."""
        oldest = asyncio.get_running_loop().time() - self._limits.idle_s
        for container_id, served in list(self._served.items()):
            if served.used_at < oldest and not served.is_busy:
                await self._end(container_id)

    async def close(self) -> None:
        """End all containers, with all files and variables in them."""
        for container_id in list(self._served):
            await self._end(container_id)
        await self._engine.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            return
        try:
            self._check_token(scope)
            status, body = await self._answer(scope, receive)
        except Answered as refusal:
            status, body = refusal.status, str(refusal).encode()
        except ValidationError as error:
            status, body = 400, str(error).encode()
        except FileRefused as error:
            status, body = 422, str(error).encode()
        except EngineBroken as error:
            status, body = 404, str(error).encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _check_token(self, scope: Scope) -> None:
        shown = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(shown, self._token):
            raise Answered(401, "show the token of this server")

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        path, query = scope["raw_path"].decode("ascii").partition("?")[0], scope["query_string"]
        parts = [unquote(part) for part in path.split("/") if part]
        parameters = dict(parse_qsl(query.decode("ascii", "replace")))
        body = await self._body(receive)
        match scope["method"], parts:
            case "GET", []:
                return await self._describe()
            case "POST", ["containers"]:
                return await self._open(body)
            case method, ["containers", container_id]:
                return await self._one(method, container_id)
            case method, ["containers", container_id, "files"]:
                return await self._file(method, self._find(container_id), parameters, body)
            case method, ["containers", container_id, *rest]:
                return await self._of_runs(method, self._find(container_id), rest, parameters, body)
            case _:
                raise Answered(404, "there is nothing here")

    async def _of_runs(
        self,
        method: str,
        served: ServedContainer,
        parts: Sequence[str],
        parameters: Mapping[str, str],
        body: bytes,
    ) -> tuple[int, bytes]:
        match method, parts:
            case "POST", ["runs"]:
                return await self._run(served, RunRequest.model_validate_json(body))
            case "GET", ["runs", key]:
                return await self._result(served, key, parameters)
            case "POST", ["interrupt"]:
                key = InterruptRequest.model_validate_json(body).key
                return await self._interrupt(served, key)
            case _:
                raise Answered(404, "there is nothing here")

    async def _describe(self) -> tuple[int, bytes]:
        return 200, orjson.dumps(await self._engine.describe())

    async def _open(self, body: bytes) -> tuple[int, bytes]:
        limits = _LIMITS.validate_json(body)
        if len(self._served) >= self._limits.containers_max:
            await self._make_room()
        container = await self._engine.open(limits)
        container_id = secrets.token_hex(16)
        self._served[container_id] = ServedContainer(container, self._time())
        return 200, orjson.dumps({"id": container_id})

    async def _make_room(self) -> None:
        # Ends the container that was idle longest. Raises `Answered` where all run code.
        idle = [(one.used_at, name) for name, one in self._served.items() if not one.is_busy]
        if not idle:
            raise Answered(503, "every container runs code; try again later")
        await self._end(min(idle)[1])

    async def _one(self, method: str, container_id: str) -> tuple[int, bytes]:
        self._find(container_id)
        if method == "DELETE":
            await self._end(container_id)
        return 204, b""

    async def _run(self, served: ServedContainer, request: RunRequest) -> tuple[int, bytes]:
        run = served.runs.get(request.key)
        if run is None:
            loop = asyncio.get_running_loop()
            work = served.container.run(request.code, timeout_s=request.timeout_s, key=request.key)
            run = served.runs[request.key] = loop.create_task(work)
            # It may be that nobody asks what came of it.
            run.add_done_callback(lambda over: over.cancelled() or over.exception())
            for key in list(served.runs)[:-RUNS_MAX]:
                if served.runs[key].done():
                    del served.runs[key]
        return await self._await_run(served, run)

    async def _result(
        self, served: ServedContainer, key: str, parameters: Mapping[str, str]
    ) -> tuple[int, bytes]:
        run = served.runs.get(key)
        if run is None:
            raise Answered(404, "no run has this key")
        try:
            wait_s = min(float(parameters.get("wait_s", "0")), TIMEOUT_MAX_S)
        except ValueError:
            raise Answered(400, "wait_s is no number") from None
        await asyncio.wait({run}, timeout=wait_s)
        if not run.done():
            raise Answered(404, "the run is not over")
        return await self._await_run(served, run)

    async def _await_run(
        self, served: ServedContainer, run: asyncio.Task[RunResult]
    ) -> tuple[int, bytes]:
        # The run goes on when the client disconnects.
        await asyncio.wait({run})
        served.used_at = self._time()
        if run.cancelled():
            raise Answered(404, "the run was interrupted")
        return 200, run.result().model_dump_json().encode()

    async def _interrupt(self, served: ServedContainer, key: str) -> tuple[int, bytes]:
        if (run := served.runs.get(key)) is not None:
            run.cancel()
            await asyncio.wait({run})
        return 204, b""

    async def _file(
        self, method: str, served: ServedContainer, parameters: Mapping[str, str], body: bytes
    ) -> tuple[int, bytes]:
        try:
            path = data_path(parameters.get("path", ""))
            bytes_max = min(int(parameters.get("bytes_max", "0")), self._limits.body_bytes_max)
        except ValueError as error:
            raise Answered(400, str(error)) from None
        match method:
            case "PUT":
                await served.container.put(path, body)
            case "GET":
                return 200, await served.container.get(path, bytes_max=bytes_max)
            case "DELETE":
                await served.container.remove(path)
            case _:
                raise Answered(405, "a file is written, read or deleted")
        return 204, b""

    def _find(self, container_id: str) -> ServedContainer:
        served = self._served.get(container_id)
        if served is None or not served.container.is_alive:
            raise Answered(404, "there is no such container")
        served.used_at = self._time()
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

    async def _body(self, receive: Receive) -> bytes:
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Answered(400, "the request broke off")
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._limits.body_bytes_max:
                raise Answered(413, "the body is too long")
        return bytes(body)

    @staticmethod
    def _time() -> float:
        return asyncio.get_running_loop().time()


async def _live(receive: Receive, send: Send) -> None:
    # ASGI lifespan: nothing to start or stop.
    for kind in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{kind}.complete"})
