"""Snapshots of replicas for operators, without content.

They are written to the database only while somebody looks at any replica.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter, deque
from dataclasses import asdict, dataclass
from operator import sub
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway import __version__, ids
from gateway.errors import StoreError
from gateway.eventlog.fold.execution import backend_of
from gateway.generation import SegmentKind
from gateway.store import replica_snapshots
from gateway.telemetry.logs import EventLog
from gateway.telemetry.metrics import FIRST_TOKEN_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.engine.observer import Observer
    from gateway.engine.runner import Run
    from gateway.engine.supervisor import Supervisor
    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics, Totals
    from gateway.upstreams.member import Member
    from gateway.upstreams.pool import Pool

TICK_S: Final = 1.0
"""Between snapshots."""
LOOK_EVERY: Final = 2
"""Ticks between checks whether somebody looks."""
SAMPLE_EVERY: Final = 5
"""Ticks between samples."""
SAMPLES_MAX: Final = 60
"""Five minutes."""
TENANTS_MAX: Final = 50
"""Tenants that are shown: those with the most waiting requests."""
RESPONSES_MAX: Final = 100
"""The newest are shown."""
WATCHED_S: Final = 4.0
"""Other replicas continue to write for so long after a look."""
SHARED_S: Final = 0.9
"""Readers of this replica share what was read for so long."""
QUANTILE: Final = 0.95
_ANSWERING: Final = frozenset(
    {SegmentKind.FINAL, SegmentKind.COMMENTARY, SegmentKind.REFUSAL, None}
)
_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class Sample:
    """Rates of an interval; `first_token_s` and `wait_s` are 95th percentiles."""

    requests_per_s: float
    errors_per_min: float
    tokens_per_s: float
    in_flight: int
    first_token_s: float
    wait_s: float


def quantile(counts: Sequence[float], bounds: Sequence[float]) -> float:
    """Return the bound below which `QUANTILE` of the observations are.

    `counts` are cumulative, one for each bound and last the total.
    """
    if not counts or not counts[-1]:
        return 0.0
    place = bisect_left(counts, QUANTILE * counts[-1])
    return bounds[min(place, len(bounds) - 1)]


def sample_between(before: Totals, after: Totals, seconds: float, in_flight: int) -> Sample:
    def below(old: Sequence[float], new: Sequence[float]) -> float:
        # A histogram is empty until its first observation.
        counts = list(map(sub, new, old)) if old else new
        return quantile(counts, FIRST_TOKEN_SECONDS)

    return Sample(
        requests_per_s=(after.requests - before.requests) / seconds,
        errors_per_min=(after.errors - before.errors) * 60 / seconds,
        tokens_per_s=max(0.0, after.output_tokens - before.output_tokens) / seconds,
        in_flight=in_flight,
        first_token_s=below(before.first_token, after.first_token),
        wait_s=below(before.admission_wait, after.admission_wait),
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    replica: str
    age_s: float
    body: dict[str, Any]


class Snapshots:
    def __init__(  # noqa: PLR0913 - what is shown
        self,
        database: Database,
        replica: str,
        supervisor: Supervisor,
        observer: Observer,
        pool: Pool,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._replica = replica
        self._supervisor = supervisor
        self._observer = observer
        self._pool = pool
        self._metrics = metrics
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._last = metrics.totals()
        self._sampled_at = clock()
        self._fleet: list[Snapshot] = []
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def run(self) -> None:
        is_watched, tick = False, 0
        while True:
            await asyncio.sleep(TICK_S)
            tick += 1
            if tick % SAMPLE_EVERY == 0:
                self._sample()
            if self._clock() - self._read_at < WATCHED_S:
                continue  # whoever looks here writes, too
            try:
                if is_watched:
                    is_watched = await replica_snapshots.post(
                        self._database, self._replica, orjson.dumps(self.body())
                    )
                elif tick % LOOK_EVERY == 0:
                    is_watched = await replica_snapshots.is_watched(self._database)
            except StoreError as error:
                is_watched = False
                _log.warning("no snapshot was written, will be tried again", error=error)

    async def read(self) -> list[Snapshot]:
        """Return all replicas' snapshots. Concurrent callers share one statement."""
        async with self._reading:
            now = self._clock()
            if now - self._read_at >= SHARED_S:
                if now - self._read_at > WATCHED_S:
                    await replica_snapshots.clean(self._database)
                body = self.body()
                posted = await replica_snapshots.exchange(
                    self._database, self._replica, orjson.dumps(body), watched_s=WATCHED_S
                )
                others = [
                    Snapshot(one.replica, one.age_s, orjson.loads(one.body)) for one in posted
                ]
                self._fleet = [Snapshot(self._replica, 0.0, body), *others]
                self._read_at = now
            return self._fleet

    def body(self) -> dict[str, Any]:
        admission = self._pool.admission
        state = None if admission is None else admission.state()
        runs = self._supervisor.runs
        return {
            "version": __version__,
            "draining": self._supervisor.is_draining,
            "in_flight": len(runs),
            "samples": [asdict(one) for one in self._samples],
            "backends": [_backend(one) for one in self._pool.members()],
            "queued": {} if state is None else state.queued,
            "saturation": 0.0 if state is None else round(state.saturation, 3),
            "responses": [_response(run) for run in runs[-RESPONSES_MAX:]],
            "tenants": _by_tenant(runs),
            "failures": [one._asdict() for one in self._observer.failures],
            "repairs": [one._asdict() for one in self._observer.repairs],
        }

    def _sample(self) -> None:
        totals, now = self._metrics.totals(), self._clock()
        self._samples.append(
            sample_between(self._last, totals, now - self._sampled_at, len(self._supervisor.runs))
        )
        self._last, self._sampled_at = totals, now


def _backend(member: Member) -> dict[str, Any]:
    slots, load = member.slots, member.reported
    return {
        "name": member.name,
        "models": list(member.models),
        "source": member.backend.source,
        "healthy": member.healthy,
        "drained": member.is_drained,
        "version": member.version,
        "problem": member.problem,
        "in_flight": member.in_flight,
        "slots": None if slots is None else slots.bound,
        "running": load.running,
        "waiting": load.waiting,
        "kv_used": load.kv_used,
        "tokens_per_s": load.tokens_per_s,
    }


def _response(run: Run) -> dict[str, Any]:
    spec, fold = run.spec, run.live.fold
    return {
        "id": ids.response_id(spec.head.uuid),
        "tenant": spec.principal.tenant_name,
        "model": spec.model,
        "phase": _phase(run),
        "tokens": fold.output_tokens,
        "age_s": round(run.age_s, 1),
        "hops": fold.hops,
        "repairs": sum(moment.kind == "repair" for moment in fold.timeline.moments),
        "backend": _backend_of(run),
        "background": spec.head.background,
        "stored": spec.store,
    }


def _backend_of(run: Run) -> str:
    return backend_of(run.live.fold.timeline.moments, is_current=True)


def _by_tenant(runs: Sequence[Run]) -> list[dict[str, Any]]:
    # Tenants with the most requests that wait for a backend come first.
    waiting: Counter[str] = Counter()
    running: Counter[str] = Counter()
    for run in runs:
        waits = _phase(run) == "waiting" and not _backend_of(run)
        (waiting if waits else running)[run.spec.principal.tenant_name] += 1
    tenants = sorted(waiting | running, key=lambda name: (-waiting[name], -running[name], name))
    return [
        {"tenant": name, "waiting": waiting[name], "running": running[name]}
        for name in tenants[:TENANTS_MAX]
    ]


def _phase(run: Run) -> str:
    # Before its first token a run waits for a backend, or for its prompt to be read.
    fold = run.live.fold
    if fold.hosted.started is not None:
        return "tool"
    if fold.is_held:
        return "repairing"
    if not fold.output_tokens:
        return "waiting"
    kind = fold.place.kind
    if kind is SegmentKind.REASONING:
        return "thinking"
    return "answering" if kind in _ANSWERING else "calling"
