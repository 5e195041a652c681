"""What a generation says of a run that was taken away from this process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.entries import Compacted
from gateway.errors import ConversationLocked, UpstreamFailed
from gateway.services.creation import ForegroundGeneration
from tests.fakes.staged_run import MemoryArchive, ScriptedTokens, Stage, run_spec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.engine.runner import Run
    from gateway.eventlog.live_log import LiveLog

WITHIN_S = 60.0
FAILURE = UpstreamFailed("died", upstream="gpu-1")


def started(end: Callable[[LiveLog], None]) -> Run:
    stage = Stage(ScriptedTokens([]))
    stage.live.failure = FAILURE
    end(stage.live)
    return stage.run


async def test_a_failure_before_any_output_is_raised() -> None:
    failed = started(lambda live: live.give_up(FAILURE))
    assert failed.failure is FAILURE
    with pytest.raises(UpstreamFailed):
        await failed.produced(WITHIN_S)


async def test_a_failure_here_says_nothing_once_others_go_on() -> None:
    gone = started(lambda live: live.hand_over())
    assert gone.failure is None
    await gone.produced(WITHIN_S)


async def test_what_is_not_known_in_time_is_not_waited_for() -> None:
    failing = started(lambda _: None)
    await failing.produced(0.0)
    with pytest.raises(UpstreamFailed):
        raise failing.failure or AssertionError


@pytest.mark.parametrize(
    "asked",
    [
        lambda generation: generation.produced(WITHIN_S),
        lambda generation: generation.stream(lambda _: None, grace_s=WITHIN_S),
        lambda generation: generation.stream(lambda _: None),
        lambda generation: generation.response(),
    ],
    ids=["produced", "play", "play without a grace", "response"],
)
async def test_what_is_not_recorded_is_told_as_that_though_it_has_a_summary(
    asked: Callable[[ForegroundGeneration], Awaitable[object]],
) -> None:
    spec = replace(run_spec(), compacted=Compacted((1, 2), "seal", output_tokens=20))
    stage = Stage(ScriptedTokens([]), MemoryArchive(refusal=ConversationLocked()), spec)
    generation = ForegroundGeneration(stage.run)
    async with asyncio.TaskGroup() as group:
        group.create_task(stage.run())
        with pytest.raises(ConversationLocked):
            await asked(generation)
