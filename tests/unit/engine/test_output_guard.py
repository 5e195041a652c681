"""A model that does not do as it was told is made to, or its response fails and says why."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.constraints.output_rules import OutputRules, ToolRule
from gateway.engine.output_guard import GuardLimits
from gateway.engine.turn import INLINE_TOOLS
from gateway.entries import Hold, Repair, Tokens, TurnEnded, TurnStarted
from gateway.errors import UpstreamFailed, UpstreamLost
from gateway.generation import FinishReason, ParserPosition, SegmentKind, Where
from gateway.models.format import GrammarOptions
from gateway.models.harmony.grammar import turn_constraint
from gateway.models.harmony.harmony_format import answer_header
from gateway.models.harmony.tokenizer import END, FINAL_HEADER, OPENING
from tests.fakes.guarded_run import (
    ANY_TOOL,
    FORBIDDEN,
    FREE,
    IN_JSON,
    JSON_ANSWER,
    NEXT,
    PROMPT,
    REQUIRED,
    STRICT,
    THINKING,
    ended,
    kinds,
    prefills,
    repairs,
    staged,
    vouched,
)
from tests.fakes.harmony_script import harmony, script_ids, vocabulary
from tests.fakes.staged_run import ANSWER, NO_RULES, THOUGHT, run_spec, says
from tests.fakes.wayward_model import TOOLS

if TYPE_CHECKING:
    from gateway.entries import Entry


async def test_a_call_that_may_not_be_made_is_taken_back_and_the_answer_opened() -> None:
    rules = replace(ANY_TOOL, allowed=frozenset({"free"}), open_calls=False)
    stage = staged(rules, says(THOUGHT + NEXT + FORBIDDEN), says("It is 1.<|return|>"))
    assert await ended(stage) == ("completed", None)
    assert kinds(stage) == ["reasoning", "message"]
    assert repairs(stage) == ["call_not_allowed"]
    thought = script_ids(THOUGHT)
    assert stage.tokens.requests[1].prompt_ids == [*PROMPT, *thought, *OPENING, *FINAL_HEADER]
    assert stage.tokens.closed == 2


async def test_prose_where_a_call_is_required_makes_room_for_the_call() -> None:
    stage = staged(REQUIRED, says(ANSWER), says('{"n": 1}<|call|>'))
    assert await ended(stage) == ("completed", None)
    assert kinds(stage) == ["function_call"]
    assert prefills(stage) == [(), harmony().call_opening(REQUIRED)]


async def test_a_thought_alone_is_followed_by_the_call_that_is_required() -> None:
    stage = staged(REQUIRED, says(THOUGHT + NEXT + "<|return|>"), says('{"n": 1}<|call|>'))
    assert await ended(stage) == ("completed", None)
    assert kinds(stage) == ["reasoning", "function_call"]


async def test_a_model_that_never_calls_a_tool_fails_its_response() -> None:
    rules = replace(REQUIRED, allowed=frozenset(TOOLS))
    stage = staged(rules, says(ANSWER), *[says("<|return|>")] * 3)
    assert await ended(stage) == ("failed", "required_tool_not_called")
    assert kinds(stage) == []


async def test_a_model_that_insists_on_prose_fails_its_response() -> None:
    stage = staged(REQUIRED, says(ANSWER), limits=GuardLimits(repairs_max=0))
    assert await ended(stage) == ("failed", "required_tool_not_called")
    assert "tool_choice" in stage.live.fold.response()["error"]["message"]


async def test_an_answer_that_is_no_json_is_asked_for_again_ever_more_firmly() -> None:
    stage = staged(IN_JSON, says(ANSWER), says("So: 1<|return|>"), says('"n": 2}<|return|>'))
    assert await ended(stage) == ("completed", None)
    assert stage.text == '{"n": 2}'
    assert prefills(stage)[1:] == [answer_header(IN_JSON, attempt=n) for n in (1, 2)]


async def test_an_answer_that_breaks_its_schema_is_never_completed() -> None:
    wrong = '<|channel|>final<|message|>{"n": "one"}<|return|>'
    stage = staged(IN_JSON, says(wrong), says('"n": "two"}<|return|>'), limits=GuardLimits(1))
    assert await ended(stage) == ("failed", "invalid_structured_output")
    assert kinds(stage) == []


async def test_what_somebody_has_seen_is_not_repaired() -> None:
    stage = staged(IN_JSON, vouched('<|channel|>final<|message|>{"n": "one"}<|return|>'))
    assert await ended(stage) == ("failed", "invalid_structured_output")
    assert repairs(stage) == []


async def test_wrong_arguments_are_asked_for_again() -> None:
    right = says(STRICT + '{"n": 1}<|call|>')
    stage = staged(ANY_TOOL, says(STRICT + '{"n": "one"}<|call|>'), right)
    assert await ended(stage) == ("completed", None)
    assert repairs(stage) == ["invalid_tool_call"]
    assert prefills(stage) == [(), ()]
    assert stage.live.fold.response()["output"][0]["arguments"] == '{"n": 1}'


async def test_a_long_body_is_checked_too() -> None:
    long = '{"n": "' + "one " * 2000 + '"}'
    stage = staged(
        ANY_TOOL,
        says(STRICT + long + "<|call|>"),
        max_tokens=9000,
        limits=GuardLimits(0, repeated_tokens_max=0),
    )
    assert await ended(stage) == ("failed", "invalid_tool_call")


async def test_a_second_call_where_one_may_be_made_ends_the_turn() -> None:
    rules = replace(ANY_TOOL, one_call=True)
    stage = staged(rules, says(FREE + "<|end|>" + NEXT + FREE + "<|call|>"))
    assert await ended(stage) == ("completed", None)
    assert kinds(stage) == ["function_call"]
    assert repairs(stage) == ["second_call"]


@pytest.mark.parametrize("constrained", [True, False])
async def test_who_is_not_held_to_the_rules_is_checked_before_it_shows(
    *, constrained: bool
) -> None:
    turn = vouched(JSON_ANSWER) if constrained else says(JSON_ANSWER)
    stage = staged(IN_JSON, turn)
    assert await ended(stage) == ("completed", None)
    assert (Hold() in stage.journal.entries) is not constrained
    kind = "constrained" if constrained else "held"
    labels = {"upstream": "gpu" if constrained else "", "kind": kind}
    assert stage.metrics.registry.get_sample_value("gateway_bound_turns_total", labels) == 1


async def test_a_request_carries_its_constraint_and_its_priority() -> None:
    stage = staged(IN_JSON, vouched(JSON_ANSWER), priority=1)
    await stage.play()
    (request,) = stage.tokens.requests
    assert request.constraint is not None
    assert request.priority == 1
    free = staged(NO_RULES, says(ANSWER))
    await free.play()
    assert free.tokens.requests[0].constraint is None


async def test_the_calls_of_many_tools_are_bound_as_those_of_a_few() -> None:
    names = [f"tool_{number}" for number in range(INLINE_TOOLS + 1)]
    tools = {
        name: ToolRule(name, SegmentKind.FUNCTION_CALL, name, schema={"type": "object"})
        for name in names
    }
    rules = OutputRules(tools, frozenset(tools))
    stage = staged(rules, vouched(ANSWER))
    await stage.play()
    (request,) = stage.tokens.requests
    here = turn_constraint(
        rules, ParserPosition(Where.HEADER, 0), OPENING, GrammarOptions(), vocabulary()
    )
    assert request.constraint == here
    assert request.constraint is not None
    assert request.constraint.calls == len(names)


@pytest.mark.parametrize("size", [1, 5, 50])
async def test_reasoning_ends_exactly_where_its_budget_does(size: int) -> None:
    endless = vouched(THINKING + "so " * 30, size)
    stage = staged(NO_RULES, endless, says("Well.<|return|>"), reasoning_budget=7)
    assert await ended(stage) == ("completed", None)
    assert stage.live.fold.usage.reasoning_tokens == 7
    assert prefills(stage) == [(), FINAL_HEADER]
    assert kinds(stage) == ["reasoning", "message"]
    closed = [*PROMPT, *script_ids(THINKING), *script_ids("so " * 30)[:7], END]
    assert stage.tokens.requests[1].prompt_ids[: len(closed)] == closed


async def test_after_its_budget_a_model_may_call_a_tool_but_not_think_on() -> None:
    stage = staged(
        ANY_TOOL,
        says(THINKING + "so " * 30),
        says(THINKING + "so on"),
        says("Well.<|return|>"),
        reasoning_budget=7,
    )
    assert await ended(stage) == ("completed", None)
    assert prefills(stage) == [(), (), FINAL_HEADER]
    assert stage.live.fold.usage.reasoning_tokens == 7


async def test_reasoning_that_ends_by_itself_is_not_cut() -> None:
    budget = len(script_ids("Hm"))
    stage = staged(NO_RULES, says(THOUGHT + NEXT + ANSWER), reasoning_budget=budget)
    assert await ended(stage) == ("completed", None)
    assert repairs(stage) == []


PREAMBLE = "<|channel|>commentary<|message|>"
BRIEF = GuardLimits(preamble_tokens_max=20)


@pytest.mark.parametrize("size", [1, 5, 100])
async def test_a_call_that_is_required_is_opened_behind_a_preamble_of_some_length(
    size: int,
) -> None:
    turns = vouched(PREAMBLE + "so " * 60, size), says('{"n": 1}<|call|>')
    stage = staged(REQUIRED, *turns, limits=BRIEF)
    assert await ended(stage) == ("completed", None)
    assert kinds(stage) == ["message", "function_call"]
    assert prefills(stage) == [(), harmony().call_opening(REQUIRED)]
    assert repairs(stage) == ["preamble_too_long"]
    assert len(stage.live.fold.turns[0].output_ids) == BRIEF.preamble_tokens_max
    assert stage.live.fold.usage.voided_tokens == 0


async def test_all_preambles_before_a_required_call_count_together_and_thoughts_do_not() -> None:
    shown = THOUGHT + NEXT + PREAMBLE + "so so<|end|>" + NEXT + PREAMBLE + "so " * 60
    stage = staged(REQUIRED, says(shown), says('{"n": 1}<|call|>'), limits=BRIEF)
    assert await ended(stage) == ("completed", None)
    assert kinds(stage) == ["reasoning", "message", "message", "function_call"]
    usage = stage.live.fold.usage
    said = len(stage.live.fold.turns[0].output_ids) - usage.reasoning_tokens
    assert said == BRIEF.preamble_tokens_max


async def test_a_required_call_is_opened_though_nothing_else_may_be_repaired() -> None:
    brief = GuardLimits(repairs_max=0, preamble_tokens_max=20)
    turns = says(PREAMBLE + "so " * 60), says('{"n": 1}<|call|>')
    assert await ended(staged(REQUIRED, *turns, limits=brief)) == ("completed", None)


async def test_a_model_that_says_preambles_instead_of_its_call_fails_its_response() -> None:
    again = says('{"n":' + "<|end|>" + NEXT + PREAMBLE + "so " * 60)
    turns = says(PREAMBLE + "so " * 60), again, again, again, again
    stage = staged(REQUIRED, *turns, limits=BRIEF)
    status, _ = await ended(stage)
    assert status in {"failed", "completed"}
    assert len(stage.tokens.requests) <= 5


@pytest.mark.parametrize(
    ("rules", "limits"), [(ANY_TOOL, BRIEF), (REQUIRED, GuardLimits(preamble_tokens_max=0))]
)
async def test_a_preamble_is_of_any_length_where_no_call_is_required_or_no_bound_set(
    rules: OutputRules, limits: GuardLimits
) -> None:
    call = "<|end|>" + NEXT + FREE + "<|call|>"
    stage = staged(rules, says(PREAMBLE + "so " * 60 + call), limits=limits)
    assert await ended(stage) == ("completed", None)
    assert repairs(stage) == []


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_response_of_too_many_messages_ends(size: int) -> None:
    words = ["one", "two", "three", "four", "five", "six"]
    endless = "".join(f"<|channel|>commentary<|message|>{word}<|end|>{NEXT}" for word in words * 6)
    stage = staged(NO_RULES, vouched(endless, size), limits=GuardLimits(messages_max=4))
    assert await ended(stage) == ("incomplete", None)
    assert len(kinds(stage)) == 5
    assert repairs(stage) == ["too_many_messages"]


@pytest.mark.parametrize("size", [1, 7, 100])
async def test_a_model_that_repeats_itself_is_stopped(size: int) -> None:
    turn = vouched("<|channel|>final<|message|>" + "no " * 400, size)
    stage = staged(NO_RULES, turn, limits=GuardLimits(repeated_tokens_max=128))
    assert await ended(stage) == ("incomplete", None)
    assert stage.live.fold.usage.output_tokens == 192
    labels = {"rule": "repetition", "upstream": "gpu"}
    assert stage.metrics.registry.get_sample_value("gateway_repairs_total", labels) == 1


async def test_a_stop_string_ends_the_answer() -> None:
    rules = OutputRules({}, frozenset(), stop=("STOP",))
    stage = staged(rules, says("<|channel|>final<|message|>One STOP two three four"))
    assert await ended(stage) == ("completed", None)
    assert stage.text == "One "
    assert (
        len(stage.live.fold.turns[0].output_ids)
        < len(script_ids("<|message|>One STOP two three")) + 2
    )


async def test_a_stop_string_may_be_all_there_is() -> None:
    rules = OutputRules({}, frozenset(), stop=("One",))
    stage = staged(rules, says("<|channel|>final<|message|>One two three four"))
    assert await ended(stage) == ("completed", None)
    assert len(stage.tokens.requests) == 1


async def test_a_header_without_end_is_begun_again() -> None:
    limits = GuardLimits(header_tokens_max=8)
    stage = staged(
        NO_RULES, says("word " * 40), says("final<|message|>Hi<|return|>"), limits=limits
    )
    assert await ended(stage) == ("completed", None)
    assert prefills(stage) == [(), harmony().message_opening()]
    assert kinds(stage) == ["message"]


async def test_a_header_is_repaired_only_so_often() -> None:
    limits = GuardLimits(repairs_max=0, header_tokens_max=8)
    stage = staged(NO_RULES, says("word " * 10 + "<|return|>"), limits=limits)
    assert await ended(stage) == ("completed", None)
    assert repairs(stage) == []


async def test_a_hop_within_a_header_begins_it_anew_so_that_a_grammar_can() -> None:
    died = UpstreamFailed("connection lost", upstream="gpu-1")
    stage = staged(IN_JSON, [*vouched(JSON_ANSWER)[:2], died], vouched(JSON_ANSWER))
    assert await ended(stage) == ("completed", None)
    assert repairs(stage) == ["begun_anew"]
    first, second = stage.tokens.requests
    assert second.prompt_ids == first.prompt_ids
    assert second.constraint == first.constraint
    assert stage.tokens.attempts_max == [None, 1]
    assert stage.live.fold.hops == 1


async def test_a_backend_that_is_lost_after_a_header_was_taken_back_is_not_the_last() -> None:
    died = UpstreamFailed("connection lost", upstream="gpu-1")
    lost = UpstreamLost("connection lost", upstream="gpu-2")
    stage = staged(IN_JSON, [*vouched(JSON_ANSWER)[:2], died], [lost], vouched(JSON_ANSWER))
    assert await ended(stage) == ("completed", None)


async def test_a_hop_within_an_answer_goes_on_under_a_hold() -> None:
    died = UpstreamFailed("connection lost", upstream="gpu-1")
    half = vouched(JSON_ANSWER)[:-4]
    stage = staged(IN_JSON, [*half, died], says(JSON_ANSWER)[len(half) :])
    assert await ended(stage) == ("completed", None)
    assert Hold() in stage.journal.entries
    assert stage.text == '{"n": 1}'


async def test_seeds_differ_after_a_repair() -> None:
    spec = run_spec()
    sampling = replace(spec.sampling, seed=5)
    stage = staged(
        replace(REQUIRED, allowed=frozenset(TOOLS)),
        says(ANSWER),
        says("nonsense<|channel|>commentary json<|message|>{}<|call|>"),
        says('free<|channel|>commentary json<|message|>{"n": 1}<|call|>'),
        sampling=sampling,
    )
    await stage.play()
    seeds = [request.sampling.seed for request in stage.tokens.requests]
    assert len(seeds) == len(set(seeds)) > 1


REPAIRED: list[Entry] = [
    TurnStarted(len(PROMPT)),
    *[Tokens((token,)) for token in script_ids(THOUGHT + NEXT + "<|channel|>final<|message|>Hi")],
    Repair(6, "prose_for_call"),
]


@pytest.mark.parametrize("written", [0, 1], ids=["after the repair", "after the turn"])
async def test_another_replica_goes_on_with_a_repair(written: int) -> None:
    said = [*REPAIRED, TurnEnded(FinishReason.CUT)][: len(REPAIRED) + written]
    stage = staged(REQUIRED, says('{"n": 1}<|call|>'), said=said)
    assert await ended(stage) == ("completed", None)
    assert repairs(stage) == []
    assert prefills(stage) == [harmony().call_opening(REQUIRED)]
    assert kinds(stage) == ["reasoning", "function_call"]


async def test_another_replica_finds_what_the_one_before_had_yet_to_repair() -> None:
    stage = staged(REQUIRED, says('{"n": 1}<|call|>'), said=REPAIRED[:-1])
    assert await ended(stage) == ("completed", None)
    assert repairs(stage) == ["prose_for_call"]


async def test_a_repair_without_room_for_another_turn_ends_the_response() -> None:
    stage = staged(REQUIRED, says(ANSWER), max_tokens=4)
    assert await ended(stage) == ("incomplete", None)
    assert len(stage.tokens.requests) == 1
