from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from gateway.errors import UpstreamError, UpstreamRejected, UpstreamUnavailable
from gateway.telemetry.logs import EventLog
from gateway.telemetry.trace_context import recorded
from gateway.upstreams.attempt_span import Attempt, begin_call
from gateway.upstreams.engines import UnknownEngine
from gateway.upstreams.probe import NO_LOAD, CheckOutcome
from gateway.upstreams.problems import (
    BackendBusy,
    GrammarFailed,
    ModelGone,
    NoConnection,
    PathNotFound,
)
from gateway.upstreams.served_models import offers, parents

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from types import TracebackType
    from typing import Self

    from gateway.generation import TokenRequest, TokenSink
    from gateway.telemetry.metrics import Metrics
    from gateway.upstreams.admission.admit import Admission
    from gateway.upstreams.admission.queue import CountedRequest
    from gateway.upstreams.admission.slots import MemberSlots, Slot
    from gateway.upstreams.backend import Backend, Listed, ServedModel
    from gateway.upstreams.ejection import Health
    from gateway.upstreams.engines import Capabilities, InferenceEngine, Unusable
    from gateway.upstreams.inference_server import InferenceServer
    from gateway.upstreams.probe import Description, HealthCheck, ReportedLoad
    from gateway.upstreams.routing.costs import MemberLoad
    from gateway.upstreams.routing.router import FlightSink

_log = EventLog(__name__)


FaultSource = Literal["engine", "check", "models", "request"]

_EVENTS: Final[dict[FaultSource, str]] = {
    "engine": "backend is not used",
    "check": "backend is unreachable",
    "models": "backend does not say what it serves",
    "request": "backend is ejected",
}
"""Logged message of each source; the most important source first."""


class FaultReport:
    """Fault of one backend, logged once for each cause: several sources show the same one."""

    def __init__(self, upstream: str, url: str) -> None:
        self._upstream = upstream
        self._url = url
        self._causes: dict[FaultSource, str] = {}
        self._logged: str | None = None

    @property
    def worst(self) -> str | None:
        source = self._source()
        return None if source is None else self._causes[source]

    def begin(self, source: FaultSource, cause: str) -> None:
        self._causes[source] = cause
        self._log_change()

    def clear(self, source: FaultSource) -> None:
        if source in self._causes:
            del self._causes[source]
            self._log_change()

    def _source(self) -> FaultSource | None:
        return next((source for source in _EVENTS if source in self._causes), None)

    def _log_change(self) -> None:
        source, cause = self._source(), self.worst
        if cause == self._logged:
            return
        self._logged = cause
        if source is None or cause is None:
            _log.info("backend is back", upstream=self._upstream, url=self._url)
        else:
            _log.warning(_EVENTS[source], upstream=self._upstream, url=self._url, reason=cause)


class Member:
    """Backend of the pool; each request tells it something of its health."""

    def __init__(
        self,
        backend: Backend,
        server: InferenceServer,
        health: Health,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self.name = backend.name
        self.backend = backend
        self.health = health
        self.engine: InferenceEngine | None = None
        self.listed: Mapping[str, Listed] | None = None
        """By the names that the backend has; None until it has listed them."""
        self.models: Mapping[str, int | None] = {
            model: backend.context_lengths.get(model) for model in backend.models
        }
        """Context lengths by public id: of configured models, until it has listed its own."""
        self.parents: Mapping[str, str] = {}
        self.unusable: Unusable | None = None
        """Reason why it is never used."""
        self.is_drained = False
        self.has_left = asyncio.Event()
        self.is_idle = asyncio.Event()
        self.is_idle.set()
        self.slots: MemberSlots | None = None
        """Slots for requests; None without admission."""
        self.load: MemberLoad | None = None
        """Load as the router counts it; None without one."""
        self.reported = NO_LOAD
        """Nothing while it does not answer."""
        self._reported_at = 0.0
        self._server = server
        self._served: Mapping[str, ServedModel] = {}
        self._metrics = metrics
        self._clock = clock
        self.in_flight = 0
        """In this process."""
        self._reached = False
        self.has_failed_check = False
        self._faults = FaultReport(self.name, backend.base_url)

    @property
    def available(self) -> bool:
        return self.health.available(self._clock())

    @property
    def healthy(self) -> bool | None:
        """Return True if it takes requests; None until it has answered or failed long enough."""
        if self.unusable is not None or not self.health.healthy:
            return False
        return True if self._reached else None

    @property
    def is_late(self) -> bool:
        """Return True if nothing but late health checks speaks against the backend."""
        return self.unusable is None and self._reached and self.health.is_late

    @property
    def can(self) -> Capabilities | None:
        # None until the backend has described itself.
        return self._server.can if self.engine is not None else None

    @property
    def tokenize_path(self) -> str:
        return (self.engine or UnknownEngine()).tokenize_path

    def name_of(self, model: str) -> str:
        """Return the backend's name of a model; an adapter has its base model's template."""
        served = self._served.get(model)
        return model if served is None else served.parent or served.name

    @property
    def version(self) -> str | None:
        return self.engine.version if self.engine is not None else None

    @property
    def problem(self) -> str | None:
        return self._faults.worst

    async def generate(self, placed: PlacedRequest) -> None:
        started_at = self._clock()
        trial = self._begin(started_at)
        outcome, request, failure = "cancelled", placed.request, None
        attempt = None
        if (parent := recorded()) is not None:
            span = begin_call(parent, self.backend, "chat", request.model)
            attempt = Attempt(span, request, placed.sink)

        def finish() -> None:
            nonlocal outcome
            outcome = "ok"
            self.health.completed()
            self._faults.clear("request")
            placed.on_finish()

        try:
            if request.on_sent is not None:
                request.on_sent(self.name)
            await self._server.generate(
                request,
                attempt or placed.sink,
                on_first=partial(self._on_first_ids, started_at, placed),
                on_finish=finish,
                on_end=placed.on_end,
            )
        except UpstreamError as error:
            if isinstance(error, BackendBusy):
                placed.on_busy()
            outcome, failure = self._note_failure(error, request.model), error
            raise
        finally:
            if attempt is not None:
                attempt.end(outcome, failure)
            self._end(outcome, trial)

    def _begin(self, now: float) -> int:
        self.in_flight += 1
        self.is_idle.clear()
        self._metrics.upstream_started(self.name)
        return self.health.begin_trial(now)

    def _end(self, outcome: str, trial: int) -> None:
        self.in_flight -= 1
        if not self.in_flight:
            self.is_idle.set()
        self._metrics.upstream_finished(self.name, outcome)
        if trial:
            self.health.end_trial(trial)

    def served_as(self, model: str) -> str:
        return self._served[model].name if model in self._served else model

    async def ask(self, path: str, model: str, body: bytes, *, bytes_max: int) -> bytes:
        """Return the answer to a request that is no generation.

        Raises what `generate` does before a first chunk, and UpstreamFailed for a longer answer.
        """
        trial = self._begin(self._clock())
        outcome = "cancelled"
        span = None
        if (parent := recorded()) is not None:
            span = begin_call(parent, self.backend, path.rpartition("/")[2], model)
        try:
            answer = await self._server.ask(path, body, bytes_max=bytes_max)
            outcome = "ok"
            self.health.completed()
            self._faults.clear("request")
        except (ModelGone, PathNotFound):
            # It may lack the path, and serve the model otherwise; what it lists tells.
            self.health.answered()
            outcome = "unavailable"
            raise
        except UpstreamError as error:
            outcome = self._note_failure(error, model)
            raise
        finally:
            if span is not None:
                span.set({"harmony.outcome": outcome})
                span.end()
            self._end(outcome, trial)
        return answer

    def checked(
        self, health_check: HealthCheck, *, began_at: float, silent_s: float, mute_s: float = 0.0
    ) -> None:
        """Note the outcome of a health check that began at `began_at`, in the clock's seconds.

        Streams go on, because a busy or draining backend may refuse checks. Only those without a
        sign of life are ended, to be continued elsewhere: without a connection those that stopped
        for `silent_s`; after `failures_max` mute checks those without data since the first, and for
        `mute_s`.
        """
        self.health.polled(health_check.outcome, began_at=began_at)
        self.has_failed_check = not health_check.is_well
        if health_check.is_well:
            self._reached = True
            self._faults.clear("check")
        elif not self.health.reachable and health_check.cause is not None:
            self._faults.begin("check", health_check.cause)
        if self.health.healthy:
            self._faults.clear("request")
        if health_check.outcome is CheckOutcome.GONE:
            self._hang_up_on_silent(silent_s, begun_only=self.health.reachable)
        elif (mute_since := self.health.mute_since) is not None:
            since_s = self._clock() - mute_since
            self._hang_up_on_silent(max(silent_s, mute_s, since_s), begun_only=False)
        self._report()

    def loaded(self, load: ReportedLoad) -> None:
        now = self._clock()
        self.reported = load.since(self.reported, now - self._reported_at)
        self._reported_at = now

    def described(self, description: Description) -> bool:
        """Update what the backend reports of itself; returns True if what it lists has changed."""
        before = self.listed, self.unusable
        self._reached = True
        if description.engine is not None:
            self.engine = description.engine
            self._server.runs(description.engine)
            # An unusable engine lacks a way to return ids.
            is_chat_only = self.backend.is_chat_only
            self.unusable = None if is_chat_only else description.engine.unusable
        self.listed = {} if self.unusable is not None else description.models
        self._faults.clear("models")
        if self.unusable is None:
            self._faults.clear("engine")
        else:
            self._faults.begin("engine", str(self.unusable))
        self._report()
        return (self.listed, self.unusable) != before

    def undescribed(self, cause: str) -> None:
        self._faults.begin("models", cause)

    def name_models(self, names: Collection[str]) -> None:
        """Resolve the models of this backend; `names` are those that any backend lists."""
        if self.listed is None:
            return
        backend = self.backend
        served = offers(backend.models, self.listed, names, adapters_of=backend.adapters_of)
        self._server.serves(served)
        self.parents = parents(served)
        self._served = served
        self.models = {
            model: self.backend.context_lengths.get(model) or one.context_length
            for model, one in served.items()
        }

    def hang_up(self) -> int:
        # Returns how many streams were ended; other backends continue them.
        return self._server.hang_up("the backend has left")

    def _forget_model(self, model: str) -> None:
        # Until the backend lists the model again.
        self.models = {name: self.models[name] for name in self.models if name != model}
        if self.listed is not None and model in self._served:
            gone = self._served[model].name
            self.listed = {name: row for name, row in self.listed.items() if name != gone}

    def _hang_up_on_silent(self, silent_s: float, *, begun_only: bool) -> None:
        count = self._server.hang_up_on_silent(silent_s, begun_only=begun_only)
        if count:
            _log.warning("silent streams are broken off", upstream=self.name, count=count)

    def _on_first_ids(self, started_at: float, placed: PlacedRequest) -> None:
        seconds = self._clock() - started_at
        self._metrics.upstream_first_token(self.name, seconds)
        placed.on_first_token(seconds)
        is_back = self.health.answered()
        if is_back or not self._reached:
            self._reached = True
            self._report()

    def _note_failure(self, error: UpstreamError, model: str) -> str:
        # Returns the outcome label for metrics.
        if isinstance(error, UpstreamRejected):
            self.health.answered()  # a backend that finds fault with a request is a backend
            return "rejected"
        if isinstance(error, GrammarFailed):
            return "failed"  # this generation, but the backend is well
        if isinstance(error, NoConnection):
            return "unavailable"
        if isinstance(error, ModelGone):
            self.health.answered()
            self._forget_model(model)
            _log.warning("backend has lost a model", upstream=self.name, model=model, error=error)
            return "unavailable"
        was_ejected = self.health.is_ejected
        self.health.failed(self._clock())
        if self.health.is_ejected and not was_ejected:
            self._faults.begin("request", error.reason)
        self._report()
        return "unavailable" if isinstance(error, UpstreamUnavailable) else "failed"

    def _report(self) -> None:
        if (healthy := self.healthy) is not None and not self.has_left.is_set():
            self._metrics.upstream_is_up(self.name, int(healthy))


@dataclass(slots=True, eq=False)
class PlacedRequest:
    """Request at the backend that was chosen for it; leaving the context gives its slot back.

    `flight` is None where there was no choice; the member's load only counts the request then.
    """

    member: Member
    request: TokenRequest
    sink: TokenSink
    flight: FlightSink | None = None
    slot: Slot | None = None
    admission: Admission | None = None
    service: CountedRequest | None = None
    _tokens: int | None = field(default=None, init=False)
    _task: asyncio.Task[object] | None = field(default=None, init=False)
    _cancelling: int | None = field(default=None, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)

    @property
    def upstream(self) -> str:
        return self.member.name

    @property
    def share(self) -> float:
        return self.request.share

    @property
    def has_begun(self) -> bool:
        return self.slot is not None and self.slot.has_begun

    @property
    def can_go_on(self) -> bool:
        # Another backend can continue from ids, but not in the middle of a grammar.
        return self.request.chat is None and self.request.constraint is None

    def on_first_token(self, seconds: float) -> None:
        # `seconds` since the request was sent.
        if self._timer is not None:
            self._timer.cancel()
        if self.slot is not None:
            self.slot.first(seconds)
            if self.admission is not None and self.admission.waiting:
                self.admission.pump()

    def on_finish(self) -> None:
        # After the last token there is nothing left to recall.
        if self.admission is not None:
            self.admission.running.discard(self.request.tenant, self)

    def on_end(self, tokens: int) -> None:
        self._tokens = tokens

    def on_busy(self) -> None:
        if self.slot is not None:
            self.slot.refused()

    def close(self) -> None:
        with self:
            pass

    def expect(self, within_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(within_s, self._overdue)

    def _overdue(self) -> None:
        assert self.admission is not None, "nothing is expected without it"
        assert self.slot is not None
        self.slot.overdue()
        self.admission.make_room(self.request.tenant, [self.member.name], self.request.share)

    def recall(self) -> None:
        assert self._task is not None, "it is called back while it is entered"
        self._cancelling = self._task.cancelling()
        self._task.cancel()

    def was_recalled(self) -> bool:
        """Return True if the raised cancellation is that of `recall`; call this once."""
        if self._cancelling is None or self._task is None:
            return False
        return self._task.uncancel() <= self._cancelling

    def __enter__(self) -> Self:
        if self.admission is not None:
            self._task = asyncio.current_task()
            self.admission.running.add(self.request.tenant, self)
        if self.flight is None and self.member.load is not None:
            self.member.load.in_flight += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self.flight is not None:
                self.flight.close(error)
        finally:
            if self.flight is None and self.member.load is not None:
                self.member.load.in_flight -= 1
            if self._timer is not None:
                self._timer.cancel()
            if self.admission is not None:
                self.admission.running.discard(self.request.tenant, self)
            if self.service is not None:
                self.service.end(self._tokens)
            if self.slot is not None:
                self.slot.release()
                if self.admission is not None and self.admission.waiting:
                    self.admission.pump()
