"""A closed answer ends the matter, and a call that is shown as completed has whole arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.engine.output_guard import GuardLimits
from gateway.entries import Entry, Repair, Tokens, TurnStarted
from gateway.generation import TokenChunk
from tests.fakes.guarded_run import (
    ANY_TOOL,
    IN_JSON,
    NEXT,
    PROMPT,
    ended,
    prefills,
    repairs,
    staged,
)
from tests.fakes.harmony_script import script_ids
from tests.fakes.staged_run import NO_RULES, STOP, Stage, folds, run_spec, says

if TYPE_CHECKING:
    from tests.fakes.staged_run import ScriptedTokens

ANSWERED = "<|channel|>final<|message|>hi<|end|>"
CALL = "<|channel|>commentary to=functions.free <|constrain|>json<|message|>"
NEVER = GuardLimits(repairs_max=0)
JUNK = [
    "<|message|><|return|>",
    "<|message|>More<|return|>",
    "<|channel|>??<|message|>More<|return|>",
    "<|channel|>??<|return|>",
    "<|channel|>??",
    NEXT + "<|channel|>??<|message|>More<|return|>",
    NEXT + " to=python<|channel|>analysis code<|message|>print(1)<|call|>",
    NEXT + "<|channel|>commentary to=nobody<|message|>{}<|call|>",
    NEXT + "<|channel|>final" + " word" * 70 + "<|return|>",
    NEXT + "More<|return|>",
    "More<|return|>",
    "<|return|>",
]


def said(stage: Stage[ScriptedTokens]) -> list[str]:
    output = stage.live.fold.response()["output"]
    return [item["content"][0]["text"] for item in output if item["type"] == "message"]


def arguments(stage: Stage[ScriptedTokens]) -> list[tuple[str, str]]:
    output = stage.live.fold.response()["output"]
    calls = [item for item in output if item["type"] == "function_call"]
    return [(item["status"], item["arguments"]) for item in calls]


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("limits", [GuardLimits(), NEVER], ids=["steered", "left alone"])
async def test_junk_behind_an_answer_asks_for_no_other(junk: str, limits: GuardLimits) -> None:
    stage = staged(ANY_TOOL, says(ANSWERED + junk), limits=limits)

    assert await ended(stage) == ("completed", None)

    assert said(stage) == ["hi"]
    assert prefills(stage) == [()]
    assert len(stage.tokens.requests) == 1


@pytest.mark.parametrize("limits", [GuardLimits(), NEVER], ids=["steered", "left alone"])
async def test_what_is_dropped_behind_an_answer_is_counted_and_not_paid_for(
    limits: GuardLimits,
) -> None:
    stage = staged(NO_RULES, says(ANSWERED + "<|message|>More<|return|>"), limits=limits)
    await ended(stage)

    fold = stage.live.fold
    assert fold.recoveries["after_answer_dropped"] == 1
    assert repairs(stage) == ["after_answer_dropped"]
    assert fold.usage.output_tokens == len(script_ids(ANSWERED))


async def test_another_replica_asks_for_no_other_answer_either() -> None:
    log: list[Entry] = [
        TurnStarted(len(PROMPT)),
        Tokens(tuple(script_ids(ANSWERED + "<|message|>"))),
    ]
    for written in ([], [Repair(1, "after_answer_dropped")]):
        stage = staged(NO_RULES, said=[*log, *written])
        assert await ended(stage) == ("completed", None)
        assert said(stage) == ["hi"]


async def test_messages_that_need_no_guess_may_follow_an_answer() -> None:
    more = NEXT + "<|channel|>analysis<|message|>Hm<|end|>" + NEXT
    two = ANSWERED + more + "<|channel|>final<|message|>ho<|end|>" + NEXT + CALL + '{"n": 1}'
    stage = staged(ANY_TOOL, says(two + "<|call|>"))

    assert await ended(stage) == ("completed", None)

    assert said(stage) == ["hi", "ho"]
    assert arguments(stage) == [("completed", '{"n": 1}')]
    assert repairs(stage) == []


async def test_thoughts_beyond_the_budget_ask_for_no_other_answer() -> None:
    thinks_on = ANSWERED + NEXT + "<|channel|>analysis<|message|>one two three four<|end|>"
    stage = staged(NO_RULES, says(thinks_on), reasoning_budget=2)

    assert await ended(stage) == ("completed", None)

    assert said(stage) == ["hi"]
    assert prefills(stage) == [()]


async def test_a_wrong_call_behind_an_answer_asks_for_no_other() -> None:
    strict = NEXT + "<|channel|>commentary to=functions.strict json<|message|>{}<|call|>"
    rules = replace(ANY_TOOL)
    stage = staged(rules, says(ANSWERED + strict))

    assert (await ended(stage))[0] == "completed"

    assert said(stage) == ["hi"]
    assert prefills(stage) == [()]


async def test_an_answer_in_a_format_is_still_checked_before_junk_ends_the_turn() -> None:
    wrong = '<|channel|>final <|constrain|>json<|message|>{"n": "one"}<|end|><|message|>'
    right = '{"n": 1}<|return|>'
    stage = staged(IN_JSON, says(wrong), says(right.replace("{", "", 1)), says(right))

    assert (await ended(stage))[0] == "completed"

    assert said(stage) == ['{"n": 1}']


@pytest.mark.parametrize(
    "marker", ["<|start|>", "<|channel|>", "<|end|>", "<|call|>", "<|return|>"]
)
async def test_a_call_that_breaks_off_is_said_on(marker: str) -> None:
    broken = says(CALL + '{"n": [1' + marker + "assistant<|channel|>final<|message|>So")
    stage = staged(ANY_TOOL, broken, says(", 2]}<|call|>"))

    assert await ended(stage) == ("completed", None)

    assert arguments(stage) == [("completed", '{"n": [1, 2]}')]
    assert repairs(stage) == ["said_anew"]
    assert prefills(stage) == [()]
    assert stage.tokens.requests[1].prompt_ids == [*PROMPT, *script_ids(CALL + '{"n": [1')]


async def test_no_call_of_two_is_shown_as_completed_with_half_a_json() -> None:
    two = CALL + '{"n": <|start|>assistant' + CALL + '{"n": 1}<|call|>'
    stage = staged(ANY_TOOL, *[says(two)] * 3, says("2}<|call|>"))
    assert await ended(stage) == ("completed", None)
    assert arguments(stage) == [("completed", '{"n": 2}')]

    stage = staged(ANY_TOOL, says(two), limits=NEVER)
    assert await ended(stage) == ("failed", "invalid_tool_call")
    assert arguments(stage) == [("incomplete", '{"n": ')]


async def test_a_call_that_breaks_off_over_and_over_fails() -> None:
    stage = staged(ANY_TOOL, says(CALL + '{"n": <|call|>'), *[says("[<|call|>")] * 3)

    assert await ended(stage) == ("failed", "invalid_tool_call")

    assert arguments(stage) == [("incomplete", '{"n": [[[')]
    assert repairs(stage) == ["said_anew"] * 3


async def test_a_call_that_a_backend_ends_in_the_middle_fails() -> None:
    stage = staged(ANY_TOOL, [*says(CALL + '{"n": 1', None), TokenChunk([], STOP)])

    assert await ended(stage) == ("failed", "invalid_tool_call")

    assert arguments(stage) == [("incomplete", '{"n": 1')]


async def test_arguments_that_were_never_json_are_passed_on() -> None:
    stage = staged(ANY_TOOL, says(CALL + "ls -la<|call|>"))

    assert await ended(stage) == ("completed", None)

    assert arguments(stage) == [("completed", "ls -la")]


async def test_a_strict_call_that_breaks_off_is_asked_for_again() -> None:
    strict = CALL.replace("free", "strict")
    stage = staged(
        ANY_TOOL,
        says(strict + '{"n": <|call|>'),
        says(NEXT.removeprefix("<|start|>assistant") + strict + '{"n": 1}<|call|>'),
    )

    assert await ended(stage) == ("completed", None)

    assert arguments(stage) == [("completed", '{"n": 1}')]


async def test_a_log_of_two_calls_shows_the_broken_one_as_incomplete() -> None:
    fold = folds(run_spec().head, ANY_TOOL)()
    fold.apply(TurnStarted(len(PROMPT)))
    fold.apply(Tokens(tuple(script_ids(CALL + '{"n": <|end|>' + NEXT + CALL + "{}<|call|>"))))

    output = fold.response()["output"]

    assert [item["status"] for item in output] == ["incomplete", "completed"]
