"""A run on a stage: a scripted backend, an archive in memory, the real parser and fold."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from gateway.generation import FinishReason, Sampling, TokenChunk, TokenRequest
from gateway.harmony.framing import OPENING
from gateway.harmony.parsing import Parser
from gateway.harmony.vocabulary import END, RETURN
from gateway.output.fold import Fold, Framing
from gateway.runs.live import LiveLog
from gateway.runs.observer import Observer
from gateway.runs.runner import Engine, Run
from gateway.runs.specification import RunSpecification
from gateway.telemetry import Metrics
from gateway.tenancy import Principal, TenantId
from tests.fakes.harmony_script import script_ids, vocabulary
from tests.fakes.response_heads import response_head

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from gateway.log import Finished
    from gateway.protocol.events import Event

ANSWER = "<|channel|>final<|message|>Hello there<|return|>"
THOUGHT = "<|channel|>analysis<|message|>Hm<|end|>"
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
TENANT = TenantId(UUID(int=1))


@dataclass
class ScriptedTokens:
    """A backend that says what it is told, turn by turn; an exception in a script is raised."""

    turns: Sequence[Sequence[TokenChunk | Exception]]
    requests: list[TokenRequest] = field(default_factory=list)
    closed: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    hang: bool = False

    async def stream(self, request: TokenRequest) -> AsyncGenerator[TokenChunk, None]:
        script = self.turns[len(self.requests)]
        self.requests.append(request)
        try:
            for step in script:
                await asyncio.sleep(0)
                if isinstance(step, Exception):
                    raise step
                yield step
            if self.hang:
                self.reached.set()
                await asyncio.Event().wait()
        finally:
            self.closed += 1


@dataclass
class MemoryArchive:
    """Keeps what it is given; fails as often as it is told."""

    failure: Exception | None = None
    refusal: Exception | None = None
    begun: int = 0
    finished: list[Finished] = field(default_factory=list)
    metered: list[Finished] = field(default_factory=list)

    async def begin(self, spec: RunSpecification) -> None:
        await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal
        self.begun += 1

    async def finish(self, spec: RunSpecification, finished: Finished, fold: Fold) -> None:
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.finished.append(finished)

    async def meter(self, spec: RunSpecification, finished: Finished, fold: Fold) -> None:
        if self.failure is not None:
            raise self.failure
        self.metered.append(finished)


def specification(
    *, store: bool = True, max_tokens: int = 100, tenant: TenantId = TENANT
) -> RunSpecification:
    return RunSpecification(
        principal=Principal(tenant, "tenant", uuid4()),
        head=response_head(),
        model="gpt-oss-20b",
        prompt_ids=script_ids("<|start|>user<|message|>hi<|end|><|start|>assistant"),
        added=(),
        sampling=Sampling(max_tokens=max_tokens),
        cache_salt="salt",
        store=store,
        parent=None,
        root_created_at=0,
        tools=frozenset(),
    )


@dataclass
class Stage:
    """A run with its surroundings."""

    tokens: ScriptedTokens
    archive: MemoryArchive = field(default_factory=MemoryArchive)
    spec: RunSpecification = field(default_factory=specification)
    run_time_max_s: float = 60

    def __post_init__(self) -> None:
        framing = Framing(OPENING, RETURN, END)
        self.live = LiveLog(
            lambda: Fold(self.spec.head, lambda: Parser(vocabulary(), self.spec.tools), framing),
            reader_events_max=100,
        )
        engine = Engine(
            tokens=self.tokens,
            archive=self.archive,  # type: ignore[arg-type]
            observer=Observer(Metrics()),
            alive_interval_s=60,
            run_time_max_s=self.run_time_max_s,
        )
        self.run = Run(self.spec, self.live, engine)

    async def play(self) -> list[Event]:
        await self.run()
        return [event async for batch in self.live.follow() for event in batch]


def says(text: str, finish: FinishReason | None = STOP) -> list[TokenChunk | Exception]:
    chunks: list[TokenChunk | Exception] = [TokenChunk([token]) for token in script_ids(text)]
    if finish is not None:
        chunks.append(TokenChunk([], finish, cached_tokens=2))
    return chunks
