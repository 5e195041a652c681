"""What nobody has seen of a body that turns out wrong is said again, behind what was seen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.engine.failover import HopPolicy
from gateway.engine.output_guard import MESSAGES_MAX, GuardLimits
from gateway.entries import Entry, Hold, Hop, Repair, Tokens, TurnEnded, TurnStarted
from gateway.errors import UpstreamFailed, UpstreamLost
from gateway.generation import Ebnf, TokenChunk
from gateway.upstreams.problems import GrammarFailed
from tests.fakes.guarded_run import (
    ANY_TOOL,
    FREE,
    IN_JSON,
    JSON_ANSWER,
    NEXT,
    PROMPT,
    REQUIRED,
    STRICT,
    ended,
    kinds,
    prefills,
    repairs,
    staged,
    vouched,
)
from tests.fakes.harmony_script import script_ids
from tests.fakes.staged_run import NO_RULES, STOP, THOUGHT, Stage, run_spec, says
from tests.fakes.turn_matching import allows

if TYPE_CHECKING:
    from gateway.constraints.output_rules import OutputRules
    from tests.fakes.staged_run import ScriptedTokens

DIED = UpstreamFailed("connection lost", upstream="gpu-1")
STUCK = GrammarFailed("Internal server error", upstream="gpu-1")
BEGINNING = '<|channel|>final <|constrain|>json<|message|>{"n"'
BEGUN = [*vouched(BEGINNING)[:-1], DIED]
"""A backend that vouches for what it says, and breaks off in the middle of an answer."""
WRONG, RIGHT = says(': "one"}<|return|>'), says(": 2}<|return|>")


def anew(stage: Stage[ScriptedTokens], index: int) -> bool:
    """A request goes on behind what was seen."""
    return bool(stage.tokens.requests[index].prompt_ids == [*PROMPT, *script_ids(BEGINNING)])


async def test_the_rest_of_an_answer_that_turned_out_wrong_is_said_again() -> None:
    spec = run_spec()
    stage = staged(IN_JSON, BEGUN, WRONG, RIGHT, sampling=replace(spec.sampling, seed=5))
    assert await ended(stage) == ("completed", None)
    assert stage.text == '{"n": 2}'
    assert repairs(stage) == ["said_anew"]
    assert anew(stage, 1)
    assert anew(stage, 2)
    first, second = stage.tokens.requests[1:]
    assert first.sampling.seed != second.sampling.seed
    assert first.sampling.max_tokens == second.sampling.max_tokens
    assert stage.tokens.attempts_max == [None, 1, 1]
    usage = stage.live.fold.usage
    assert usage.voided_tokens == len(script_ids(': "one"}<|return|>'))
    assert usage.output_tokens == len(script_ids(BEGINNING)) + len(RIGHT) - 1
    labels = {"upstream": ""}
    voided = stage.metrics.registry.get_sample_value("gateway_voided_tokens_total", labels)
    assert voided == usage.voided_tokens


async def test_the_rest_of_an_answer_is_bound_and_not_held() -> None:
    stage = staged(IN_JSON, BEGUN, vouched(": 2}<|return|>"))
    assert await ended(stage) == ("completed", None)
    assert Hold() not in stage.journal.entries
    constraint = stage.tokens.requests[1].constraint
    assert constraint is not None
    assert isinstance(constraint.turn, Ebnf)
    assert constraint.exact
    assert constraint.bare


async def test_who_goes_on_behind_a_thought_is_allowed_no_other() -> None:
    thought = "<|channel|>analysis<|message|>Hm<|end|>"
    stage = staged(IN_JSON, [*vouched(thought), DIED], vouched(NEXT + JSON_ANSWER))
    assert await ended(stage) == ("completed", None)
    first, second = (request.constraint for request in stage.tokens.requests)
    assert first is not None
    assert second is not None
    assert allows(first.turn, f"{thought}{NEXT}{JSON_ANSWER}".removesuffix("<|return|>"))
    answer = JSON_ANSWER.removesuffix("<|return|>")
    assert allows(second.turn, NEXT + answer)
    assert not allows(second.turn, NEXT + thought + NEXT + answer)


@pytest.mark.parametrize(
    ("rules", "script"),
    [(IN_JSON, JSON_ANSWER), (ANY_TOOL, STRICT + '{"n": 2}<|call|>')],
    ids=["answer", "call"],
)
async def test_what_only_lacks_its_end_is_asked_of_nobody_else(
    rules: OutputRules, script: str
) -> None:
    ids = script_ids(script)
    stage = staged(rules, [*vouched(script)[: len(ids) - 1], DIED])
    assert await ended(stage) == ("completed", None)
    assert len(stage.tokens.requests) == 1
    (item,) = stage.live.fold.response()["output"]
    assert item["status"] == "completed"
    assert stage.live.fold.usage.output_tokens == len(ids) - 1


async def test_a_backend_that_was_lost_before_an_answer_is_not_to_blame_for_it() -> None:
    thought = [*vouched("<|channel|>analysis<|message|>Hm")[:-1], DIED]
    wrong = vouched(" so<|end|>" + NEXT + BEGINNING + ': "one"}<|return|>')
    stage = staged(IN_JSON, thought, wrong, limits=GuardLimits(repairs_max=0))
    assert await ended(stage) == ("failed", "invalid_structured_output")


async def test_it_is_no_hop_to_say_something_again() -> None:
    stage = staged(IN_JSON, BEGUN, WRONG, RIGHT)
    assert await ended(stage) == ("completed", None)
    assert stage.live.fold.hops == 1
    assert prefills(stage) == [()]


async def test_a_backend_that_fails_while_it_says_something_again_is_left_for_another() -> None:
    lost = UpstreamLost("connection lost", upstream="gpu-2")
    stage = staged(IN_JSON, BEGUN, WRONG, [lost], RIGHT)
    assert await ended(stage) == ("completed", None)
    assert stage.live.fold.hops == 2, "the one that is lost had read all of it"


async def test_the_arguments_of_a_call_are_said_again_too() -> None:
    begun = [*vouched(STRICT + '{"n"')[:-1], DIED]
    stage = staged(ANY_TOOL, begun, says(': "one"}<|call|>'), says(": 2}<|call|>"))
    assert await ended(stage) == ("completed", None)
    assert stage.live.fold.response()["output"][0]["arguments"] == '{"n": 2}'


async def test_what_follows_a_wrong_body_goes_with_it() -> None:
    rules = replace(ANY_TOOL, one_call=True)
    begun = [*vouched(STRICT + '{"n"')[:-1], DIED]
    two = says(': "one"}<|end|>' + NEXT + FREE + "<|call|>")
    stage = staged(rules, begun, two, says(": 2}<|call|>"))
    assert await ended(stage) == ("completed", None)
    assert repairs(stage) == ["second_call", "said_anew"]
    assert prefills(stage) == [()]


@pytest.mark.parametrize("repairs_max", [0, 2])
async def test_it_is_said_only_so_often(repairs_max: int) -> None:
    wrong = [WRONG] * (repairs_max + 1)
    stage = staged(IN_JSON, BEGUN, *wrong, limits=GuardLimits(repairs_max))
    assert await ended(stage) == ("failed", "server_error")
    assert repairs(stage) == ["said_anew"] * repairs_max
    assert kinds(stage) == ["message"]
    assert stage.live.fold.response()["output"][0]["status"] == "incomplete"


async def test_an_end_without_anything_to_take_back_is_the_end() -> None:
    stage = staged(IN_JSON, BEGUN, [TokenChunk([], STOP)])
    assert await ended(stage) == ("failed", "server_error")
    assert repairs(stage) == []


async def test_what_was_said_in_vain_counts_in_the_turns_after_it() -> None:
    begun = [*vouched(STRICT + '{"n"')[:-1], DIED]
    right = says(": 2}<|end|>" + NEXT + "<|channel|>commentary to=functions.no json<|message|>{}")
    rules = replace(ANY_TOOL, open_calls=False)
    stage = staged(rules, begun, says(': "one"}<|call|>'), right, limits=GuardLimits(repairs_max=1))
    assert await ended(stage) == ("completed", None)
    assert repairs(stage) == ["said_anew", "call_not_allowed"]


SEEN: list[Entry] = [
    TurnStarted(len(PROMPT)),
    Tokens(tuple(script_ids(BEGINNING))),
    Hop("backend", 9),
    Hold(),
    Tokens(tuple(script_ids(': "one"}<|return|>'))),
]
ANEW = Repair(len(script_ids(': "one"}<|return|>')), "said_anew")


@pytest.mark.parametrize("written", [(), (ANEW,)], ids=["before", "after"])
async def test_another_replica_says_it_again(written: tuple[Entry, ...]) -> None:
    stage = staged(IN_JSON, RIGHT, said=[*SEEN, *written])
    assert await ended(stage) == ("completed", None)
    assert stage.text == '{"n": 2}'
    assert anew(stage, 0)
    assert stage.live.fold.usage.voided_tokens == ANEW.voided


async def test_another_replica_does_not_begin_to_count_anew() -> None:
    stage = staged(IN_JSON, WRONG, said=[*SEEN, ANEW], limits=GuardLimits(repairs_max=1))
    assert await ended(stage) == ("failed", "server_error")


async def test_who_goes_on_for_a_grammar_that_failed_gets_none() -> None:
    stage = staged(IN_JSON, [*vouched(BEGINNING)[:-1], STUCK], RIGHT)
    assert await ended(stage) == ("completed", None)
    assert stage.text == '{"n": 2}'
    assert repairs(stage) == ["grammar_failed"]
    assert Hold() in stage.journal.entries
    assert stage.tokens.requests[1].constraint is None
    assert stage.tokens.avoided == [set(), set()], "the backend is well"
    assert stage.live.fold.hops == 1


async def test_a_header_within_a_grammar_that_failed_is_not_begun_anew() -> None:
    stage = staged(IN_JSON, [*vouched(JSON_ANSWER)[:2], STUCK], says(JSON_ANSWER)[2:])
    assert await ended(stage) == ("completed", None)
    assert repairs(stage) == ["grammar_failed"]


async def test_the_next_turn_has_a_grammar_again() -> None:
    thought = [*vouched("<|channel|>analysis<|message|>Hm<|end|>" + NEXT)[:-1], STUCK]
    stage = staged(REQUIRED, thought, says("<|return|>"), says('{"n": 1}<|call|>'))
    assert await ended(stage) == ("completed", None)
    constraints = [request.constraint for request in stage.tokens.requests]
    assert constraints[0] is not None
    assert constraints[1] is None
    assert constraints[2] is not None or stage.live.fold.turns[1].prefill
    assert prefills(stage)[1]


async def test_a_grammar_that_fails_without_one_is_a_backend_that_fails() -> None:
    stage = staged(IN_JSON, [*vouched(BEGINNING)[:-1], STUCK], [says(":")[0], STUCK], RIGHT[1:])
    assert await ended(stage) == ("completed", None)
    assert repairs(stage) == ["grammar_failed"]
    assert stage.tokens.avoided[-1] == {"gpu-1"}
    assert stage.live.fold.hops == 2


async def test_a_grammar_that_fails_is_a_hop_and_hops_are_bounded() -> None:
    stage = staged(IN_JSON, [*vouched(BEGINNING)[:-1], STUCK])
    stage = Stage(stage.tokens, spec=stage.spec, hops=HopPolicy(hops_max=0))
    assert await ended(stage) == ("failed", "server_error")


async def test_another_replica_knows_that_a_grammar_failed() -> None:
    said = [*SEEN[:2], Repair(0, "grammar_failed")]
    stage = staged(IN_JSON, RIGHT, said=said)
    assert await ended(stage) == ("completed", None)
    assert stage.tokens.requests[0].constraint is None
    assert stage.text == '{"n": 2}'


async def test_a_response_that_fails_has_no_thoughts_beyond_its_budget() -> None:
    header = [*vouched("<|channel|>analysis<|message|>so so<|end|>" + NEXT + "word word")[:-1]]
    stage = staged(NO_RULES, [*header, DIED], reasoning_budget=3)
    stage = Stage(stage.tokens, spec=stage.spec, hops=HopPolicy(hops_max=0))
    assert await ended(stage) == ("failed", "server_error")
    assert stage.live.fold.usage.reasoning_tokens <= 3
    assert isinstance(stage.journal.entries[-2], Repair)
    assert not any(isinstance(entry, TurnEnded) for entry in stage.journal.entries)


MARKERS = ["<|channel|>", "<|constrain|>", "<|message|>", "<|start|>", "<|end|>"]


@pytest.mark.parametrize("marker", MARKERS)
async def test_a_marker_that_a_grammar_took_for_text_is_taken_back(marker: str) -> None:
    stage = staged(IN_JSON, vouched(BEGINNING + marker + 'm": 1}<|return|>'), RIGHT)
    assert await ended(stage) == ("completed", None)
    assert stage.text == '{"n": 2}'
    assert repairs(stage) == ["said_anew"]
    assert anew(stage, 1)
    assert Hold() in stage.journal.entries


async def test_markers_in_a_body_are_taken_back_only_so_often() -> None:
    turn = vouched(BEGINNING + '<|constrain|>m": 1}<|return|>')
    stage = staged(IN_JSON, turn, limits=GuardLimits(repairs_max=0))
    assert await ended(stage) == ("failed", "invalid_structured_output")


async def test_another_replica_takes_the_marker_back() -> None:
    said = [SEEN[0], Tokens(tuple(script_ids(BEGINNING + "<|message|>")))]
    stage = staged(IN_JSON, RIGHT, said=said)
    assert await ended(stage) == ("completed", None)
    assert anew(stage, 0)


@pytest.mark.parametrize("rules", [REQUIRED, IN_JSON], ids=["a call", "an answer"])
async def test_a_model_that_thinks_on_and_on_is_made_to_do_what_it_should(
    rules: OutputRules,
) -> None:
    thoughts = vouched((THOUGHT + NEXT) * (2 * MESSAGES_MAX))
    stage = staged(rules, thoughts, says('{"n": 1}<|return|>'))
    assert await ended(stage) == ("completed", None)
    assert repairs(stage) == ["thinks_on"]
    assert kinds(stage)[:-1] == ["reasoning"] * MESSAGES_MAX


async def test_a_model_that_may_call_or_answer_may_think_as_long_as_it_likes() -> None:
    thoughts = (THOUGHT + NEXT) * (2 * MESSAGES_MAX)
    stage = staged(ANY_TOOL, says(thoughts + "<|channel|>final<|message|>Well.<|return|>"))
    assert await ended(stage) == ("completed", None)
    assert repairs(stage) == []


async def test_an_answer_that_never_comes_is_asked_for_as_often_as_one_that_is_wrong() -> None:
    nothing = says("<|channel|>analysis<|message|>Hm<|return|>")
    stage = staged(IN_JSON, nothing, *[says("<|return|>")] * 6)
    assert await ended(stage) == ("failed", "invalid_structured_output")
    assert repairs(stage) == ["invalid_structured_output"] * 3
