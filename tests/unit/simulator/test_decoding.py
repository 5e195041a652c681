from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema_rs import validator_for

from gateway.generation import FinishReason
from gateway.models.harmony.tokenizer import CALL, CHANNEL, CONSTRAIN, FINAL_HEADER, MESSAGE, RETURN
from tests.fakes.examples import examples
from tests.fakes.harmony_oracle import vocabulary
from tests.fakes.random_schemas import random_schema
from tests.fakes.simulated_conversation import (
    TIME,
    WEATHER,
    continuation,
    developer,
    formatted,
    obeyed,
    prompt_of,
    user,
)
from tests.fakes.turn_tags import answer, call, ebnf, json_of, text, turn
from tests.fakes.wayward_engine.decoding import OWN_IDS_MAX

CITY = {
    "type": "object",
    "properties": {"location": {"type": "string", "enum": ["Rome", "Oslo"]}},
    "required": ["location"],
    "additionalProperties": False,
}
COUNT = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 10, "maximum": 20}},
    "required": ["n"],
    "additionalProperties": False,
}
GET_WEATHER = call("get_weather", json_of(CITY))
NOW = call("now", json_of({"type": "object"}))
FREE_ANSWER = answer({"type": "any_tokens", "exclude_tokens": [CALL, RETURN]})


def _body(said: str) -> Any:
    return json.loads(said.rpartition("<|message|>")[2].rpartition("<|")[0])


def test_a_script_that_may_be_said_is_said_as_it_is() -> None:
    prompt = prompt_of(user("Hello"))
    assert obeyed(prompt, turn(FREE_ANSWER)).ids == continuation(prompt)


def test_a_call_is_made_when_nothing_else_may_be_said() -> None:
    said = obeyed(prompt_of(developer(WEATHER, TIME), user("Hello")), turn(NOW))
    assert said.is_valid
    assert said.text.endswith("to=functions.now <|constrain|>json<|message|>{}<|call|>")
    assert said.text.startswith("<|channel|>analysis")


def test_arguments_that_may_not_be_said_become_others() -> None:
    said = obeyed(prompt_of(developer(WEATHER), user("Weather in Berlin")), turn(GET_WEATHER))
    assert said.is_valid
    assert _body(said.text)["location"] in {"Rome", "Oslo"}
    assert said.ids[-1] == CALL


def test_an_answer_is_given_when_calls_are_forbidden() -> None:
    said = obeyed(prompt_of(developer(WEATHER), user("Weather in Berlin")), turn(FREE_ANSWER))
    assert said.is_valid
    assert "to=functions" not in said.text
    assert said.ids[-1] == RETURN


def test_an_answer_in_a_format_keeps_to_it() -> None:
    prompt = prompt_of(formatted(COUNT), user("Say 5, please"))
    said = obeyed(prompt, turn(answer(json_of(COUNT))))
    assert said.is_valid
    assert 10 <= _body(said.text)["n"] <= 20
    assert said.ids[-1] == RETURN


def test_reasoning_that_is_forbidden_is_left_out() -> None:
    prompt = prompt_of(developer(WEATHER), user("Weather in Rome"))
    said = obeyed(prompt, turn(GET_WEATHER, FREE_ANSWER, reasoning=False))
    assert said.is_valid
    assert "analysis" not in said.text
    assert _body(said.text) == {"location": "Rome"}


@pytest.mark.parametrize("attack", ["call:nothing", "twice", "silent", "header", "analysis_call"])
def test_a_grammar_holds_an_attack(attack: str) -> None:
    prompt = prompt_of(developer(WEATHER), user(f"Weather in Rome [[sim attack={attack}]]"))
    said = obeyed(prompt, turn(GET_WEATHER))
    assert said.is_valid
    assert _body(said.text) == {"location": "Rome"}


@pytest.mark.parametrize("drift", ["prose", "types", "truncated", "extra", "refusal"])
def test_a_grammar_holds_a_drift(drift: str) -> None:
    prompt = prompt_of(formatted(COUNT), user(f"Say 12 [[sim drift={drift}]]"))
    said = obeyed(prompt, turn(answer(json_of(COUNT))))
    assert said.is_valid
    assert 10 <= _body(said.text)["n"] <= 20


@pytest.mark.parametrize(("first", "start"), [(0, "Sure!"), (1, "{Sure!"), (3, '{"nSure!')])
def test_a_grammar_may_be_ignored_from_an_id_of_a_body_on(first: int, start: str) -> None:
    text = f"Say 12 [[sim drift=prose grammar_ids={first}]]"
    said = obeyed(prompt_of(formatted(COUNT), user(text)), turn(answer(json_of(COUNT))))
    assert not said.is_valid
    body = said.text.rpartition("<|message|>")[2]
    assert body.startswith(start)
    assert body.endswith("not as JSON.<|return|>")


def test_a_grammar_may_be_ignored_altogether() -> None:
    prompt = prompt_of(developer(WEATHER), user("Hello [[sim grammar_ids=none]]"))
    assert obeyed(prompt, turn(NOW)).ids == continuation(prompt)


@pytest.mark.slow
def test_a_body_that_is_shorter_is_held_to_its_grammar() -> None:
    text = "Say 12 [[sim drift=prose grammar_ids=300]]"
    said = obeyed(prompt_of(formatted(COUNT), user(text)), turn(answer(json_of(COUNT))))
    assert said.is_valid


@pytest.mark.parametrize(
    ("prefill", "end"),
    [
        (list(FINAL_HEADER), RETURN),
        ([*FINAL_HEADER[:-1], 220, CONSTRAIN, *vocabulary().encode("json"), MESSAGE], RETURN),
        (
            [
                *vocabulary().encode(" to=functions.get_weather"),
                CHANNEL,
                *vocabulary().encode("commentary"),
                MESSAGE,
            ],
            CALL,
        ),
    ],
)
def test_a_prefilled_body_is_held_from_its_first_id_on(prefill: list[int], end: int) -> None:
    prompt = prompt_of(formatted(COUNT, WEATHER), user("Hello"))
    tag = {"type": "structural_tag", "format": json_of(COUNT)}
    said = obeyed([*prompt, *prefill], tag)
    assert said.is_valid
    assert said.ids[-1] == end


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "{\\"input\\": \\"" [a-z ]* "and" [^"\\\\]+ "\\"}"',
        'root ::= "*** Begin\\n" hunk+ "*** End"\nhunk ::= "+" [^\\n]* "\\n"',
        'root ::= e\ne ::= t ("+" t)*\nt ::= "(" e ")" | [0-9]{1,3}',
        'root ::= [a-z]+ "@" [a-z]+ ".com"',
        'root ::= ("ab" | "c")* "d"',
    ],
)
def test_text_of_a_grammar_comes_to_an_end(grammar: str) -> None:
    prompt = prompt_of(developer(WEATHER), user("Weather in Berlin"))
    said = obeyed(prompt, turn(call("get_weather", ebnf(grammar))))
    assert said.is_valid
    assert said.ids[-1] == CALL


@pytest.mark.slow
@given(st.integers(0, 10_000))
@settings(max_examples=examples(60), deadline=None)
def test_any_schema_is_kept_to(seed: int) -> None:
    schema = random_schema(Random(seed))
    prompt = prompt_of(formatted(schema), user("Say something 7 in Berlin"))
    said = obeyed(prompt, turn(answer(json_of(schema))), ids_max=2000)
    assert said.is_valid
    validator_for(schema).validate(_body(said.text))


@pytest.mark.slow
@given(st.integers(0, 10_000))
@settings(max_examples=examples(30), deadline=None)
def test_any_schema_is_kept_to_by_a_script_that_knows_nothing_of_it(seed: int) -> None:
    schema = random_schema(Random(seed))
    said = obeyed(prompt_of(user("Hello")), turn(answer(json_of(schema))), ids_max=2000)
    assert said.is_valid
    validator_for(schema).validate(_body(said.text))


def test_the_same_is_said_every_time() -> None:
    prompt = prompt_of(developer(WEATHER), user("Hello"))
    assert obeyed(prompt, turn(GET_WEATHER)).ids == obeyed(prompt, turn(GET_WEATHER)).ids


def test_no_more_ids_are_said_than_asked_for() -> None:
    prompt = prompt_of(developer(WEATHER), user("Hello"))
    whole = obeyed(prompt, turn(GET_WEATHER)).ids
    assert obeyed(prompt, turn(GET_WEATHER), ids_max=10).ids == whole[:10]


@pytest.mark.slow
def test_a_schema_that_requires_itself_is_given_up() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"$ref": "#"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    said = obeyed(prompt_of(user("Hello")), turn(answer(json_of(schema))), ids_max=100_000)
    assert said.is_valid
    assert said.finish is FinishReason.LENGTH
    assert OWN_IDS_MAX <= len(said.ids) < 2 * OWN_IDS_MAX


def test_an_older_engine_binds_the_answer_alone() -> None:
    prompt = prompt_of(developer(WEATHER), user("Hello"))
    tag = {"type": "structural_tag", "format": text("yes")}
    said = obeyed(prompt, tag, version="0.20.1")
    assert said.text.startswith("<|channel|>analysis")
    assert said.text.endswith("<|channel|>final<|message|>yes<|return|>")
    held = obeyed([*prompt, *FINAL_HEADER], tag, version="0.20.1")
    assert held.text == "yes<|return|>"


def test_an_older_engine_leaves_a_call_alone() -> None:
    prompt = prompt_of(developer(WEATHER), user("Weather in Berlin"))
    tag = {"type": "structural_tag", "format": text("yes")}
    assert obeyed(prompt, tag, version="0.20.1").ids == continuation(prompt)


def test_words_of_a_grammar_that_are_no_json_are_passed_over() -> None:
    tag = {"type": "structural_tag", "format": ebnf(r'root ::= "\x7eb" [a-z]+ "."')}
    said = obeyed(prompt_of(user("Hello")), tag)
    assert said.is_valid
    assert said.text.startswith("~b")


def test_recorded_output_is_held_too() -> None:
    prompt = prompt_of(user("corpus:H01"))
    assert obeyed(prompt, turn(answer(json_of(COUNT)))).is_valid
