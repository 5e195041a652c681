"""Summaries: what the model wrote, or an error, and what was used is booked once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.constraints.output_rules import OutputRules
from gateway.constraints.validation import Checker
from gateway.errors import SummaryFailed, UpstreamRejected
from gateway.protocol.call_items import call_fields
from tests.fakes.staged_run import ANSWER, LENGTH, THOUGHT, run_spec, says
from tests.fakes.summarising import RULES, SummaryDesk

if TYPE_CHECKING:
    from tests.fakes.staged_run import Step

SPEC = replace(run_spec(store=False), rules=RULES, checker=Checker(RULES, call_fields))
CUT = "<|channel|>final<|message|>They met at"


async def test_a_summary_is_what_was_said_aloud_and_is_booked_by_whoever_has_no_response() -> None:
    desk = SummaryDesk(says(THOUGHT + "<|start|>assistant" + ANSWER))
    summary = await desk.compactor().make(SPEC)
    assert summary.text == "Hello there"
    assert summary.fold.usage.reasoning_tokens == 1
    assert desk.booked == []
    desk.compactor().book(summary)
    assert desk.booked == ["completed"]


async def test_a_summary_that_was_cut_is_one_all_the_same() -> None:
    desk = SummaryDesk(says(CUT, LENGTH))
    summary = await desk.compactor().make(SPEC)
    assert (summary.text, summary.finished.status) == ("They met at", "incomplete")


@pytest.mark.parametrize(
    "turns",
    [
        [says(THOUGHT, LENGTH)],
        [says(THOUGHT), says("<|return|>")],
        [says("<|channel|>final<|message|> \n<|return|>")],
    ],
    ids=["cut while it thinks", "silent", "blank"],
)
async def test_an_empty_summary_is_an_error(turns: list[list[Step]]) -> None:
    desk = SummaryDesk(*turns)
    with pytest.raises(SummaryFailed, match="nothing that could be"):
        await desk.compactor().make(SPEC)
    assert len(desk.booked) == 1


async def test_a_model_that_will_not_obey_is_an_error() -> None:
    # Of a summary nothing is demanded that a model could refuse; the course of a run may change.
    demanding = OutputRules({}, frozenset(), calls="required", open_calls=False)
    desk = SummaryDesk(says(ANSWER), rules=demanding, repairs_max=0)
    with pytest.raises(SummaryFailed, match="something else: required_tool_not_called"):
        await desk.compactor().make(
            replace(SPEC, rules=demanding, checker=Checker(demanding, call_fields))
        )
    assert desk.booked == ["failed"]


async def test_a_backend_that_refuses_is_an_error_of_its_own() -> None:
    desk = SummaryDesk([UpstreamRejected("no", upstream="gpu")])
    with pytest.raises(UpstreamRejected):
        await desk.compactor().make(SPEC)
    assert desk.booked == ["failed"]


async def test_a_summary_that_takes_too_long_is_an_error() -> None:
    desk = SummaryDesk(says(CUT, None), run_time_max_s=0)
    desk.tokens.hang = True
    with pytest.raises(SummaryFailed, match="too long"):
        await desk.compactor().make(SPEC)
    assert desk.booked == ["failed"]


async def test_a_caller_that_leaves_stops_the_model() -> None:
    desk = SummaryDesk(says(CUT, None))
    desk.tokens.hang = True
    with pytest.raises(TimeoutError):
        await _left(desk)
    assert desk.tokens.closed == 1
    assert desk.booked == ["cancelled"]


async def _left(desk: SummaryDesk) -> None:
    async with asyncio.timeout(None) as scope, asyncio.TaskGroup() as group:
        group.create_task(_leave_when(desk.tokens.reached, scope))
        await desk.compactor().make(SPEC)


async def _leave_when(reached: asyncio.Event, scope: asyncio.Timeout) -> None:
    await reached.wait()
    scope.reschedule(asyncio.get_running_loop().time())
