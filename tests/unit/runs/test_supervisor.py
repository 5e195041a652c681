"""Runs outlive their requests, are bounded, and all end when the process does."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import RateLimited
from gateway.runs.supervisor import Supervisor
from tests.fakes.staged_run import ANSWER, ScriptedTokens, Stage, says


def stalled() -> Stage:
    return Stage(ScriptedTokens([says("<|channel|>final<|message|>Hel", None)], hang=True))


async def test_runs_are_bounded() -> None:
    supervisor = Supervisor(in_flight_max=1)
    stage = stalled()
    with supervisor.admitted():
        supervisor.start(stage.run)
    assert supervisor.in_flight == 1
    with pytest.raises(RateLimited) as caught, supervisor.admitted():
        pass
    assert caught.value.code == "rate_limit_exceeded"
    await supervisor.drain()
    with supervisor.admitted():
        pass


def test_what_is_being_prepared_counts_as_well() -> None:
    supervisor = Supervisor(in_flight_max=1)
    with supervisor.admitted(), pytest.raises(RateLimited), supervisor.admitted():
        pass
    with supervisor.admitted():
        pass


async def test_draining_ends_what_runs_as_failed_and_keeps_it() -> None:
    supervisor = Supervisor(in_flight_max=8)
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


async def test_a_run_that_ended_is_forgotten() -> None:
    supervisor = Supervisor(in_flight_max=1)
    stage = Stage(ScriptedTokens([says(ANSWER)]))
    supervisor.start(stage.run)
    await stage.live.closed.wait()
    await supervisor.drain()
    assert supervisor.in_flight == 0
