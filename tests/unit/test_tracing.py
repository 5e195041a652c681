"""Spans: what decides whether they are recorded, what they are linked to, and what they tell."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.errors import ConfigError
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.trace_context import CURRENT, recorded
from gateway.telemetry.tracing import Tracing
from gateway.tools.mcp.server_tools import call_meta
from gateway.wiring.foundation import Foundation
from tests.fakes.gateway import gateway_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from opentelemetry.sdk.trace import ReadableSpan

    from gateway.telemetry.trace_context import Span

TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
PARENT: Final = "b7ad6b7169203331"
SAMPLED: Final = f"00-{TRACE}-{PARENT}-01"
UNSAMPLED: Final = f"00-{TRACE}-{PARENT}-00"


class Recording:
    """Traces of which the spans are kept here."""

    def __init__(self, ratio: float) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracing = Tracing(ratio=ratio, owner="r-1", metrics=Metrics(), exporter=self._exporter)

    def request(self, *traceparents: str, trusted: bool = False) -> Span:
        headers = [(b"traceparent", one.encode()) for one in traceparents]
        return self.tracing.request("POST", headers, trusts_parent=trusted)

    async def spans(self) -> dict[str, ReadableSpan]:
        """What was recorded, by name."""
        await self.tracing.close()
        return {span.name: span for span in self._exporter.get_finished_spans()}


@asynccontextmanager
async def recording(ratio: float = 1.0) -> AsyncIterator[Recording]:
    one = Recording(ratio)
    try:
        yield one
    finally:
        await one.tracing.close()


def _ids(context: Any) -> tuple[str, str]:
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


@pytest.mark.parametrize(
    "traceparents",
    [
        (),
        ("",),
        ("00-1-2-01",),
        (f"00-{'0' * 32}-{PARENT}-01",),
        (f"ff-{TRACE}-{PARENT}-01",),
        (SAMPLED, SAMPLED),
        ("\xff" * 600,),
    ],
)
async def test_headers_that_name_no_span_are_ignored(traceparents: tuple[str, ...]) -> None:
    async with recording() as one:
        for trusted in (True, False):
            one.request(*traceparents, trusted=trusted).end()
        (span,) = (await one.spans()).values()
    assert span.parent is None
    assert not span.links


async def test_a_trusted_parent_decides_whatever_the_ratio() -> None:
    async with recording(0.0) as one:
        span = one.request(SAMPLED, trusted=True)
        assert span.headers["traceparent"] == f"00-{TRACE}-{span.span_id}-01"
        span.end()
        assert one.request(SAMPLED).is_recorded is False
    async with recording(1.0) as one:
        assert one.request(UNSAMPLED, trusted=True).is_recorded is False


async def test_the_span_of_a_request_is_current_until_it_ends() -> None:
    async with recording() as one:
        assert CURRENT.get() is None
        request = one.request()
        child = request.child("chat", "client", {"server.port": 1})
        assert recorded() is child
        child.end()
        assert recorded() is request
        request.end()
        assert CURRENT.get() is None
        spans = await one.spans()
    parent = spans["chat"].parent
    assert parent is not None
    assert _ids(parent) == (request.trace_id, request.span_id)


async def test_what_is_not_recorded_is_passed_on_as_such() -> None:
    async with recording(0.0) as one:
        span = one.request()
        assert recorded() is None
        assert CURRENT.get() is span
        assert int(span.headers["traceparent"][-2:], 16) & 1 == 0
        assert call_meta(UUID(int=1), 0, 1.0)["traceparent"] == span.headers["traceparent"]
        span.end()
        assert await one.spans() == {}


async def test_a_run_is_recorded_if_its_request_was() -> None:
    async with recording(0.0) as one:
        one.tracing.run("takeover", SAMPLED, {"a": 1}).end()
        for traceparent in (UNSAMPLED, "", "damaged"):
            assert one.tracing.run("background", traceparent, {}).is_recorded is False
        spans = await one.spans()
    (run,) = spans.values()
    assert (run.name, run.parent) == ("takeover", None)
    assert [_ids(link.context) for link in run.links] == [(TRACE, PARENT)]


async def test_a_span_that_has_ended_is_told_nothing_more() -> None:
    async with recording() as one:
        span = one.request()
        span.end()
        span.set({"a": 1})
        span.fail("server_error")
        (kept,) = (await one.spans()).values()
    assert not kept.attributes
    assert kept.status.is_unset


async def test_the_environment_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "edge")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=staging")
    async with recording() as one:
        one.request().end()
        (span,) = (await one.spans()).values()
    named = span.resource.attributes
    assert named["service.name"] == "edge"
    assert named["deployment.environment.name"] == "staging"
    assert named["service.instance.id"] == "r-1"


def test_traces_without_the_sdk_are_a_mistake_in_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "gateway.telemetry.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    settings = gateway_settings(
        "postgresql://u:p@127.0.0.1:9/d", ["http://127.0.0.1:9"], telemetry={"traces": True}
    )
    with pytest.raises(ConfigError, match=r"^telemetry\.traces: .* not installed") as raised:
        Foundation.of(settings)
    assert "otel" in raised.value.remedy
