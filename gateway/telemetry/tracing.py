"""Traces, sent by OpenTelemetry's SDK; imported only where `telemetry.traces` is on.

The SDK reads its environment variables itself; the sampler is ours. Spans never hold what users or
models say. The queue of spans is bounded, and no request waits for a collector.
"""

from __future__ import annotations

import asyncio
import logging
import os
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_QUEUE_SIZE
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import (
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from typing_extensions import override

from gateway import __version__
from gateway.telemetry.logs import EventLog
from gateway.telemetry.trace_context import CURRENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextvars import Token

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

    from gateway.telemetry.metrics import Metrics
    from gateway.telemetry.trace_context import Attributes, Span, SpanKind

FLUSH_MAX_S: Final = 2.0
"""Seconds that an ending process waits for its last spans."""
REASON_CHARS_MAX: Final = 200
QUEUE_SPANS_MAX: Final = 2_048
"""The SDK's default."""
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_SDK: Final = logging.getLogger("opentelemetry")
_SENDERS: Final = ("opentelemetry.sdk", "opentelemetry.exporter")

_log = EventLog(__name__)


class OtelSpan:
    """Span that is the current one as soon as it is made."""

    __slots__ = ("_span", "_token", "_tracer", "is_recorded", "span_id", "trace_id")

    def __init__(self, span: trace.Span, tracer: trace.Tracer) -> None:
        context = span.get_span_context()
        self._span = span
        self._tracer = tracer
        self.is_recorded = span.is_recording()
        self.trace_id = trace.format_trace_id(context.trace_id) if self.is_recorded else ""
        self.span_id = trace.format_span_id(context.span_id) if self.is_recorded else ""
        self._token: Token[Span | None] | None = CURRENT.set(self)

    @property
    def headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        _PROPAGATOR.inject(headers, trace.set_span_in_context(self._span, Context()))
        return headers

    @property
    def link(self) -> trace.Link:
        return trace.Link(self._span.get_span_context())

    def child(self, name: str, kind: SpanKind, attributes: Attributes) -> Span:
        parent = trace.set_span_in_context(self._span, Context())
        kinds = {"client": trace.SpanKind.CLIENT, "internal": trace.SpanKind.INTERNAL}
        begun = self._tracer.start_span(name, parent, kinds[kind], attributes)
        return OtelSpan(begun, self._tracer)

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def set(self, attributes: Attributes) -> None:
        if self._span.is_recording():
            self._span.set_attributes(attributes)

    def fail(self, error_type: str) -> None:
        if self._span.is_recording():
            self._span.set_attribute("error.type", error_type)
            self._span.set_status(trace.StatusCode.ERROR)

    def leave(self) -> None:
        if self._token is not None:
            CURRENT.reset(self._token)
            self._token = None

    def end(self) -> None:
        self._span.end()
        self.leave()


class Tracing:
    """Spans of one process, `owner`, which records the share `ratio`."""

    def __init__(
        self, *, ratio: float, owner: str, metrics: Metrics, exporter: SpanExporter | None = None
    ) -> None:
        # `exporter` None: the collector that the environment names.
        self._complaints = Complaints()
        _SDK.addHandler(self._complaints)
        _SDK.propagate = False
        # Attributes of the process in the environment take precedence over these.
        resource = Resource.create(
            {
                "service.name": "harmony-gateway",
                "service.version": __version__,
                "service.instance.id": owner,
            }
        ).merge(OTELResourceDetector().detect())
        sending = Exporter(exporter or OTLPSpanExporter(), self._complaints, metrics)
        processor = SpanQueue(sending, metrics)
        self._requests = _provider(ParentBased(TraceIdRatioBased(ratio)), resource, processor)
        self._tracer = self._requests.get_tracer("gateway", __version__)
        followers = _provider(FollowsLink(), resource, processor)
        self._followers = followers.get_tracer("gateway", __version__)

    def request(
        self, name: str, headers: Iterable[tuple[bytes, bytes]], *, trusts_parent: bool
    ) -> OtelSpan:
        """Begin the span of a request. The span that `headers` name is its parent, or else linked:
        an untrusted client must not decide what is recorded.
        """
        remote = _remote(headers)
        parent, links = Context(), list[trace.Link]()
        if remote is not None and trusts_parent:
            parent = trace.set_span_in_context(trace.NonRecordingSpan(remote), parent)
        elif remote is not None:
            links.append(trace.Link(remote))
        kind = trace.SpanKind.SERVER
        return OtelSpan(self._tracer.start_span(name, parent, kind, links=links), self._tracer)

    def turn(self, name: str, connection: OtelSpan | None) -> OtelSpan:
        """Begin a trace, linked to the span of its connection."""
        links = () if connection is None or not connection.is_recorded else (connection.link,)
        begun = self._tracer.start_span(name, Context(), trace.SpanKind.SERVER, links=links)
        return OtelSpan(begun, self._tracer)

    def run(self, name: str, traceparent: str, attributes: Attributes) -> Span:
        """Begin the trace of a run that outlives its request, `traceparent` (empty: not recorded):
        it is linked, and recorded if that was.
        """
        request = _remote([(b"traceparent", traceparent.encode())])
        links = () if request is None else (trace.Link(request),)
        kind = trace.SpanKind.CONSUMER
        begun = self._followers.start_span(name, Context(), kind, attributes, links=links)
        return OtelSpan(begun, self._tracer)

    async def close(self) -> None:
        # The SDK waits longer; a thread of asyncio would keep the process until it is done.
        flushing = Thread(target=self._requests.shutdown, name="last-spans", daemon=True)
        flushing.start()
        await asyncio.to_thread(flushing.join, FLUSH_MAX_S)
        if flushing.is_alive():
            _log.warning("the last spans were not sent in time")
        _SDK.removeHandler(self._complaints)


class FollowsLink(Sampler):
    @override
    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: trace.SpanKind | None = None,
        attributes: Any = None,
        links: Sequence[trace.Link] | None = None,
        trace_state: trace.TraceState | None = None,
    ) -> SamplingResult:
        follows = any(link.context.trace_flags.sampled for link in links or ())
        decision = Decision.RECORD_AND_SAMPLE if follows else Decision.DROP
        return SamplingResult(decision, attributes if follows else None)

    @override
    def get_description(self) -> str:
        return type(self).__name__


class Complaints(logging.Handler):
    """Logs what the SDK complains of: once, until spans are sent again."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._has_warned = False

    @override
    def emit(self, record: logging.LogRecord) -> None:
        # Other parts complain of headers, which anybody may send.
        if not self._has_warned and record.name.startswith(_SENDERS):
            self._has_warned = True
            reason = record.getMessage()[:REASON_CHARS_MAX]
            _log.warning("spans are lost, or may be; requests are not affected", reason=reason)

    def spans_sent(self) -> None:
        if self._has_warned:
            self._has_warned = False
            _log.info("spans are sent again")


class Exporter(SpanExporter):
    def __init__(self, exporter: SpanExporter, complaints: Complaints, metrics: Metrics) -> None:
        self.taken = 0
        """Spans that have left the queue."""
        self._exporter = exporter
        self._complaints = complaints
        self._metrics = metrics

    @override
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            is_sent = result is SpanExportResult.SUCCESS
            self._metrics.spans_left("sent" if is_sent else "lost", len(spans))
        if is_sent:
            self._complaints.spans_sent()
        return result

    @override
    def shutdown(self) -> None:
        self._exporter.shutdown()


class SpanQueue(BatchSpanProcessor):
    """Queue that counts the spans it drops. Spans come in the event loop's thread and leave in the
    SDK's: each has its own count.
    """

    def __init__(self, exporter: Exporter, metrics: Metrics) -> None:
        chosen = os.environ.get(OTEL_BSP_MAX_QUEUE_SIZE, "")  # noqa: TID251 - a variable of the SDK
        self._spans_max = int(chosen) if chosen.isdecimal() else QUEUE_SPANS_MAX
        super().__init__(exporter, max_queue_size=self._spans_max)
        self._sending = exporter
        self._metrics = metrics
        self._queued = 0

    @override
    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            if self._queued - self._sending.taken >= self._spans_max:
                self._metrics.spans_left("lost", 1)
            else:
                self._queued += 1
        super().on_end(span)


def _provider(
    sampler: Sampler, resource: Resource, processor: BatchSpanProcessor
) -> TracerProvider:
    provider = TracerProvider(sampler, resource, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return provider


def _remote(headers: Iterable[tuple[bytes, bytes]]) -> SpanContext | None:
    # None if the headers name no span, or not as W3C's Trace Context has it.
    named: dict[str, list[str]] = {}
    for name, value in headers:
        if name in {b"traceparent", b"tracestate"}:
            named.setdefault(name.decode(), []).append(value.decode("latin-1"))
    if len(named.get("traceparent", ())) != 1:
        return None
    context = trace.get_current_span(_PROPAGATOR.extract(named, Context())).get_span_context()
    return context if context.is_valid else None
