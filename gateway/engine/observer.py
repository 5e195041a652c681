"""Reports of a run to operators: metrics and log events, never content."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway import ids
from gateway.errors import ClaimLost, ContentSealed, Overloaded, RequestError
from gateway.eventlog.fold.execution import backend_of
from gateway.telemetry.logs import EventLog
from gateway.telemetry.trace_context import PROVIDER, recorded
from gateway.tools.tool_contract import kind_of
from gateway.upstreams.attempt_span import sampling_attributes

if TYPE_CHECKING:
    from gateway.engine.output_guard import OutputViolation
    from gateway.engine.row_mapping import Attempt
    from gateway.engine.run_spec import RunSpec
    from gateway.entries import Finished, Hop
    from gateway.errors import UpstreamError
    from gateway.eventlog.fold.fold import Fold
    from gateway.telemetry.metrics import Metrics
    from gateway.telemetry.trace_context import Span
    from gateway.telemetry.tracing import Tracing

_TIERS: Final = {-1: "flex", 0: "default"}
"""By priority; any other is `priority`."""

MISHAPS_MAX: Final = 20
_log = EventLog(__name__)


class Mishap(NamedTuple):
    """Response that failed or was repaired, `at` unix seconds; only a `stored` one has a page."""

    at: int
    code: str
    response_id: str
    tenant: str
    model: str
    backend: str
    stored: bool


class Observer:
    def __init__(self, metrics: Metrics, tracing: Tracing | None = None) -> None:
        self._metrics = metrics
        self._tracing = tracing
        self.failures: deque[Mishap] = deque(maxlen=MISHAPS_MAX)
        self.repairs: deque[Mishap] = deque(maxlen=MISHAPS_MAX)

    def begin_detached(self, name: str, spec: RunSpec) -> Span | None:
        """Begin and enter the span of a `background` run or a `takeover`."""
        if self._tracing is None:
            return None
        described = {
            "gen_ai.response.id": ids.response_id(spec.head.uuid),
            "harmony.tenant": spec.principal.tenant_name,
            "openai.api.type": "responses",
        }
        return self._tracing.run(name, spec.traceparent, described)

    def first_token(self, spec: RunSpec, seconds: float) -> None:
        # `seconds` since the request.
        trace_id = "" if (span := recorded()) is None else span.trace_id
        self._metrics.first_token(model=spec.model, seconds=seconds, trace_id=trace_id)

    def failed(self, spec: RunSpec, error: Exception) -> None:
        """Count and log an error that ended a run; a `RequestError` is the caller's."""
        if isinstance(error, RequestError):
            return
        # Refusals by the database are counted there.
        if isinstance(error, (ClaimLost, ContentSealed)):
            self._metrics.store_failed(type(error).__name__)
        # An overload refuses many, as it should: that is no fault of each.
        tell = _log.warning if isinstance(error, Overloaded) else _log.error
        tell("a response failed", **_names(spec), error=error)

    def tool_ended(self, spec: RunSpec, attempt: Attempt) -> None:
        kind = kind_of(attempt.call.name)
        self._metrics.tool_ended(
            kind=kind,
            outcome=attempt.outcome,
            seconds=attempt.seconds,
            result_ids=attempt.result_ids,
        )
        _log.info(
            "a hosted tool was called",
            **_names(spec),
            kind=kind,
            outcome=attempt.outcome,
            seconds=round(attempt.seconds, 3),
            attempt=attempt.call.attempt,
            count=attempt.call.ordinal,
            result_ids=attempt.result_ids,
        )

    def tool_failed(self, spec: RunSpec, error: BaseException) -> None:
        # A tool of the gateway raised an exception that it should not. The model gets an error
        # result.
        _log.error("a hosted tool failed", **_names(spec), error=error)

    def hopped(self, spec: RunSpec, hop: Hop) -> None:
        self._metrics.hopped(hop.reason)
        self._metrics.recomputed(hop.recomputed_tokens)
        _log.info(
            "a generation goes on elsewhere",
            **_names(spec),
            reason=hop.reason,
            recomputed_tokens=hop.recomputed_tokens,
        )

    def backend_left(self, spec: RunSpec, error: UpstreamError) -> None:
        _log.warning("a backend is left", **_names(spec), upstream=error.upstream, error=error)

    def constrained(self, upstream: str, *, is_constrained: bool) -> None:
        # A backend began to work on a turn whose output is checked.
        self._metrics.bound_turn(upstream, "constrained" if is_constrained else "held")

    def repaired(self, spec: RunSpec, rule: str, voided: int, upstream: str) -> None:
        self._metrics.repaired(rule=rule, upstream=upstream, voided=voided)
        self.repairs.append(_mishap(spec, int(time.time()), rule, upstream))
        _log.info("a turn is repaired", **_names(spec), upstream=upstream, rule=rule, count=voided)

    def output_violated(self, spec: RunSpec, error: OutputViolation) -> None:
        _log.warning("a model does not obey", **_names(spec), code=error.code)

    def claim_lost(self, spec: RunSpec, epoch: int) -> None:
        # Another replica has claimed the response, so generation stops here.
        _log.info("a response is left to others", **_names(spec), epoch=epoch)

    def finished(self, spec: RunSpec, finished: Finished, fold: Fold) -> None:
        usage, model = fold.usage, spec.model
        if finished.status == "failed":
            backend = backend_of(fold.timeline.moments)
            code = finished.code or "server_error"
            self.failures.append(_mishap(spec, finished.at, code, backend))
        self._metrics.response_finished(
            status=finished.status,
            model=model,
            input_tokens=usage.input_tokens,
            cached=usage.cached_tokens,
            output=usage.output_tokens,
            reasoning=usage.reasoning_tokens,
            recoveries=fold.recoveries,
        )
        self._metrics.tenant_used(
            spec.principal.tenant_id.hex,
            spec.principal.tenant_name,
            input_tokens=usage.input_tokens,
            output=usage.output_tokens,
        )
        if fold.output_tokens and not fold.shown.is_visible:
            self._metrics.empty_output()
        if (span := recorded()) is not None:
            span.set(_described(spec, finished, fold))
            if finished.status == "failed" and finished.code is not None:
                span.fail(finished.code)
        _log.info(
            "response ended",
            response_id=ids.response_id(spec.head.uuid),
            tenant=spec.principal.tenant_name,
            model=model,
            status=finished.status,
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            recomputed_tokens=usage.recomputed_tokens,
        )


def _described(spec: RunSpec, finished: Finished, fold: Fold) -> dict[str, Any]:
    # Attributes of the span of a response.
    # Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
    usage, tier = fold.usage, _TIERS.get(spec.priority, "priority")
    described: dict[str, Any] = {
        **sampling_attributes(spec.sampling),
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": spec.model,
        "gen_ai.request.stream": spec.streamed,
        "gen_ai.response.id": ids.response_id(spec.head.uuid),
        "gen_ai.response.model": spec.model,
        "gen_ai.response.finish_reasons": [finished.reason or finished.status],
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        "openai.response.service_tier": tier,
        "harmony.tier": tier,
        "harmony.hops": fold.hops,
        "harmony.repairs": sum(fold.recoveries.values()),
        "harmony.recomputed_tokens": usage.recomputed_tokens,
    }
    if spec.conversation is not None:
        described["gen_ai.conversation.id"] = ids.conversation_id(spec.conversation.uuid)
    return described


def _mishap(spec: RunSpec, at: int, code: str, backend: str) -> Mishap:
    response_id, tenant = ids.response_id(spec.head.uuid), spec.principal.tenant_name
    return Mishap(at, code, response_id, tenant, spec.model, backend, spec.store)


def _names(spec: RunSpec) -> dict[str, Any]:
    return {"response_id": ids.response_id(spec.head.uuid), "model": spec.model}
