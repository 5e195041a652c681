"""A receiver of usage over HTTP, as CloudEvents."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response
from starlette.routing import Route, Router

if TYPE_CHECKING:
    from starlette.requests import Request


@dataclass
class EventReceiver:
    """Keeps every CloudEvent once, by source and id. `statuses` are what it answers next, though it
    has taken what it was sent; then 202.
    """

    statuses: list[int] = field(default_factory=list)
    events: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    headers: list[dict[str, str]] = field(default_factory=list)
    took: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    secret: str | None = None
    """What it must be shown, if anything."""
    answer: bytes = b""

    def app(self) -> Router:
        return Router([Route("/events", self._take, methods=["POST"])])

    async def _take(self, request: Request) -> Response:
        assert request.headers["content-type"] == "application/cloudevents-batch+json"
        self.headers.append(dict(request.headers))
        if self.secret and request.headers.get("authorization") != f"Bearer {self.secret}":
            return Response(status_code=401)
        for event in orjson.loads(await request.body()):
            assert event["specversion"] == "1.0"
            assert all(isinstance(value, str) for value in event["data"].values())
            key = (event["source"], event["id"])
            assert self.events.setdefault(key, event) == event, "the same id says something else"
            self.seen[key] += 1
        self.took.set()
        return Response(self.answer, self.statuses.pop(0) if self.statuses else 202)
