"""Backends from Kubernetes: the ready endpoints of a service, as its API server tells them.

All slices of the service are listed, then watched from there on. A watch that ends is begun again
where it was; where the server does not know that place any more (410 Gone), all are listed anew.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import httpx2
import orjson

from gateway.upstreams.client import build_client, read_body
from gateway.upstreams.http.connection import ConnectionLimits
from gateway.upstreams.http.transport import KeepAlivePolicy
from gateway.upstreams.membership.desired import Fault
from gateway.upstreams.membership.endpoint_slices import endpoints, key_of, version_of
from gateway.upstreams.membership.source import SourceError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
    from pathlib import Path

    from gateway.upstreams.backend import Backend
    from gateway.upstreams.client import Client
    from gateway.upstreams.membership.desired import Answer
    from gateway.upstreams.membership.source import BackendTemplate

WATCH_S: Final = 240
"""Seconds after which the server ends a watch: one of which nothing comes may be dead."""
PAUSES_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""After a watch, after one failure, after two in a row, and so on."""
PAGE_SLICES: Final = 500
PAGES_MAX: Final = 64
_BODY_BYTES_MAX: Final = 16 * 1024 * 1024
_LINE_BYTES_MAX: Final = 4 * 1024 * 1024
_GONE: Final = 410
_OK: Final = 200
_REASON_CHARS_MAX: Final = 200


class Gone(SourceError):
    """The server does not know any more what has changed since then."""


@dataclass(frozen=True, slots=True)
class PodAccount:
    """How a pod shows the API server who it is. The files are read for each request: a token is
    replaced about once an hour, and what signs the server's certificate now and then.
    """

    token: Path
    authority: Path
    namespace: Path

    @classmethod
    def of(cls, folder: Path) -> PodAccount:
        """The account whose files are in this folder."""
        return cls(folder / "token", folder / "ca.crt", folder / "namespace")


@dataclass(frozen=True, slots=True)
class KubernetesService:
    """A service, and the API server that knows it. `namespace` None: the account's. `port` None:
    the first of a slice. `api_url` raises `SourceError` where there is none.
    """

    name: str
    api_url: Callable[[], str]
    account: PodAccount
    namespace: str | None = None
    port: int | None = None


class KubernetesSource:
    """The ready endpoints of one service."""

    empty_s = 0.0

    def __init__(
        self,
        name: str,
        service: KubernetesService,
        template: BackendTemplate,
        *,
        answer_s: float = 5.0,
        random: Random | None = None,
    ) -> None:
        """An answer may take `answer_s` seconds."""
        self.name = name
        self._service = service
        self._account = service.account
        self._template = template
        self._answer_s = answer_s
        self._random = random or Random()  # noqa: S311 - spreads load, no secret
        self._slices: dict[str, Mapping[str, Any]] = {}
        self._version = ""

    async def fetch(self) -> tuple[Backend, ...]:
        """All that there are now. Raises `SourceError`."""
        async with self._client() as client:
            slices, _ = await self._list(client)
        return self._backends(slices)

    async def watch(self) -> AsyncGenerator[Answer]:
        """All that there are, whenever the server tells that something has changed."""
        failures = 0
        while True:
            try:
                async with aclosing(self._session()) as session:
                    async for backends in session:
                        failures = 0
                        yield backends
            except Gone:
                self._version = ""
            except SourceError as error:
                yield Fault(str(error))
            pause_s = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
            failures += 1
            await asyncio.sleep(pause_s * self._random.uniform(0.5, 1.0))

    async def _session(self) -> AsyncGenerator[tuple[Backend, ...]]:
        """List, unless it is known from where on to watch, and watch once."""
        async with self._client() as client:
            if not self._version:
                self._slices, self._version = await self._list(client)
            async with aclosing(self._watch(client)) as watched:
                async for backends in watched:
                    yield backends

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        """A client that trusts whom the account trusts now."""
        context = None
        if self._service.api_url().startswith("https:"):
            try:
                context = ssl.create_default_context(cafile=self._account.authority)
            except (OSError, ssl.SSLError) as error:
                raise SourceError(f"cannot read {self._account.authority}: {error}") from error
        keep_alive = KeepAlivePolicy(connections_max=4)
        async with build_client(
            keep_alive=keep_alive, limits=ConnectionLimits(), ssl_context=context
        ) as client:
            yield client

    async def _list(self, client: Client) -> tuple[dict[str, Mapping[str, Any]], str]:
        """All slices of the service, and from where on to watch. Raises `SourceError`."""
        slices: dict[str, Mapping[str, Any]] = {}
        query = {"limit": str(PAGE_SLICES)}
        for _ in range(PAGES_MAX):
            async with self._answer(client, query, read_s=self._answer_s) as response:
                page = _object(await self._body(response))
            items, metadata = page.get("items"), page.get("metadata")
            if not isinstance(items, list | None) or not isinstance(metadata, dict):
                raise SourceError("the API server's answer is not a list")
            slices |= {key_of(one): one for one in items or () if isinstance(one, dict)}
            token = metadata.get("continue")
            if not token:
                return slices, version_of(page)
            query["continue"] = token
        raise SourceError(f"more than {PAGES_MAX * PAGE_SLICES} slices")

    async def _watch(self, client: Client) -> AsyncGenerator[tuple[Backend, ...]]:
        """The backends after each change, until the server ends the watch. Raises `SourceError`."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(WATCH_S),
        }
        read_s = WATCH_S + self._answer_s
        async with self._answer(client, query, read_s=read_s) as response:
            # The source is well from here on, even if nothing changes for hours.
            yield self._backends(self._slices)
            async for line in _lines(response):
                if self._take(_object(line)):
                    yield self._backends(self._slices)

    def _take(self, event: Mapping[str, Any]) -> bool:
        """Follow one event of a watch; True if a slice is another now. Raises `SourceError`."""
        kind, thing = event.get("type"), event.get("object")
        if not isinstance(thing, dict):
            raise SourceError("the API server told an event that is none")
        if kind == "ERROR":
            if thing.get("code") == _GONE:
                raise Gone("too old")
            raise SourceError(f"the watch failed: {_status_message(thing)}")
        self._version = version_of(thing) or self._version
        key = key_of(thing)
        if kind in {"ADDED", "MODIFIED"}:
            self._slices[key] = thing
        elif kind == "DELETED":
            self._slices.pop(key, None)
        return kind != "BOOKMARK"

    @asynccontextmanager
    async def _answer(
        self, client: Client, query: Mapping[str, str], *, read_s: float
    ) -> AsyncIterator[httpx2.Response]:
        """The answer to a question about the slices of the service. Raises `SourceError`."""
        namespace = self._service.namespace or _text(self._account.namespace)
        label = {"labelSelector": f"kubernetes.io/service-name={self._service.name}"}
        path = f"/apis/discovery.k8s.io/v1/namespaces/{quote(namespace, safe='')}/endpointslices"
        request = client.build_request(
            "GET",
            f"{self._service.api_url()}{path}?{urlencode({**label, **query})}",
            headers={"authorization": f"Bearer {_text(self._account.token)}"},
            timeout=httpx2.Timeout(self._answer_s, read=read_s),
        )
        try:
            async with asyncio.timeout(self._answer_s):
                response = await client.send(request, stream=True)
        except (httpx2.TransportError, TimeoutError) as error:
            raise SourceError(f"the API server does not answer: {_error_text(error)}") from error
        try:
            if response.status_code != _OK:
                await self._refuse(response)
            yield response
        except httpx2.TransportError as error:
            raise SourceError(f"the API server broke off: {_error_text(error)}") from error
        finally:
            await response.aclose()

    async def _body(self, response: httpx2.Response) -> bytes:
        try:
            async with asyncio.timeout(self._answer_s):
                return await read_body(response.aiter_raw(), _BODY_BYTES_MAX)
        except TimeoutError as error:
            raise SourceError("the API server takes too long") from error

    async def _refuse(self, response: httpx2.Response) -> None:
        body = _object(await self._body(response))
        if response.status_code == _GONE:
            raise Gone("too old")
        raise SourceError(f"the API server answers {response.status_code}: {_status_message(body)}")

    def _backends(self, slices: Mapping[str, Mapping[str, Any]]) -> tuple[Backend, ...]:
        """Raises `SourceError` where one cannot be a backend; all are listed anew then, because a
        watch would be broken off again before it could tell that this is mended.
        """
        try:
            return tuple(
                self._template.backend(one.place, one.name)
                for one in endpoints(list(slices.values()), self._service.port)
            )
        except SourceError:
            self._version = ""
            raise


async def _lines(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Each event of a watch: one line of JSON. What ends without a line's end is broken off."""
    rest = b""
    async for part in response.aiter_raw():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
        if len(rest) > _LINE_BYTES_MAX:
            raise SourceError(f"an event of the API server has more than {_LINE_BYTES_MAX} bytes")


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _text(path: Path) -> str:
    try:
        text = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"cannot read {path}: {error}") from error
    if not text.isprintable():
        raise SourceError(f"{path} has more than one line")
    return text


def _status_message(status: Mapping[str, Any]) -> str:
    return str(status.get("message") or "without a message")[:_REASON_CHARS_MAX]


def _error_text(error: Exception) -> str:
    return str(error) or type(error).__name__
