"""Turns that can be read though they look odd, and turns that stop before they are done."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.constraints.output_rules import OutputRules
from gateway.engine.output_guard import GuardLimits
from gateway.entries import Tokens, TurnEnded, TurnStarted
from gateway.generation import FinishReason
from gateway.models.harmony.tokenizer import OPENING
from tests.fakes.guarded_run import (
    ANY_TOOL,
    FREE,
    IN_JSON,
    JSON_ANSWER,
    NEXT,
    PROMPT,
    ended,
    kinds,
    prefills,
    repairs,
    staged,
)
from tests.fakes.harmony_script import script_ids
from tests.fakes.staged_run import ANSWER, NO_RULES, THOUGHT, says
from tests.fakes.wayward_model import SCHEMA, TOOLS

if TYPE_CHECKING:
    from gateway.entries import Entry

PREAMBLE = "<|channel|>commentary<|message|>I will look at the folder now."
ONLY_PREAMBLE = PREAMBLE + "<|return|>"
CALL = FREE + "<|call|>"
ODD = ["<|channel|>thoughts<|message|>", "<|channel|><|message|>", "<|message|>"]


@pytest.mark.parametrize("header", ODD)
@pytest.mark.parametrize("rules", [NO_RULES, ANY_TOOL], ids=["free", "with tools"])
async def test_a_message_without_a_known_channel_is_a_thought_before_an_answer(
    rules: OutputRules, header: str
) -> None:
    said = f"{header}x<|end|>{NEXT}{ANSWER}"
    stage = staged(rules, says(said))
    assert await ended(stage) == ("completed", None)
    assert kinds(stage) == ["reasoning", "message"]
    assert stage.text == "Hello there"
    assert repairs(stage) == []
    assert stage.live.fold.usage.output_tokens == len(script_ids(said))


@pytest.mark.parametrize("header", ODD)
async def test_a_message_without_a_known_channel_is_the_answer_if_it_is_the_last(
    header: str,
) -> None:
    stage = staged(ANY_TOOL, says(THOUGHT + NEXT + f"{header}It is 1.<|return|>"))
    assert await ended(stage) == ("completed", None)
    assert kinds(stage) == ["reasoning", "message"]
    assert stage.text == "It is 1."
    assert repairs(stage) == []


async def test_a_channel_is_read_up_to_where_it_is_known() -> None:
    stage = staged(NO_RULES, says(f"<|channel|>analysis2<|message|>x<|end|>{NEXT}{ANSWER}"))
    assert await ended(stage) == ("completed", None)
    assert kinds(stage) == ["reasoning", "message"]
    assert repairs(stage) == []


async def test_json_without_a_known_channel_is_checked_as_the_answer_that_was_asked_for() -> None:
    odd = JSON_ANSWER.replace("final", "result").replace("1", '"one"')
    stage = staged(IN_JSON, says(odd), says('"n": 2}<|return|>'))
    assert await ended(stage) == ("completed", None)
    assert stage.text == '{"n": 2}'


@pytest.mark.parametrize(
    "header",
    ["<|channel|>commentary to=nobody<|message|>", "<|channel|>analysis to=python code<|message|>"],
)
async def test_a_message_for_nobody_is_asked_for_again(header: str) -> None:
    stage = staged(ANY_TOOL, says(header), says("final<|message|>Hi<|return|>"))
    assert await ended(stage) == ("completed", None)
    assert repairs(stage) == ["header_not_understood"]


NOBODYS = '<|channel|>commentary <|constrain|>json<|message|>{"n": "one"}<|call|>'
"""Arguments that are those of `strict`, but of the wrong type, without a recipient."""


def only(name: str) -> OutputRules:
    tool = replace(TOOLS[name], declared=SCHEMA)
    return OutputRules({name: tool}, frozenset({name}))


async def test_arguments_for_the_only_tool_are_passed_on_whatever_its_schema_says() -> None:
    stage = staged(only("free"), says(NOBODYS))
    assert await ended(stage) == ("completed", None)
    [call] = stage.live.fold.response()["output"]
    assert (call["name"], call["arguments"]) == ("free", '{"n": "one"}')


async def test_arguments_for_the_only_tool_are_asked_for_again_if_it_is_strict() -> None:
    stage = staged(only("strict"), says(NOBODYS), says(NOBODYS.replace('"one"', "1")))
    assert await ended(stage) == ("completed", None)
    [call] = stage.live.fold.response()["output"]
    assert (call["name"], call["arguments"]) == ("strict", '{"n": 1}')
    assert repairs(stage) == ["invalid_tool_call"]


@pytest.mark.parametrize("value", ["1", '"one"'], ids=["fits one schema", "fits none"])
async def test_arguments_for_one_of_several_tools_are_a_message_that_is_gone_on_from(
    value: str,
) -> None:
    said = NOBODYS.replace('"one"', value)
    stage = staged(ANY_TOOL, says(said), says(CALL))
    assert await ended(stage) == ("completed", None)
    assert kinds(stage) == ["message", "function_call"]


async def test_arguments_where_no_call_may_be_made_are_a_message() -> None:
    stage = staged(OutputRules({}, frozenset(), calls="none", open_calls=False), says(NOBODYS))
    assert await ended(stage) == ("completed", None)
    assert kinds(stage) == ["message"]
    assert len(stage.tokens.requests) == 1


async def test_a_preamble_without_the_call_it_announces_is_gone_on_from() -> None:
    stage = staged(ANY_TOOL, says(THOUGHT + NEXT + ONLY_PREAMBLE), says(CALL))
    assert await ended(stage) == ("completed", None)
    assert kinds(stage) == ["reasoning", "message", "function_call"]
    assert stage.live.fold.response()["output"][1]["phase"] == "commentary"
    assert prefills(stage) == [(), ()]
    first = script_ids(THOUGHT + NEXT + PREAMBLE + "<|end|>")
    assert stage.tokens.requests[1].prompt_ids == [*PROMPT, *first, *OPENING]
    assert repairs(stage) == []


async def test_what_goes_on_from_a_preamble_counts_as_output_and_the_prompt_once() -> None:
    stage = staged(ANY_TOOL, says(ONLY_PREAMBLE), says(ANSWER))
    assert await ended(stage) == ("completed", None)
    usage = stage.live.fold.usage
    assert usage.input_tokens == len(PROMPT)
    assert usage.output_tokens == len(script_ids(ONLY_PREAMBLE + ANSWER))
    assert usage.voided_tokens == 0


async def test_a_model_that_stops_at_a_second_preamble_is_let_go() -> None:
    stage = staged(ANY_TOOL, says(ONLY_PREAMBLE), says(ONLY_PREAMBLE))
    assert await ended(stage) == ("completed", None)
    assert kinds(stage) == ["message", "message"]
    assert stage.live.fold.recoveries["preamble_only"] == 2


@pytest.mark.parametrize(
    "rules",
    [NO_RULES, replace(ANY_TOOL, calls="none"), replace(ANY_TOOL, allowed=frozenset())],
    ids=["no tools", "tool_choice none", "none allowed"],
)
async def test_a_preamble_is_the_end_where_nothing_may_be_called(rules: OutputRules) -> None:
    stage = staged(rules, says(ONLY_PREAMBLE))
    assert await ended(stage) == ("completed", None)
    assert kinds(stage) == ["message"]


@pytest.mark.parametrize(
    "said",
    [
        PREAMBLE + "<|end|>" + NEXT + CALL,
        PREAMBLE + "<|end|>" + NEXT + ANSWER,
        PREAMBLE + "<|end|>" + NEXT + "<|message|>It is 1.<|return|>",
    ],
    ids=["a call", "an answer", "an answer without a channel"],
)
async def test_a_turn_with_more_than_a_preamble_is_done(said: str) -> None:
    stage = staged(ANY_TOOL, says(said))
    assert await ended(stage) == ("completed", None)
    assert len(stage.tokens.requests) == 1
    assert "preamble_only" not in stage.live.fold.recoveries


async def test_a_preamble_is_the_end_where_a_stop_string_left_nothing_of_the_answer() -> None:
    said = f"{PREAMBLE}<|end|>{NEXT}<|channel|>final<|message|>STOP"
    stage = staged(replace(ANY_TOOL, stop=("STOP",)), says(said))
    assert await ended(stage) == ("completed", None)


async def test_a_preamble_that_used_up_what_may_be_said_is_the_end() -> None:
    size = len(script_ids(ONLY_PREAMBLE))
    stage = staged(ANY_TOOL, says(ONLY_PREAMBLE), max_tokens=size + 2)
    assert await ended(stage) == ("completed", None)
    cut = staged(ANY_TOOL, says(PREAMBLE, FinishReason.LENGTH))
    assert await ended(cut) == ("incomplete", None)


async def test_models_that_may_stop_at_a_preamble_do() -> None:
    stage = replace(staged(ANY_TOOL, says(ONLY_PREAMBLE)), continues_preambles=False)
    assert await ended(stage) == ("completed", None)
    unrepaired = staged(ANY_TOOL, says(ONLY_PREAMBLE), limits=GuardLimits(repairs_max=0))
    assert await ended(unrepaired) == ("completed", None)


@pytest.mark.parametrize("written", range(3), ids=["said", "ended", "going on"])
async def test_another_replica_goes_on_from_a_preamble_as_the_one_before_would(
    written: int,
) -> None:
    said: list[Entry] = [
        TurnStarted(len(PROMPT)),
        Tokens(tuple(script_ids(ONLY_PREAMBLE))),
        TurnEnded(FinishReason.STOP),
        TurnStarted(0),
    ]
    stage = staged(ANY_TOOL, says(CALL), said=said[: 2 + written])
    assert await ended(stage) == ("completed", None)
    assert kinds(stage) == ["message", "function_call"]
    ids = script_ids(PREAMBLE + "<|end|>")
    assert stage.tokens.requests[0].prompt_ids == [*PROMPT, *ids, *OPENING]
    assert stage.live.fold.usage.input_tokens == len(PROMPT)


@pytest.mark.parametrize(
    ("then", "found"),
    [(CALL, ["reasoning", "function_call"]), (JSON_ANSWER, ["reasoning", "message"])],
    ids=["the call", "the answer"],
)
async def test_a_preamble_beside_an_answer_in_a_format_is_gone_on_from_too(
    then: str, found: list[str]
) -> None:
    rules = replace(ANY_TOOL, answer=IN_JSON.answer)
    stage = staged(rules, says(ONLY_PREAMBLE), says(then))
    assert await ended(stage) == ("completed", None)
    assert prefills(stage) == [(), ()]
    assert kinds(stage) == found


async def test_the_answer_in_a_format_is_owed_behind_a_second_preamble() -> None:
    rules = replace(ANY_TOOL, answer=IN_JSON.answer)
    stage = staged(rules, says(ONLY_PREAMBLE), says(ONLY_PREAMBLE), says('"n": 2}<|return|>'))
    assert await ended(stage) == ("completed", None)
    assert stage.text.endswith('{"n": 2}')


async def test_the_last_try_is_for_the_answer_in_a_format() -> None:
    rules, limits = replace(ANY_TOOL, answer=IN_JSON.answer), GuardLimits(repairs_max=1)
    answer = JSON_ANSWER.partition("<|message|>")[2]
    stage = staged(rules, says(ONLY_PREAMBLE), says(answer), limits=limits)
    assert await ended(stage) == ("completed", None)
    assert kinds(stage) == ["reasoning", "message"]
