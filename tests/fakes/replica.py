"""One replica without its HTTP: all that claims, generates and ends responses, on a real database.

Several of them in one loop share a database and nothing else. Its backends are scripted. Nothing
happens by the clock: tests call `scheduler.claim_available`, `keeper.heartbeat` and `reaper.round`.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from gateway import ids
from gateway.engine import row_mapping
from gateway.engine.archive import Archive, Ownership
from gateway.engine.engine import Engine, RunningCalls
from gateway.engine.observer import Observer
from gateway.engine.supervisor import Supervisor
from gateway.entries import Queued, pack, unpack
from gateway.eventlog.live_log import LiveLogRegistry
from gateway.eventlog.log_batches import Flusher
from gateway.eventlog.log_writer import LogWriter, WriterBounds
from gateway.generation import FinishReason, TokenChunk
from gateway.protocol.responses.response_rules import rules_of
from gateway.replication.durable_runs import DurableRuns, RunDependencies
from gateway.replication.lease_keeper import LeaseKeeper, LeaseTiming
from gateway.replication.takeover_scheduler import ClaimLimits, OrphanReaper, TakeoverScheduler
from gateway.sealing import Sealer, SealingSecret
from gateway.store import claims, events, responses
from gateway.store.claims import ClaimTerms
from gateway.store.events import LogBatch
from gateway.telemetry.metrics import Metrics
from tests.fakes.harmony_script import harmony_of
from tests.fakes.staged_run import IMPATIENT, ScriptedTokens, folds, run_spec, says
from tests.fakes.threads import THREADS
from tests.fakes.token_delivery import tell

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence

    from gateway.constraints.output_rules import OutputRules
    from gateway.engine.engine import TokenSource
    from gateway.engine.run_spec import RunSpec
    from gateway.engine.runner import Run
    from gateway.entries import Entry
    from gateway.eventlog.fold.fold import Fold
    from gateway.eventlog.live_log import LiveLog
    from gateway.generation import TokenRequest, TokenSink
    from gateway.protocol.responses.response_object import ResponseHead
    from gateway.store.notices import Notice
    from gateway.store.postgres.database import Database
    from gateway.store.responses import StoredResponse
    from gateway.tenancy import TenantId
    from gateway.tools.tool_contract import HostedTools

LEASE_S = 600.0
SEALER = Sealer([SealingSecret("key", b"a secret of thirty-two characters")])
TERMS = ClaimTerms(lease_s=LEASE_S, attempts_max=4, tenant_running_max=8)


def new_fold_for(head: ResponseHead, rules: OutputRules | None = None) -> Callable[[], Fold]:
    return folds(head, rules or rules_of(head.echo, head.grants))


class Speaker:
    """A backend that says the same to every request, and then ends it, or is silent for ever."""

    def __init__(self, script: str, *, silent: bool = False) -> None:
        self.requests: list[TokenRequest] = []
        self.closed = 0
        self._steps = says(script, None if silent else FinishReason.STOP)
        self._is_silent = silent
        self._silences = asyncio.Semaphore(0)

    async def generate(
        self,
        request: TokenRequest,
        sink: TokenSink,
        *,
        avoid: Collection[str] = (),
        attempts_max: int | None = None,
    ) -> None:
        await tell(sink, self._say(request))

    async def _say(self, request: TokenRequest) -> AsyncGenerator[TokenChunk, None]:
        self.requests.append(request)
        try:
            for step in self._steps:
                await asyncio.sleep(0)
                assert isinstance(step, TokenChunk)
                yield step
            if self._is_silent:
                self._silences.release()
                await asyncio.Event().wait()
        finally:
            self.closed += 1

    async def fell_silent(self, times: int = 1) -> None:
        """Return when it has fallen silent so many more times."""
        for _ in range(times):
            await self._silences.acquire()


@dataclass(frozen=True)
class Habits:
    """What a test may want otherwise."""

    terms: ClaimTerms = TERMS
    running_max: int = 100
    read_bytes_max: int = 65_536
    commit_wait_s: float = 5.0
    claim_wait_s: float = 5.0
    flush_wait_s: float = 5.0
    keeper_lease_s: float = LEASE_S
    heartbeat_s: float = 0.5
    quiet_s: float = 0.1
    tools: HostedTools | None = None
    calls_wait_s: float = 60.0


def _writer(database: Database, owner: str, metrics: Metrics) -> LogWriter:
    flusher = Flusher(database, owner)
    return LogWriter(
        flusher,
        WriterBounds(65_536, 65_536, 1_000_000, retry_pause_s=0.02),
        committed=lambda _: None,
        metrics=metrics,
    )


class Replica:
    """One process's parts. `announced` are the notices it would send."""

    def __init__(
        self, database: Database, tokens: TokenSource, habits: Habits | None = None
    ) -> None:
        habits = habits or Habits()
        self.database = database
        self.owner = ids.new_replica_id()
        self.metrics = Metrics()
        self.announced: list[Notice] = []
        self.live_logs = LiveLogRegistry()
        self.keeper = LeaseKeeper(
            partial(claims.heartbeat, database, self.owner, lease_s=habits.terms.lease_s),
            partial(claims.heads, database),
            LeaseTiming(lease_s=habits.keeper_lease_s, heartbeat_s=habits.heartbeat_s, poll_s=0.05),
            self.metrics,
        )
        self.archive = Archive(
            database,
            new_fold_for,
            Ownership(self.owner, habits.terms.lease_s, habits.commit_wait_s, habits.claim_wait_s),
            announce=self.announced.append,
            metrics=self.metrics,
            sealer=SEALER,
            approval_key=b"",
        )
        self.calls = RunningCalls()
        self.supervisor = Supervisor(
            in_flight_max=100,
            release=partial(claims.release, database),
            announce=self.announced.append,
            calls=self.calls,
            calls_wait_s=habits.calls_wait_s,
            flush_wait_s=habits.flush_wait_s,
        )
        self.writer = _writer(database, self.owner, self.metrics)
        self.engine = Engine(
            tokens=tokens,
            archive=self.archive,
            lease_keeper=self.keeper,
            observer=Observer(self.metrics),
            format_of=harmony_of,
            threads=THREADS,
            alive_interval_s=60,
            run_time_max_s=60,
            tools=habits.tools,
            replica=self.owner,
            calls=self.calls,
            hops=IMPATIENT,
        )
        self.runs = self._new_runs(habits.running_max)
        self.scheduler = TakeoverScheduler(
            database,
            self.runs,
            self.keeper,
            ClaimLimits(
                habits.terms, 0.02, quiet_s=habits.quiet_s, read_bytes_max=habits.read_bytes_max
            ),
            owner=self.owner,
            metrics=self.metrics,
        )
        self.runs.when_one_ends = self.scheduler.run_ended
        self.reaper = OrphanReaper(
            database, self.archive, self.keeper, attempts_max=habits.terms.attempts_max
        )

    def _new_runs(self, running_max: int) -> DurableRuns:
        return DurableRuns(
            RunDependencies(
                self.engine,
                self.archive,
                self.supervisor,
                self.writer,
                self.live_logs,
                new_fold_for,
                reader_events_max=100,
            ),
            claimed_max=running_max,
        )

    def begin(self, spec: RunSpec, claim: claims.Claim) -> tuple[Run, LiveLog]:
        """Generate here what was accepted here."""
        run = self.runs.begin(spec, claim, requested_at=time.perf_counter())
        return run, run.live

    async def stalled(self, tokens: Speaker) -> None:
        """Return when the backend fell silent and all is in the log: nobody locks a row then."""
        await tokens.fell_silent()
        for running in list(self.supervisor._running.values()):
            assert running.durable is not None
            await running.durable.channel.flushed()

    async def idle(self) -> None:
        """Return when nothing runs here."""
        while running := list(self.supervisor._running):
            await asyncio.wait(running)


@asynccontextmanager
async def replica(
    database: Database, tokens: TokenSource, habits: Habits | None = None
) -> AsyncIterator[Replica]:
    """A replica that writes; at the end it drains, if it can."""
    one = Replica(database, tokens, habits)
    async with asyncio.TaskGroup() as group:
        helpers = [group.create_task(run()) for run in (one.writer.run, one.archive.run)]
        await one.keeper.heartbeat()
        try:
            yield one
        finally:
            await one.supervisor.drain()
            await one.calls.close()
            for helper in helpers:
                helper.cancel()
    await one.archive.flush()


def background(tenant: TenantId, *, spec: RunSpec | None = None) -> RunSpec:
    """A background response of its own, created now."""
    spec = spec or run_spec(tenant=tenant)
    head = replace(spec.head, uuid=ids.new_uuid(), created_at=int(time.time()), background=True)
    return replace(spec, head=head, durable=True, inputs=len(spec.added))


async def leave_behind(
    database: Database, spec: RunSpec, log: Sequence[Entry], *, owner: str
) -> None:
    """A response whose owner died after these entries."""
    tenant = spec.principal.tenant_id
    new = row_mapping.durable_row(spec, (owner, 600), waits=False)
    await responses.insert(database, tenant, replace(new, entries=(1, pack([Queued()]))))
    day, claim = events.day_of(new.created_at), claims.Claim(tenant, spec.head.uuid, 1)
    for number, entry in enumerate(log, 1):
        assert await events.append(database, [LogBatch(claim, day, number, 1, pack([entry]))])


async def load(database: Database, spec: RunSpec) -> StoredResponse:
    """The row of a response, which there is."""
    stored = await responses.load(database, spec.principal.tenant_id, spec.head.uuid)
    assert stored is not None
    return stored


async def log_of(database: Database, spec: RunSpec) -> list[Entry]:
    """What of the log of a response is committed."""
    stored, tenant = await load(database, spec), spec.principal.tenant_id
    rows = await events.read(database, tenant, stored.uuid, stored.day, bytes_max=1_000_000)
    return [entry for row in rows for entry in unpack(row.entries)]


def folded(spec: RunSpec, log: Sequence[Entry]) -> Fold:
    """The fold of these entries."""
    fold = new_fold_for(spec.head)()
    for entry in log:
        fold.apply(entry)
    return fold


def foreground(tenant: TenantId) -> RunSpec:
    """A stored response that dies with its process."""
    spec = background(tenant)
    return replace(spec, head=replace(spec.head, background=False), durable=False)


def talkative(*scripts: str, hang: bool = False) -> ScriptedTokens:
    """A backend that says one script to each request; the last one is never finished if `hang`."""
    turns = [says(script) for script in scripts]
    if hang:
        turns[-1] = says(scripts[-1], None)
    return ScriptedTokens(turns, hang=hang)


def shown_text(response: dict[str, object]) -> str:
    """The text of the last item of a Response object."""
    output = response["output"]
    assert isinstance(output, list)
    return str(output[-1]["content"][0]["text"])
