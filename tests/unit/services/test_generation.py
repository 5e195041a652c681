"""What a generation says of a run that was taken away from this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.errors import UpstreamFailed
from gateway.services.generation import Started
from tests.fakes.staged_run import ScriptedTokens, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.runs.live import LiveLog

WITHIN_S = 60.0
FAILURE = UpstreamFailed("died", upstream="gpu-1")


def started(end: Callable[[LiveLog], None]) -> Started:
    stage = Stage(ScriptedTokens([]))
    stage.live.failure = FAILURE
    end(stage.live)
    return Started(stage.run, stage.live)


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
