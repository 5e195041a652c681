"""Containers elsewhere, by `worker_server.py`. Their unguessable ids are handles: runs outlive the
gateway that began them.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote

import httpx2
import orjson
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict, override

from gateway.tools.egress.network_policy import EgressRefused
from gateway.tools.python.container_engine import (
    INTERRUPT_GRACE_S,
    Container,
    ContainerCapabilities,
    ContainerEngine,
    EngineBroken,
    EngineName,
    FileRefused,
    RunResult,
)

if TYPE_CHECKING:
    from gateway.tools.egress.transport import EgressClient
    from gateway.tools.python.container_engine import ContainerLimits

T = TypeVar("T")

ANSWER_TIMEOUT_S: Final = 20.0
"""For all that is no run."""
RETRIES: Final = 3
RETRY_PAUSE_S: Final = 0.2
_ID_CHARS_MAX: Final = 128
_ERRORS: Final = (httpx2.HTTPError, httpx2.StreamError, EgressRefused)


class _Opened(TypedDict):
    id: str


_CAPABILITIES: Final = TypeAdapter(ContainerCapabilities)
_OPENED: Final = TypeAdapter(_Opened)
_RAN: Final = TypeAdapter(RunResult)


class RemoteContainer(Container):
    def __init__(self, client: EgressClient, container_id: str) -> None:
        self._client = client
        self._path = f"containers/{quote(container_id, safe='')}"
        self._handle = container_id.encode()
        self._is_gone = False

    @property
    @override
    def handle(self) -> bytes:
        return self._handle

    @property
    @override
    def is_alive(self) -> bool:
        return not self._is_gone

    @override
    async def run(self, code: str, *, timeout_s: float, key: str = "") -> RunResult:
        # The run goes on when the connection breaks, so its result is requested again.
        key = key or secrets.token_hex(8)
        patience_s = timeout_s + INTERRUPT_GRACE_S + ANSWER_TIMEOUT_S
        body = orjson.dumps({"key": key, "code": code, "timeout_s": timeout_s})
        try:
            try:
                ran = _ran(await self._ask("POST", "/runs", body, timeout_s=patience_s))
            except EngineBroken:
                if (late := await self._retry_result(key, patience_s)) is None:
                    raise
                ran = late
        except asyncio.CancelledError:
            with suppress(EngineBroken):
                await self._ask("POST", "/interrupt", orjson.dumps({"key": key}))
            raise
        except EngineBroken:
            self._is_gone = True
            raise
        self._is_gone = ran.status == "killed"
        return ran

    async def _retry_result(self, key: str, timeout_s: float) -> RunResult | None:
        for _ in range(RETRIES):
            await asyncio.sleep(RETRY_PAUSE_S)
            with suppress(EngineBroken):
                return await self.result_of(key, timeout_s=timeout_s)
        return None

    @override
    async def result_of(self, key: str, *, timeout_s: float) -> RunResult | None:
        place = f"/runs/{quote(key, safe='')}?wait_s={timeout_s:g}"
        answer = await self._ask("GET", place, timeout_s=timeout_s + ANSWER_TIMEOUT_S)
        return None if answer.status_code == 404 else _ran(answer)

    @override
    async def put(self, path: str, content: bytes) -> None:
        await self._file("PUT", path, content)

    @override
    async def get(self, path: str, *, bytes_max: int) -> bytes:
        return (await self._file("GET", path, more=f"&bytes_max={bytes_max}")).content

    @override
    async def remove(self, path: str) -> None:
        await self._file("DELETE", path)

    @override
    async def leave(self) -> None:
        # The server keeps the container.
        pass

    @override
    async def close(self) -> None:
        # A server that cannot be reached ends the container when it is idle.
        self._is_gone = True
        with suppress(EngineBroken):
            await self._ask("DELETE", "")

    async def check(self) -> bool:
        # True if the server still has the container. Raises `EngineBroken`.
        return (await self._ask("GET", "")).status_code != 404

    async def _file(
        self, method: str, path: str, content: bytes | None = None, *, more: str = ""
    ) -> httpx2.Response:
        place = f"/files?path={quote(path, safe='')}{more}"
        answer = await self._ask(method, place, content)
        if answer.status_code == 422:
            raise FileRefused(f"{path}: {answer.text[:200]}")
        if answer.status_code == 404:
            self._is_gone = True
            raise EngineBroken("the container is gone")
        return answer

    async def _ask(
        self,
        method: str,
        place: str,
        content: bytes | None = None,
        *,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> httpx2.Response:
        return await _ask(self._client, method, self._path + place, content, timeout_s)


class RemoteEngine(ContainerEngine):
    """Server of containers. `client` has its URL and the token."""

    name: EngineName = "remote"

    def __init__(self, client: EgressClient) -> None:
        self._client = client

    @override
    async def describe(self) -> ContainerCapabilities:
        described = _parsed(_CAPABILITIES, await _ask(self._client, "GET", ""))
        return replace(described, is_movable=True)

    @override
    async def open(self, limits: ContainerLimits) -> RemoteContainer:
        body, patience_s = orjson.dumps(limits), limits.start_timeout_s + ANSWER_TIMEOUT_S
        answer = await _ask(self._client, "POST", "containers", body, patience_s)
        container_id = _parsed(_OPENED, answer)["id"]
        if not 0 < len(container_id) <= _ID_CHARS_MAX:
            raise EngineBroken("the server of containers gave no id")
        return RemoteContainer(self._client, container_id)

    @override
    async def attach(self, handle: bytes) -> RemoteContainer | None:
        container = RemoteContainer(self._client, handle.decode("utf-8", "replace"))
        return container if await container.check() else None

    @override
    async def close(self) -> None:
        await self._client.aclose()


async def _ask(
    client: EgressClient,
    method: str,
    url: str,
    content: bytes | None = None,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> httpx2.Response:
    # Answers 404 and 422 are for the caller. Raises `EngineBroken`.
    try:
        answer = await client.request(method, url, content=content, timeout=timeout_s)
    except _ERRORS as error:
        raise EngineBroken(f"the server of containers cannot be reached: {error}") from error
    return answer if answer.status_code in {404, 422} else _accepted(answer)


def _accepted(answer: httpx2.Response) -> httpx2.Response:
    if answer.status_code >= 300:
        text = answer.text[:200]
        raise EngineBroken(f"the server of containers answered {answer.status_code}: {text}")
    return answer


def _ran(answer: httpx2.Response) -> RunResult:
    if answer.status_code == 404:
        raise EngineBroken("the container is gone")
    return _parsed(_RAN, answer)


def _parsed(kind: TypeAdapter[T], answer: httpx2.Response) -> T:
    try:
        return kind.validate_json(_accepted(answer).content)
    except ValidationError as error:
        raise EngineBroken("the server of containers said something else") from error
