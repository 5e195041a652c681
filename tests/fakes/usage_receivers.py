"""Receivers of usage over HTTP: one of CloudEvents, and one that takes meter events as Stripe does.

What Stripe says of what it does not take is from its reference and from langfuse#16292, where a
duplicate was recorded: 400, `invalid_request_error`, "An event already exists with identifier …".
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

if TYPE_CHECKING:
    from starlette.requests import Request

METER_EVENTS = "/v1/billing/meter_events"
PAST_S = 35 * 86_400
AHEAD_S = 300


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

    def app(self) -> Router:
        return Router([Route("/events", self._take, methods=["POST"])])

    async def _take(self, request: Request) -> Response:
        assert request.headers["content-type"] == "application/cloudevents-batch+json"
        self.headers.append(dict(request.headers))
        for event in orjson.loads(await request.body()):
            assert event["specversion"] == "1.0"
            assert all(isinstance(value, str) for value in event["data"].values())
            key = (event["source"], event["id"])
            assert self.events.setdefault(key, event) == event, "the same id says something else"
            self.seen[key] += 1
        self.took.set()
        return Response(status_code=self.statuses.pop(0) if self.statuses else 202)


@dataclass
class StripeReceiver:
    """`now` is its clock. `faults` are what it answers next, though it has taken the event."""

    now: float
    names: frozenset[str]
    secret: str = "sk_test_1"
    faults: list[int] = field(default_factory=list)
    events: dict[str, dict[str, str]] = field(default_factory=dict)
    duplicates: int = 0
    url: str = ""

    def app(self) -> Router:
        return Router([Route(METER_EVENTS, self._take, methods=["POST"])])

    def total(self, event_name: str, customer: str) -> int:
        """What the meter of this name says of a customer."""
        return sum(
            int(event["payload[value]"])
            for event in self.events.values()
            if event["event_name"] == event_name
            and event["payload[stripe_customer_id]"] == customer
        )

    async def _take(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {self.secret}":
            return _refusal(401, "Invalid API Key provided: sk_****")
        async with request.form() as form:
            event = {name: str(value) for name, value in form.items()}
        identifier, at = event["identifier"], int(event["timestamp"])
        if identifier in self.events:
            self.duplicates += 1
            return _refusal(400, f"An event already exists with identifier {identifier}.")
        if event["event_name"] not in self.names:
            return _refusal(400, f"No active meter found for event name {event['event_name']}.")
        if not self.now - PAST_S <= at <= self.now + AHEAD_S or len(identifier) > 100:
            return _refusal(400, "The timestamp must be within the past 35 days.")
        self.events[identifier] = event
        if self.faults:
            return _refusal(self.faults.pop(0), "An unknown error occurred.")
        return JSONResponse({"object": "billing.meter_event", "identifier": identifier})


def _refusal(status: int, message: str) -> JSONResponse:
    error = {"error": {"type": "invalid_request_error", "message": message}}
    return JSONResponse(error, status, {"stripe-should-retry": "false"})
