"""The scripted model under the very grammars that the gateway asks for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema_rs import validator_for
from openai_harmony import ToolDescription

from gateway.constraints.output_rules import AnswerFormat, OutputRules, TextGrammar, ToolRule
from gateway.constraints.structural_tags import tag_of
from gateway.generation import ParserPosition, SegmentKind, Where
from gateway.models.format import GrammarOptions
from gateway.models.harmony.grammar import turn_constraint
from gateway.models.harmony.tokenizer import CALL, END, FINAL_HEADER, RETURN
from tests.fakes.cases import each
from tests.fakes.harmony_script import vocabulary
from tests.fakes.simulated_conversation import (
    TIME,
    WEATHER,
    Obeyed,
    continuation,
    developer,
    formatted,
    obeyed,
    prompt_of,
    system,
    user,
)
from tests.fakes.wayward_engine.scripted_misbehaviour import REFUSAL

if TYPE_CHECKING:
    from collections.abc import Sequence

CITY = {
    "type": "object",
    "properties": {"location": {"type": "string", "enum": ["Rome", "Oslo"]}},
    "required": ["location"],
    "additionalProperties": False,
}
CITY_VALIDATOR = validator_for(CITY)
GET_WEATHER = ToolRule("get_weather", SegmentKind.FUNCTION_CALL, "get_weather", schema=CITY)
NOW = ToolRule("now", SegmentKind.FUNCTION_CALL, "now")
RUN = ToolRule(
    "now", SegmentKind.CUSTOM_CALL, "now", grammar=TextGrammar("regex", "(ls|cat) [a-z]+")
)
ANSWER = AnswerFormat("json_schema", CITY, "city", strict=True)
OPENED = ParserPosition(Where.HEADER, 0)


def _rules(*tools: ToolRule, allowed: Sequence[str] | None = None, **others: Any) -> OutputRules:
    names = {tool.name: tool for tool in tools}
    return OutputRules(names, frozenset(names if allowed is None else allowed), **others)


def _say(rules: OutputRules, prompt: list[int], **options: Any) -> Obeyed:
    constraint = turn_constraint(rules, OPENED, (), GrammarOptions(**options), vocabulary())
    assert constraint is not None
    said = obeyed(prompt, tag_of(constraint, max_whitespace=True))
    assert said.is_valid
    return said


def _body(said: Obeyed) -> Any:
    return json.loads(said.text.rpartition("<|message|>")[2].rpartition("<|")[0])


@pytest.mark.parametrize("text", ["Hello", "Weather in Berlin", "use now [[sim attack=silent]]"])
def test_a_call_that_is_required_is_made(text: str) -> None:
    prompt = prompt_of(developer(WEATHER, TIME), user(text))
    said = _say(_rules(GET_WEATHER, NOW, calls="required"), prompt)
    assert said.ids[-1] == CALL
    assert "to=functions." in said.text


def test_only_a_tool_that_is_allowed_is_called() -> None:
    prompt = prompt_of(developer(WEATHER, TIME), user("Weather in Berlin"))
    said = _say(_rules(GET_WEATHER, NOW, allowed=["now"], calls="required"), prompt)
    assert "to=functions.now" in said.text


def test_no_tool_is_called_when_none_may_be() -> None:
    prompt = prompt_of(developer(WEATHER, TIME), user("Weather in Berlin"))
    said = _say(_rules(GET_WEATHER, NOW, calls="none"), prompt)
    assert (said.ids[-1], "to=functions." in said.text) == (RETURN, False)


def test_strict_arguments_are_kept_to() -> None:
    prompt = prompt_of(developer(WEATHER, TIME), user("Weather in Berlin"))
    assert _body(_say(_rules(GET_WEATHER, NOW), prompt))["location"] in {"Rome", "Oslo"}


def test_the_input_of_a_custom_tool_keeps_to_its_grammar() -> None:
    prompt = prompt_of(developer(TIME), user("use now"))
    command, _, file = _body(_say(_rules(RUN), prompt))["input"].partition(" ")
    assert command in {"ls", "cat"}
    assert file


@pytest.mark.parametrize("reasoning", [True, False])
def test_an_answer_keeps_to_its_format(reasoning: bool) -> None:
    prompt = prompt_of(formatted(CITY), user("Say [[sim drift=prose]]"))
    said = _say(_rules(answer=ANSWER), prompt, reasoning=reasoning)
    assert _body(said)["location"] in {"Rome", "Oslo"}
    assert (said.ids[-1], END in said.ids) == (RETURN, reasoning)


def test_a_refusal_is_let_through_where_it_may_be() -> None:
    prompt = prompt_of(formatted(CITY), user("Say [[sim drift=refusal]]"))
    refused = _say(_rules(answer=ANSWER), prompt)
    assert refused.text.endswith(f"<|message|>{REFUSAL}<|return|>")
    held = _say(_rules(answer=ANSWER), prompt, refusals=False)
    assert _body(held)["location"] in {"Rome", "Oslo"}


def test_endless_reasoning_is_let_through() -> None:
    prompt = prompt_of(formatted(CITY), user("Say [[sim attack=endless]]"))
    said = _say(_rules(answer=ANSWER), prompt)
    assert said.ids == continuation(prompt)[: len(said.ids)]
    assert len(said.ids) == 400


def test_a_body_is_held_where_the_grammar_begins_in_it() -> None:
    prompt = [*prompt_of(formatted(CITY), user("Say")), *FINAL_HEADER]
    place = ParserPosition(Where.BODY, 0, SegmentKind.FINAL)
    constraint = turn_constraint(
        _rules(answer=ANSWER), place, FINAL_HEADER, GrammarOptions(), vocabulary()
    )
    assert constraint is not None
    said = obeyed(prompt, tag_of(constraint, max_whitespace=True))
    assert said.is_valid


@each("drift", ["prose", "types", "truncated", "extra"])
@each("begun", ["{", '{"loca', '{"location": ', '{"location": "O'])
def test_a_model_that_heeds_no_schema_is_held_to_the_rest_of_a_body(drift: str, begun: str) -> None:
    message = (*FINAL_HEADER, *vocabulary().encode(begun))
    asked = prompt_of(formatted(CITY), user(f"Say [[sim drift={drift}]]"))
    free = vocabulary().decode(continuation([*asked, *message])[:-1])
    with pytest.raises(ValueError, match=r"\w"):
        CITY_VALIDATOR.validate(json.loads(begun + free))
    place = ParserPosition(Where.BODY, 0, SegmentKind.FINAL)
    rest = turn_constraint(_rules(answer=ANSWER), place, message, GrammarOptions(), vocabulary())
    assert rest is not None
    said = obeyed([*asked, *message], tag_of(rest, max_whitespace=True))
    assert said.is_valid
    text = begun + said.text.removesuffix("<|return|>")
    assert json.loads(text)["location"] in {"Rome", "Oslo"}


HOSTED = system(browser=True, python=True)
SEARCH = ToolRule(
    "builtin:browser.search",
    SegmentKind.WEB_SEARCH_CALL,
    "browser.search",
    schema={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
)
PYTHON = ToolRule("builtin:python", SegmentKind.CODE_INTERPRETER_CALL, "python")
ADD = ToolRule("shop.add", SegmentKind.MCP_CALL, "add", namespace="shop")
SHOP = ToolDescription.new("shop.add", "Add.", {"type": "object"})


@pytest.mark.parametrize(
    ("step", "call"),
    [
        ("search old towers", 'browser.search {"query": "old towers"}'),
        (r"python a = 1\nprint(a)", "python a = 1\nprint(a)"),
        ("mcp shop.add {}", "functions.shop.add {}"),
    ],
)
@pytest.mark.parametrize("others", [{"calls": "required"}, {"answer": ANSWER}])
def test_a_hosted_tool_is_called_as_the_script_has_it(
    step: str, call: str, others: dict[str, Any]
) -> None:
    prompt = prompt_of(HOSTED, developer(SHOP), user(f"[[sim steps={step}]]"))
    said = _say(_rules(SEARCH, PYTHON, ADD, **others), prompt)
    recipient, _, body = call.partition(" ")
    assert said.ids[-1] == CALL
    assert f"to={recipient}" in said.text
    assert said.text.endswith(f"<|message|>{body}<|call|>")


def test_hosted_tools_that_are_used_up_are_not_called() -> None:
    prompt = prompt_of(HOSTED, user("[[sim steps=search old towers]]"))
    said = _say(_rules(SEARCH, PYTHON, allowed=[]), prompt)
    assert said.ids[-1] == RETURN
    assert "to=browser" not in said.text
