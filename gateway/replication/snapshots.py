"""Snapshots of replicas for operators: rates, backends, queue, and responses in flight.

Each replica samples its own counts all the time, which costs nothing. It writes them to the
database, once a second, only while somebody looks at any replica. No snapshot has content.
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
"""Seconds between two snapshots while somebody looks."""
LOOK_EVERY: Final = 2
"""Ticks between two looks whether somebody does."""
SAMPLE_EVERY: Final = 5
"""Ticks between two samples."""
SAMPLES_MAX: Final = 60
"""Samples that are kept: five minutes."""
TENANTS_MAX: Final = 50
"""Tenants whose requests in flight a snapshot counts: those of which the most wait."""
RESPONSES_MAX: Final = 100
"""Responses in flight that a snapshot has: the newest."""
WATCHED_S: Final = 4.0
"""Seconds that other replicas go on to write after a look."""
SHARED_S: Final = 0.9
"""Seconds for which all that look at one replica share what was read."""
QUANTILE: Final = 0.95
_ANSWERING: Final = frozenset(
    {SegmentKind.FINAL, SegmentKind.COMMENTARY, SegmentKind.REFUSAL, None}
)
_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class Sample:
    """Rates and times of one interval; `first_token_s` and `wait_s` are what 95 % stayed below."""

    requests_per_s: float
    errors_per_min: float
    tokens_per_s: float
    in_flight: int
    first_token_s: float
    wait_s: float


def quantile(counts: Sequence[float], bounds: Sequence[float]) -> float:
    """Return the bound below which `QUANTILE` of the observations are; 0 without any.

    `counts` are observations up to each bound, and in the last place all.
    """
    if not counts or not counts[-1]:
        return 0.0
    place = bisect_left(counts, QUANTILE * counts[-1])
    return bounds[min(place, len(bounds) - 1)]


def sample_between(before: Totals, after: Totals, seconds: float, in_flight: int) -> Sample:
    """Return the rates of an interval of so many seconds."""

    def below(old: Sequence[float], new: Sequence[float]) -> float:
        # No label had an observation before the first one.
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
    """Snapshot of a replica, `age_s` old; `body` is what `Snapshots.body` returned there."""

    replica: str
    age_s: float
    body: dict[str, Any]


class Snapshots:
    """Snapshots of this replica and of all others."""

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
        # `clock` gives seconds and never goes back.
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
        """Sample, and write snapshots while another replica is looked at."""
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
        """Return the snapshots of all replicas, at most a tick old; those of others as much more.

        All that look at this replica at the same time share one statement. Raises
        `StoreUnavailable`.
        """
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
        """Return the snapshot of this replica, as JSON."""
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
        "source": member.source,
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
        "background": spec.durable,
        "stored": spec.store,
    }


def _backend_of(run: Run) -> str:
    return backend_of(run.live.fold.timeline.moments, is_current=True)


def _by_tenant(runs: Sequence[Run]) -> list[dict[str, Any]]:
    # The tenants with the most requests that wait for a backend.
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
    # Before the first token it waits: for a backend, or for that one to read the prompt.
    fold = run.live.fold
    if fold.tool_started is not None:
        return "tool"
    if fold.is_held:
        return "repairing"
    if not fold.output_tokens:
        return "waiting"
    kind = fold.place.kind
    if kind is SegmentKind.REASONING:
        return "thinking"
    return "answering" if kind in _ANSWERING else "calling"
