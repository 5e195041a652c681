"""Kubernetes' API server, as far as EndpointSlices go: lists in pages, and watches over chunks."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from tests.fakes.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.responses import Response

Events = asyncio.Queue[dict[str, Any] | bytes | None]
PATH = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"


def endpoint(
    address: str, *, pod: str = "", ready: bool | None = True, terminating: bool = False
) -> dict[str, Any]:
    """One server of a slice."""
    conditions: dict[str, Any] = {"serving": bool(ready), "terminating": terminating}
    if ready is not None:
        conditions["ready"] = ready
    made: dict[str, Any] = {"addresses": [address], "conditions": conditions, "nodeName": "n-1"}
    if pod:
        made["targetRef"] = {"kind": "Pod", "namespace": "llm", "name": pod, "uid": "u-" + pod}
    return made


def slice_of(
    name: str, *endpoints: dict[str, Any], port: int = 8000, family: str = "IPv4", version: int = 1
) -> dict[str, Any]:
    """An EndpointSlice of the service `vllm`."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": "llm",
            "labels": {"kubernetes.io/service-name": "vllm"},
            "resourceVersion": str(version),
        },
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
    }


@dataclass
class ApiServer:
    """`slices` are what there is; `change` and `remove` tell whoever watches."""

    slices: dict[str, dict[str, Any]] = field(default_factory=dict)
    token: str = "first"
    page: int = 500
    version: int = 10
    oldest: int = 0
    """Watches from before it are answered 410."""
    asked: list[dict[str, str]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    watchers: set[Events] = field(default_factory=set)
    watched: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    def put(self, name: str, *endpoints: dict[str, Any], **options: Any) -> None:
        """Make or change a slice."""
        self.version += 1
        kind = "MODIFIED" if name in self.slices else "ADDED"
        self.slices[name] = slice_of(name, *endpoints, version=self.version, **options)
        self.tell({"type": kind, "object": self.slices[name]})

    def remove(self, name: str) -> None:
        self.version += 1
        gone = self.slices.pop(name)
        gone["metadata"]["resourceVersion"] = str(self.version)
        self.tell({"type": "DELETED", "object": gone})

    def bookmark(self) -> None:
        """Nothing has changed, up to here."""
        thing = {"kind": "EndpointSlice", "metadata": {"resourceVersion": str(self.version)}}
        self.tell({"type": "BOOKMARK", "object": thing})

    def expire(self) -> None:
        """Forget what was, and say so in the middle of the watches, as etcd's compaction does."""
        self.version += 1
        self.oldest = self.version
        self.tell({"type": "ERROR", "object": gone_status()})
        self.hang_up()

    def hang_up(self) -> None:
        """End the watches."""
        self.watched.clear()
        for watcher in self.watchers:
            watcher.put_nowait(None)

    def raw(self, line: bytes) -> None:
        """Tell whoever watches what is no event."""
        for watcher in self.watchers:
            watcher.put_nowait(line)

    def tell(self, event: dict[str, Any]) -> None:
        for watcher in self.watchers:
            watcher.put_nowait(event)

    async def serve(self, request: Request) -> Response:
        query = dict(request.query_params)
        self.asked.append(query)
        token = request.headers["authorization"].removeprefix("Bearer ")
        self.tokens.append(token)
        if token != self.token:
            return JSONResponse({"kind": "Status", "message": "Unauthorized"}, status_code=401)
        if query.get("watch") == "true":
            return self._watch(int(query["resourceVersion"]))
        return self._list(query)

    def _list(self, query: dict[str, str]) -> Response:
        begin, items = int(query.get("continue") or 0), list(self.slices.values())
        end = begin + self.page
        metadata: dict[str, Any] = {"resourceVersion": str(self.version)}
        if end < len(items):
            metadata["continue"] = str(end)
        body = {"kind": "EndpointSliceList", "metadata": metadata, "items": items[begin:end]}
        return JSONResponse(body)

    def _watch(self, since: int) -> Response:
        if since < self.oldest:
            return JSONResponse(gone_status(), status_code=410)
        events: Events = asyncio.Queue()
        for one in self.slices.values():
            if int(one["metadata"]["resourceVersion"]) > since:
                events.put_nowait({"type": "MODIFIED", "object": one})
        self.watchers.add(events)
        self.watched.set()
        return StreamingResponse(self._events(events), media_type="application/json")

    async def _events(self, events: Events) -> AsyncIterator[bytes]:
        try:
            while (event := await events.get()) is not None:
                told = event if isinstance(event, bytes) else json.dumps(event).encode()
                line = told + b"\n"
                # A chunk of HTTP may end anywhere.
                yield line[: len(line) // 2]
                yield line[len(line) // 2 :]
        finally:
            self.watchers.discard(events)


def gone_status() -> dict[str, Any]:
    return {
        "kind": "Status",
        "status": "Failure",
        "reason": "Expired",
        "message": "too old resource version",
        "code": 410,
    }


@asynccontextmanager
async def api_server() -> AsyncIterator[ApiServer]:
    """An API server that answers while entered."""
    server = ApiServer()
    app = Starlette(routes=[Route(PATH, server.serve)])
    async with serving(app) as url:
        server.url = url
        try:
            yield server
        finally:
            server.hang_up()
