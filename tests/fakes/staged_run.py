"""A run on a stage: scripted backends, archive and keeper in memory, the real parser and fold."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID, uuid4

from typing_extensions import override

from gateway.constraints.output_rules import OutputRules
from gateway.constraints.validation import Checker
from gateway.engine.archive import Archive
from gateway.engine.engine import Engine, TokenSource
from gateway.engine.failover import HopPolicy
from gateway.engine.observer import Observer
from gateway.engine.output_guard import GuardLimits
from gateway.engine.run_spec import RunSpec
from gateway.engine.runner import Run
from gateway.entries import Mark
from gateway.eventlog.fold.fold import Fold
from gateway.eventlog.journal import Journal
from gateway.eventlog.live_log import LiveLog
from gateway.generation import FinishReason, Sampling, TokenChunk, TokenRequest
from gateway.models.harmony.harmony_format import HarmonyFormat
from gateway.protocol.call_items import call_fields
from gateway.store.claims import Claim
from gateway.telemetry.metrics import Metrics
from gateway.tenancy import Principal, TenantId, default_project
from tests.fakes.following import collected
from tests.fakes.harmony_script import harmony, harmony_of, script_ids
from tests.fakes.response_heads import response_head
from tests.fakes.threads import THREADS
from tests.fakes.token_delivery import tell

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Sequence

    from gateway.engine.engine import Abandonable, AskApproval
    from gateway.engine.row_mapping import Attempt
    from gateway.entries import Entry, Finished
    from gateway.eventlog.journal import CommitEnd
    from gateway.generation import TokenSink
    from gateway.metering import LineKind
    from gateway.models.format import FormatOf, ModelFormat
    from gateway.protocol.responses.response_object import ResponseHead
    from gateway.protocol.stream_events import Event
    from gateway.store.events import LogRow
    from gateway.tools.tool_contract import HostedTools

ANSWER = "<|channel|>final<|message|>Hello there<|return|>"
THOUGHT = "<|channel|>analysis<|message|>Hm<|end|>"
FRAMING = HarmonyFormat.framing
NO_RULES = OutputRules({}, frozenset())
"""Anything goes."""
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
TENANT = TenantId(UUID(int=1))
IMPATIENT = HopPolicy(hop_wait_s=0.0, upstream_wait_s=0.0)
Step = TokenChunk | Exception


@dataclass
class ScriptedTokens:
    """Backends that say what they are told, call by call; an exception in a script is raised."""

    turns: Sequence[Sequence[Step]]
    requests: list[TokenRequest] = field(default_factory=list)
    avoided: list[set[str]] = field(default_factory=list)
    attempts_max: list[int | None] = field(default_factory=list)
    closed: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    hang: bool = False
    last_asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(
        self,
        request: TokenRequest,
        sink: TokenSink,
        *,
        avoid: Collection[str] = (),
        attempts_max: int | None = None,
    ) -> None:
        self.avoided.append(set(avoid))
        self.attempts_max.append(attempts_max)
        await tell(sink, self._say(request))

    async def _say(self, request: TokenRequest) -> AsyncGenerator[TokenChunk, None]:
        script = self.turns[len(self.requests)]
        self.requests.append(request)
        if len(self.requests) == len(self.turns):
            self.last_asked.set()
        try:
            for step in script:
                await asyncio.sleep(0)
                if isinstance(step, Exception):
                    raise step
                yield step
            if self.hang and len(self.requests) == len(self.turns):
                self.reached.set()
                await asyncio.Event().wait()
        finally:
            self.closed += 1


@dataclass
class MemoryArchive(Archive):
    """Keeps what it is given; fails as often as it is told."""

    failure: Exception | None = None
    refusal: Exception | None = None
    begun: int = 0
    finished: list[Finished] = field(default_factory=list)
    metered: list[Finished] = field(default_factory=list)
    audited: list[Attempt] = field(default_factory=list)
    deposited: list[tuple[Finished, dict[str, Any]]] = field(default_factory=list)

    @override
    async def begin(self, spec: RunSpec) -> Claim:
        await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal
        self.begun += 1
        return Claim(spec.principal.tenant_id, spec.head.uuid, 1)

    @override
    async def finish(
        self, spec: RunSpec, finished: Finished, fold: Fold, claim: Claim, rest: LogRow | None
    ) -> None:
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.finished.append(finished)

    @override
    async def deposit(self, spec: RunSpec, finished: Finished, fold: Fold, claim: Claim) -> None:
        await asyncio.sleep(0)
        self.deposited.append((finished, fold.response()))

    @override
    def deposit_later(
        self, spec: RunSpec, finished: Finished, fold: Fold, claim: Claim | None
    ) -> None:
        self.deposited.append((finished, fold.response()))

    @override
    def meter(
        self, spec: RunSpec, finished: Finished, fold: Fold, kind: LineKind = "response"
    ) -> None:
        self.metered.append(finished)

    @override
    def audit(self, spec: RunSpec, attempt: Attempt) -> None:
        self.audited.append(attempt)


@dataclass
class MemoryKeeper:
    """Knows who holds what."""

    held: dict[UUID, Abandonable] = field(default_factory=dict)
    dropped: list[Claim] = field(default_factory=list)
    doubt: Exception | None = None

    def hold(self, claim: Claim, run: Abandonable) -> None:
        self.held[claim.uuid] = run

    def drop(self, claim: Claim) -> None:
        del self.held[claim.uuid]
        self.dropped.append(claim)

    async def assured(self, claim: Claim) -> None:
        await asyncio.sleep(0)
        if self.doubt is not None:
            raise self.doubt


class RecordingJournal(Journal):
    """A journal that remembers what was written into it, but for marks, and is full as often as it
    is told.
    """

    def __init__(self, live: LiveLog, *, full_after: int | None = None) -> None:
        super().__init__(live, self._write)
        self.full_after = full_after
        self.entries: list[Entry] = []
        self.lost: Exception | None = None
        self.waits = 0

    @property
    @override
    def is_full(self) -> bool:
        return self.full_after is not None and len(self.entries) >= self.full_after

    def _write(self, entry: Entry) -> None:
        if not isinstance(entry, Mark):
            self.entries.append(entry)
        self.live.append(entry)

    @override
    async def room(self) -> None:
        await asyncio.sleep(0)
        self.waits += 1
        if self.lost is not None:
            raise self.lost
        self.full_after = None

    @override
    async def committed(self) -> None:
        await asyncio.sleep(0)
        if self.lost is not None:
            raise self.lost

    @override
    async def finish(self, finished: Finished, commit: CommitEnd | None) -> None:
        events = self.live.fold.apply(finished)
        try:
            if commit is not None:
                await commit(finished, self.live.fold, None)
        except BaseException:
            self.live.refold()
            raise
        self.entries.append(finished)
        self.live.close(finished, events)


def run_spec(
    *,
    store: bool = True,
    max_tokens: int = 100,
    tenant: TenantId = TENANT,
    background: bool = False,
) -> RunSpec:
    return RunSpec(
        principal=Principal(tenant, "tenant", uuid4(), project_id=default_project(tenant)),
        head=response_head(background=background),
        model="gpt-oss-20b",
        prompt_ids=script_ids("<|start|>user<|message|>hi<|end|><|start|>assistant"),
        added=(),
        sampling=Sampling(max_tokens=max_tokens),
        cache_salt="salt",
        store=store,
        parent=None,
        root_created_at=0,
        rules=NO_RULES,
        checker=Checker(NO_RULES, call_fields),
        durable=background,
    )


def folds(
    head: ResponseHead, rules: OutputRules, format_: ModelFormat | None = None
) -> Callable[[], Fold]:
    """Makes folds as a process does, of a response with these rules."""
    return lambda: Fold(head, format_ or harmony(), rules)


Source = TypeVar("Source", bound=TokenSource)


@dataclass
class Stage(Generic[Source]):
    """A run with its surroundings. `said` is what the log says already; then it has a claim."""

    tokens: Source
    archive: MemoryArchive = field(default_factory=MemoryArchive)
    spec: RunSpec = field(default_factory=run_spec)
    run_time_max_s: float = 60
    hops: HopPolicy = IMPATIENT
    limits: GuardLimits = field(default_factory=GuardLimits)
    said: Sequence[Entry] | None = None
    full_after: int | None = None
    tools: HostedTools | None = None
    ask_approval: AskApproval | None = None
    metrics: Metrics = field(default_factory=Metrics)
    continues_preambles: bool = True
    format_of: FormatOf = harmony_of

    def __post_init__(self) -> None:
        format_ = self.format_of(self.spec.model)
        self.live = LiveLog(folds(self.spec.head, self.spec.rules, format_), reader_events_max=100)
        for entry in self.said or ():
            self.live.append(entry)
        self.journal = RecordingJournal(self.live, full_after=self.full_after)
        self.keeper = MemoryKeeper()
        self.engine = Engine(
            tokens=self.tokens,
            archive=self.archive,
            lease_keeper=self.keeper,
            observer=Observer(self.metrics),
            format_of=self.format_of,
            threads=THREADS,
            alive_interval_s=60,
            run_time_max_s=self.run_time_max_s,
            tools=self.tools,
            ask_approval=self.ask_approval,
            hops=self.hops,
            guard_limits=self.limits,
            continues_preambles={self.spec.model: self.continues_preambles}.__getitem__,
        )
        claim = None
        if self.said is not None:
            claim = Claim(self.spec.principal.tenant_id, self.spec.head.uuid, 2)
        self.run = Run(self.spec, self.journal, self.engine, claim=claim)

    @property
    def text(self) -> str:
        """The text of the last item."""
        item = self.live.fold.response()["output"][-1]
        return str(item["content"][0]["text"])

    async def play(self) -> list[Event]:
        await self.run()
        return await collected(self.live.stream)


def says(text: str, finish: FinishReason | None = STOP) -> list[Step]:
    chunks: list[Step] = [TokenChunk([token]) for token in script_ids(text)]
    if finish is not None:
        chunks.append(TokenChunk([], finish, cached_tokens=2))
    return chunks
