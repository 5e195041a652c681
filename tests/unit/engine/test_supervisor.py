"""Runs outlive their requests, are bounded, and all end or leave when the process does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from gateway.engine.engine import RunningCalls
from gateway.engine.supervisor import Durable, Supervisor
from gateway.entries import ToolEnded
from gateway.errors import ClaimLost, RateLimited, StoreUnavailable
from gateway.store.claims import Claim
from gateway.store.notices import Notice
from tests.fakes.hosted_tools import CALL, CountedTool, granted
from tests.fakes.staged_run import (
    ANSWER,
    TENANT,
    MemoryArchive,
    ScriptedTokens,
    Stage,
    run_spec,
    says,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.engine.run_spec import RunSpec
    from gateway.entries import Finished
    from gateway.eventlog.fold.fold import Fold
    from gateway.store.events import LogRow


@dataclass
class Office:
    """What a supervisor gives back, and whom it tells."""

    failure: Exception | None = None
    released: list[Claim] = field(default_factory=list)
    announced: list[Notice] = field(default_factory=list)

    async def release(self, claims: Sequence[Claim]) -> None:
        if self.failure is not None:
            raise self.failure
        self.released += claims

    def supervisor(
        self, *, in_flight_max: int = 8, flush_wait_s: float = 5.0, calls_wait_s: float = 0.0
    ) -> Supervisor:
        return Supervisor(
            in_flight_max=in_flight_max,
            release=self.release,
            announce=self.announced.append,
            calls=RunningCalls(),
            calls_wait_s=calls_wait_s,
            flush_wait_s=flush_wait_s,
        )


@dataclass
class Tape:
    """A way into a log that is flushed when the test says so."""

    is_flushed: asyncio.Event = field(default_factory=asyncio.Event)
    is_asked: asyncio.Event = field(default_factory=asyncio.Event)
    is_lost: bool = False
    is_closed: bool = False

    async def flushed(self) -> int:
        if self.is_lost:
            raise ClaimLost
        self.is_asked.set()
        await self.is_flushed.wait()
        return 1

    def close(self) -> None:
        self.is_closed = True


def stalled(*, background: bool = False) -> Stage[ScriptedTokens]:
    return Stage(
        ScriptedTokens([says("<|channel|>final<|message|>Hel", None)], hang=True),
        spec=run_spec(background=background),
        said=[] if background else None,
    )


def flushed() -> Tape:
    tape = Tape()
    tape.is_flushed.set()
    return tape


def held(stage: Stage[ScriptedTokens], tape: Tape, *, is_claimed: bool = True) -> Durable:
    claim = Claim(TENANT, stage.spec.head.uuid, 2)
    return Durable(claim, tape, is_claimed=is_claimed)


async def test_runs_are_bounded() -> None:
    supervisor = Office().supervisor(in_flight_max=1)
    stage = stalled()
    with supervisor.admitted(TENANT):
        supervisor.start(stage.run)
    assert supervisor.in_flight == 1
    with pytest.raises(RateLimited) as caught, supervisor.admitted(TENANT):
        pass
    assert caught.value.code == "rate_limit_exceeded"
    await supervisor.drain()
    with supervisor.admitted(TENANT):
        pass


def test_what_is_being_prepared_counts_as_well() -> None:
    supervisor = Office().supervisor(in_flight_max=1)
    with supervisor.admitted(TENANT), pytest.raises(RateLimited), supervisor.admitted(TENANT):
        pass
    with supervisor.admitted(TENANT):
        pass


async def test_what_the_process_looked_for_takes_no_place_of_requests() -> None:
    supervisor = Office().supervisor(in_flight_max=1)
    looked_for, asked_for = stalled(background=True), stalled(background=True)
    supervisor.start(looked_for.run, durable=held(looked_for, flushed()))
    assert (supervisor.claimed, supervisor.in_flight) == (1, 0)
    with supervisor.admitted(TENANT):
        durable = held(asked_for, flushed(), is_claimed=False)
        supervisor.start(asked_for.run, durable=durable)
    assert (supervisor.claimed, supervisor.in_flight) == (1, 1)
    await supervisor.drain()


async def test_draining_ends_what_runs_as_failed_and_keeps_it() -> None:
    supervisor = Office().supervisor()
    stages = [stalled() for _ in range(3)]
    for stage in stages:
        supervisor.start(stage.run)
    await asyncio.gather(*[stage.tokens.reached.wait() for stage in stages])
    await supervisor.drain()
    assert supervisor.in_flight == 0
    for stage in stages:
        assert [finished.status for finished in stage.archive.finished] == ["failed"]
        assert "restarting" in (stage.archive.finished[0].message or "")
        assert stage.live.closed.is_set()


async def test_durable_runs_are_handed_over_while_the_others_go_on() -> None:
    office = Office()
    supervisor = office.supervisor()
    leaving, staying = stalled(background=True), stalled()
    over: list[str] = []
    tape = flushed()
    durable = held(leaving, tape)
    supervisor.start(leaving.run, durable=durable, on_end=lambda: over.append("left"))
    supervisor.start(staying.run)
    await asyncio.gather(leaving.tokens.reached.wait(), staying.tokens.reached.wait())
    await supervisor.begin_drain()
    assert supervisor.is_draining
    assert office.released == [durable.claim]
    assert office.announced == [Notice("work")]
    assert leaving.live.handed_over
    assert leaving.tokens.closed == 1
    assert over == ["left"]
    assert tape.is_closed
    assert (supervisor.claimed, supervisor.in_flight) == (0, 1)
    assert not staying.live.closed.is_set()
    await supervisor.drain()
    assert staying.live.closed.is_set()
    assert office.released == [durable.claim]


async def test_what_was_said_is_flushed_before_a_run_stops() -> None:
    office = Office()
    supervisor = office.supervisor()
    stage = stalled(background=True)
    tape = Tape()
    supervisor.start(stage.run, durable=held(stage, tape))
    await stage.tokens.reached.wait()
    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.begin_drain())
        await tape.is_asked.wait()
        gone = [stage.live.handed_over]
        tape.is_flushed.set()
    gone.append(stage.live.handed_over)
    assert gone == [False, True]
    assert len(office.released) == 1


async def test_a_log_that_cannot_be_flushed_does_not_hold_up_the_process() -> None:
    office = Office(failure=StoreUnavailable("away"))
    supervisor = office.supervisor(flush_wait_s=0.01)
    stage, lost = stalled(background=True), stalled(background=True)
    supervisor.start(stage.run, durable=held(stage, Tape()))
    supervisor.start(lost.run, durable=held(lost, Tape(is_lost=True)))
    await stage.tokens.reached.wait()
    await supervisor.drain()
    assert stage.live.handed_over
    assert lost.live.handed_over
    assert office.announced == []


@dataclass
class FrozenArchive(MemoryArchive):
    """A database that takes no end and refuses none."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)

    @override
    async def finish(
        self, spec: RunSpec, finished: Finished, fold: Fold, claim: Claim, rest: LogRow | None
    ) -> None:
        self.asked.set()
        await asyncio.Event().wait()


async def test_a_durable_run_that_cannot_commit_its_end_leaves_it_to_others() -> None:
    office, archive = Office(), FrozenArchive()
    supervisor = office.supervisor(flush_wait_s=0.01)
    spec = run_spec(background=True)
    stage = Stage(ScriptedTokens([says(ANSWER)]), archive=archive, spec=spec, said=[])
    durable = held(stage, flushed())
    supervisor.start(stage.run, durable=durable)
    await archive.asked.wait()
    await supervisor.drain()
    assert supervisor.claimed == 0
    assert office.released == [durable.claim]


async def test_a_run_that_ended_is_forgotten() -> None:
    supervisor = Office().supervisor(in_flight_max=1)
    stage = Stage(ScriptedTokens([says(ANSWER)]))
    supervisor.start(stage.run)
    await stage.live.closed.wait()
    await supervisor.drain()
    assert supervisor.in_flight == 0


async def calling(tool: CountedTool, tape: Tape, supervisor: Supervisor) -> Stage[ScriptedTokens]:
    """A durable run whose tool has been called, and hangs."""
    spec = granted(run_spec(background=True))
    turns = [says(CALL), says("<|channel|>final<|message|>Hel", None)]
    stage = Stage(ScriptedTokens(turns, hang=True), spec=spec, said=[], tools=tool)
    supervisor.start(stage.run, durable=held(stage, tape))
    await tool.reached.wait()
    return stage


async def test_a_run_stays_until_its_call_has_ended_that_must_not_be_run_twice() -> None:
    office, tool, tape = Office(), CountedTool(hangs=True), flushed()
    supervisor = office.supervisor(calls_wait_s=60.0)
    other = stalled(background=True)
    supervisor.start(other.run, durable=held(other, flushed()))
    stage = await calling(tool, tape, supervisor)
    async with asyncio.TaskGroup() as group:
        draining = group.create_task(supervisor.begin_drain())
        while not other.live.handed_over:
            await asyncio.wait((draining,), timeout=0)
        was_kept = not stage.live.handed_over
        tool.go_on.set()
    assert was_kept
    assert stage.live.handed_over
    ends = [entry.outcome for entry in stage.journal.entries if isinstance(entry, ToolEnded)]
    assert ends == ["ok"]
    assert len(office.released) == 2


@pytest.mark.parametrize("repeatable", [False, True])
async def test_a_call_may_not_keep_the_process_for_ever(*, repeatable: bool) -> None:
    office, tool = Office(), CountedTool(hangs=True, repeatable=repeatable)
    supervisor = office.supervisor(calls_wait_s=60.0 if repeatable else 0.0)
    stage = await calling(tool, flushed(), supervisor)
    await supervisor.begin_drain()
    assert stage.live.handed_over
    await tool.was_cancelled.wait()
    assert not any(isinstance(entry, ToolEnded) for entry in stage.journal.entries)
