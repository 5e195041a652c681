"""One backend of the pool, with all that is known of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gateway.errors import UpstreamError, UpstreamRejected, UpstreamUnavailable
from gateway.telemetry import EventLog
from gateway.upstreams.exchange import Overheard
from gateway.upstreams.problems import GrammarFailed
from gateway.upstreams.selection import BackendState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gateway.generation import Listener, TokenRequest
    from gateway.telemetry import Metrics
    from gateway.upstreams.backend import Backend
    from gateway.upstreams.engines import Capabilities, Engine
    from gateway.upstreams.health import Health
    from gateway.upstreams.probe import Description
    from gateway.upstreams.server import InferenceServer

_log = EventLog("gateway.upstreams")


class Member:
    """Counts what is in flight, and learns from every request how the backend is.

    `clock` gives seconds and never goes back.
    """

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
        self.description: Description | None = None
        self.engine: Engine | None = None
        self.problem: str | None = None
        self.reached = False
        self._server = server
        self._metrics = metrics
        self._clock = clock
        self._in_flight = 0
        self.models: Mapping[str, int | None] = _models(backend, {})
        """Context lengths by public id.

        A configured model that the server does not list is left out, once it has listed any.
        """

    @property
    def available(self) -> bool:
        """Healthy, or due for its trial."""
        return self.health.available(self._clock())

    @property
    def in_doubt(self) -> bool:
        """Its last health check went wrong."""
        return self.health.in_doubt

    @property
    def can(self) -> Capabilities | None:
        """What may be asked of it; None until it has said what it is."""
        return self._server.can if self.engine is not None else None

    def state(self) -> BackendState:
        """What selection and operators look at."""
        now = self._clock()
        return BackendState(
            name=self.name,
            models=self.models,
            healthy=self.health.healthy,
            reached=self.reached,
            available=self.health.available(now),
            in_flight=self._in_flight,
            failures=self.health.failures,
            ejected_for_s=self.health.ejected_for(now),
            version=self.engine.version if self.engine is not None else None,
            problem=self.problem,
            in_doubt=self.health.in_doubt,
            can=self.can,
        )

    async def generate(self, request: TokenRequest, listener: Listener) -> None:
        """What the backend generates; raises what it raises, and what the listener does."""
        started_at = self._clock()
        on_trial = self.health.begin_trial(started_at)
        self._in_flight += 1
        self._metrics.upstream_started(self.name)
        outcome = "cancelled"

        def finish() -> None:
            nonlocal outcome
            outcome = "ok"
            self.health.completed()
            self.problem = None

        noting = Overheard(listener, first=partial(self._answered, started_at), finish=finish)
        try:
            await self._server.generate(request, noting)
        except UpstreamError as error:
            outcome = self._failed(error)
            raise
        finally:
            self._in_flight -= 1
            self._metrics.upstream_finished(self.name, outcome)
            if on_trial:
                self.health.end_trial()

    def polled(self, *, alive: bool, silent_s: float) -> None:
        """The outcome of a health check.

        A backend that does not answer one, and streams of which stop in mid-sentence for `silent_s`
        at the same time, is frozen: they are broken off, so that others go on with them before
        patience with them is over. What has not begun may be silent for a good reason, and is
        broken off only once the backend counts as unreachable.
        """
        was_reachable = self.health.reachable
        self.reached = self.reached or alive
        self.health.polled(alive=alive)
        if was_reachable and not self.health.reachable:
            self.problem = "GET /health is not answered with 200"
            _log.warning("backend is unreachable", upstream=self.name)
        elif not was_reachable and alive:
            self.problem = None
            _log.info("backend is reachable again", upstream=self.name)
        if not alive:
            self._hang_up_on_silent(silent_s)
        self._report()

    def described(self, description: Description) -> None:
        """What the backend says of itself now; what it does not say has not changed."""
        self.description = description
        self.models = _models(self.backend, description.models)
        self.reached = True
        if description.engine is not None:
            self.engine = description.engine
            self._server.runs(description.engine)
        if self.health.healthy:
            self.problem = None
        self._report()

    def _hang_up_on_silent(self, silent_s: float) -> None:
        count = self._server.hang_up_on_silent(silent_s, begun_only=self.health.reachable)
        if count:
            _log.warning("silent streams are broken off", upstream=self.name, count=count)

    def _answered(self, started_at: float) -> None:
        """It generates, `clock` said `started_at` when it was asked to."""
        self._metrics.upstream_first_token(self.name, self._clock() - started_at)
        is_back = self.health.answered()
        if is_back or not self.reached:
            self.reached = True
            self._report()

    def _failed(self, error: UpstreamError) -> str:
        """Note a failure; returns what metrics call it."""
        if isinstance(error, UpstreamRejected):
            self.health.answered()  # a backend that finds fault with a request is a backend
            return "rejected"
        if isinstance(error, GrammarFailed):
            return "failed"  # this generation, but the backend is well
        was_healthy = self.health.healthy
        self.problem = str(error)
        self.health.failed(self._clock())
        if was_healthy and not self.health.healthy:
            _log.warning("backend is ejected", upstream=self.name, error=error)
        self._report()
        return "unavailable" if isinstance(error, UpstreamUnavailable) else "failed"

    def _report(self) -> None:
        self._metrics.upstream_is_up(self.name, int(self.health.healthy))


def _models(backend: Backend, listed: Mapping[str, int | None]) -> dict[str, int | None]:
    offered = backend.models or {name: name for name in listed}
    return {
        model: backend.context_lengths.get(model) or listed.get(served)
        for model, served in offered.items()
        if served in listed or not listed
    }
