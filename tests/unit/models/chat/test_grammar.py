"""What a turn of a chat format may still be, for each kind of demand, from each place in it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gateway.constraints.output_rules import AnswerFormat, OutputRules, TextGrammar, ToolRule
from gateway.generation import AnyText, Ebnf, ParserPosition, SegmentKind, Where
from gateway.models.chat.call_syntax import Mark
from gateway.models.chat.chat_grammar import text_between, turn_constraint
from gateway.models.format import GrammarOptions
from tests.fakes.cases import each
from tests.fakes.chat_turns import Model
from tests.fakes.gbnf import allows_text
from tests.fakes.turn_matching import allows_symbols

if TYPE_CHECKING:
    from gateway.generation import Constraint

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"enum": ["c", "f"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "where": {"$ref": "#/$defs/Where"},
        "code": {"type": "string", "pattern": "^a"},
    },
    "required": ["city"],
    "$defs": {"Where": {"type": "object"}},
}
FUNCTION, CUSTOM = SegmentKind.FUNCTION_CALL, SegmentKind.CUSTOM_CALL
STRICT = ToolRule("weather", FUNCTION, "weather", schema=SCHEMA)
PLACED = ToolRule("place", FUNCTION, "place", schema=PLACE)
FREE = ToolRule("ping", FUNCTION, "ping")
PATCH = ToolRule("patch", CUSTOM, "patch", grammar=TextGrammar("regex", "[0-9]+"))
WORDS = ToolRule("words", CUSTOM, "words")
SEARCH = ToolRule("builtin:browser.search", SegmentKind.WEB_SEARCH_CALL, "x", schema=SCHEMA)
PYTHON = ToolRule("builtin:python", SegmentKind.CODE_INTERPRETER_CALL, "python")
ANSWER = AnswerFormat("json_schema", SCHEMA, strict=True)
JSON = '{"unit":"c"}'

THINKING = GrammarOptions()
STARTED = ParserPosition(Where.HEADER, 0)
HERMES = Model()
CODER = Model("qwen3_coder", "none", ("<function=", "<parameter=", "</parameter>", "</function>"))
SPELLED = Model(spelled=("<think>", "</think>", "<tool_call>", "</tool_call>"))
MODELS = {
    name: Model(name, "mistral" if name == "mistral" else "think")
    for name in (
        *("hermes", "glm", "qwen3_coder", "deepseek_v3", "deepseek_v31"),
        *("mistral", "mistral_v3", "llama3_json"),
    )
}


def rules(*tools: ToolRule, **demands: Any) -> OutputRules:
    declared = {tool.name: tool for tool in tools}
    demands.setdefault("allowed", frozenset(declared))
    return OutputRules(declared, **demands)


def constraint(
    model: Model,
    demands: OutputRules,
    place: ParserPosition = STARTED,
    message: str = "",
    options: GrammarOptions = THINKING,
) -> Constraint | None:
    ids = model.ids(message)
    return turn_constraint(demands, place, ids, options, model.vocabulary, model.syntax)


def behind(
    model: Model, demands: OutputRules, said: str, options: GrammarOptions = THINKING
) -> Any:
    """What may follow a beginning, as the parser places it."""
    parser, ids = model.parser(demands), model.ids(said)
    parser.feed(ids)
    place = parser.place
    return turn_constraint(
        demands, place, ids[place.start :], options, model.vocabulary, model.syntax
    )


def allows(model: Model, found: Constraint | None, turn: str) -> bool:
    assert found is not None
    return allows_symbols(found.turn, symbols(model, turn))


def symbols(model: Model, turn: str) -> tuple[int | str, ...]:
    known = model.vocabulary
    names = sorted(known.added(), key=len, reverse=True)
    if not names:
        return tuple(turn)
    made: list[int | str] = []
    for part in re.split(f"({'|'.join(map(re.escape, names))})", turn):
        token = known.special(part)
        made += part if token is None else [token]
    return tuple(made)


def call(model: Model, *calls: tuple[str, str]) -> str:
    syntax = model.syntax.calls
    assert syntax is not None
    parts = syntax.written(calls)
    return "".join(part.text if isinstance(part, Mark) else part for part in parts)


def thought(model: Model) -> str:
    reasoning = model.syntax.reasoning
    assert reasoning is not None
    return f"{reasoning.opening}\nhm\n{reasoning.closing}\n\n"


@each("name", MODELS)
def test_an_answer_that_has_begun_goes_on_with_any_text(name: str) -> None:
    model = MODELS[name]
    found = behind(model, rules(STRICT), "Hi")
    for rest in ("", " there", "\n{", '{"name": "weather", "parameters": 1}'):
        assert allows(model, found, rest)


@each("name", MODELS)
def test_a_call_that_is_demanded_is_right(name: str) -> None:
    model = MODELS[name]
    found = constraint(model, rules(STRICT, FREE, calls="required"))
    right = call(model, ("weather", JSON))
    for turn in (right, thought(model) + right, call(model, ("ping", '{"a": 1}'))):
        assert allows(model, found, turn)
    assert allows(model, found, call(model, ("weather", JSON), ("ping", '{"a": "b"}')))
    wrong = [call(model, ("weather", '{"unit": "k"}')), call(model, ("other", "{}")), "Hi", ""]
    for turn in wrong:
        assert not allows(model, found, turn)
    assert found is not None
    assert found.exact
    one = constraint(model, rules(STRICT, FREE, calls="required", one_call=True))
    assert allows(model, one, right)
    assert not allows(model, one, call(model, ("weather", JSON), ("ping", "{}")))


@each("name", MODELS)
def test_beside_text_a_call_of_a_strict_tool_is_right(name: str) -> None:
    model = MODELS[name]
    found = constraint(model, rules(STRICT))
    text = "" if name == "llama3_json" else "I look.\n"
    assert allows(model, found, thought(model) + text + call(model, ("weather", JSON)))
    assert allows(model, found, "Hi {<")
    assert not allows(model, found, call(model, ("weather", "{}")))


def test_an_answer_in_a_format_is_that_or_a_call_or_a_refusal() -> None:
    found = constraint(HERMES, rules(FREE, answer=ANSWER))
    for turn in (JSON, thought(HERMES) + JSON, "I'm sorry, no.", call(HERMES, ("ping", "{}"))):
        assert allows(HERMES, found, turn)
    assert not allows(HERMES, found, "Hi")
    strict = constraint(HERMES, rules(answer=ANSWER), options=GrammarOptions(refusals=False))
    assert allows(HERMES, strict, JSON)
    assert not allows(HERMES, strict, "I'm sorry")
    sober = constraint(HERMES, rules(answer=ANSWER), options=GrammarOptions(reasoning=False))
    assert not allows(HERMES, sober, thought(HERMES) + JSON)


def test_where_nothing_is_demanded_nothing_is_bound() -> None:
    assert constraint(HERMES, rules()) is None
    assert constraint(HERMES, rules(FREE)) is None
    assert constraint(HERMES, rules(calls="required")) is None
    sober = constraint(HERMES, rules(), options=GrammarOptions(reasoning=False))
    assert allows(HERMES, sober, "Hi")
    assert not allows(HERMES, sober, thought(HERMES) + "Hi")


def test_no_calls_may_be_made_where_none_are_allowed() -> None:
    found = constraint(HERMES, rules(STRICT, calls="none"))
    assert allows(HERMES, found, "Hi")
    assert not allows(HERMES, found, call(HERMES, ("weather", JSON)))
    silent = Model("none", "none")
    assert allows(silent, constraint(silent, rules(answer=ANSWER)), JSON)
    assert constraint(silent, rules(STRICT, calls="required")) is None


def test_markers_in_letters_cannot_be_kept_out_of_text() -> None:
    assert constraint(SPELLED, rules(STRICT)) is None
    assert constraint(SPELLED, rules(STRICT, calls="required")) is None
    sober = GrammarOptions(reasoning=False)
    assert constraint(SPELLED, rules(STRICT), options=sober) is None
    found = constraint(SPELLED, rules(STRICT, calls="required"), options=sober)
    assert allows(SPELLED, found, call(SPELLED, ("weather", JSON)))
    assert behind(SPELLED, rules(STRICT, calls="required"), "Hi", sober) is None
    assert behind(SPELLED, rules(STRICT), "<think>a") is None


def test_a_thought_goes_on_to_what_is_demanded() -> None:
    demands = rules(STRICT, calls="required")
    for said in ("<think>", "<think>\nh"):
        found = behind(HERMES, demands, said)
        assert allows(HERMES, found, "m\n</think>\n\n" + call(HERMES, ("weather", JSON)))
        assert not allows(HERMES, found, "m\n</think>\n\nHi")
    between = behind(HERMES, demands, "<think>a</think>\n")
    assert allows(HERMES, between, call(HERMES, ("weather", JSON)))
    assert not allows(HERMES, between, thought(HERMES) + call(HERMES, ("weather", JSON)))


@pytest.mark.parametrize("name", ["deepseek_v31", "glm", "hermes", "mistral"])
def test_behind_a_thought_that_the_prompt_shut_all_is_bound(name: str) -> None:
    """The prompt ends in a lone `</think>`: the model is not to think."""
    model = MODELS[name]
    syntax, reasoning = model.syntax.calls, model.syntax.reasoning
    assert syntax is not None
    assert reasoning is not None
    shut, owed = reasoning.closing, rules(STRICT, calls="required")
    right, wrong = (call(model, ("weather", one)) for one in (JSON, "{}"))
    for demands in (owed, rules(STRICT)):
        found = behind(model, demands, shut)
        assert allows(model, found, right)
        assert not allows(model, found, wrong)
    answer = behind(model, rules(answer=ANSWER), shut)
    assert allows(model, answer, JSON)
    assert not allows(model, answer, "{}")
    for front in (syntax.front(None), syntax.front("weather")):
        said = "".join(part.text if isinstance(part, Mark) else part for part in front)
        found = behind(model, owed, shut + said)
        rest = right[len(said) :].removeprefix(" " if syntax.tags is None else "")
        assert allows(model, found, rest)
        assert not allows(model, found, rest + "x")


def test_text_goes_on() -> None:
    free = behind(HERMES, rules(STRICT), "Hi")
    assert allows(HERMES, free, " you" + call(HERMES, ("weather", JSON)))
    owed = behind(HERMES, rules(STRICT, calls="required"), "I look")
    assert allows(HERMES, owed, "." + call(HERMES, ("weather", JSON)))
    assert not allows(HERMES, owed, ".")
    answer = behind(HERMES, rules(answer=ANSWER), '{"un')
    assert allows(HERMES, answer, 'it":"f"}')
    assert not allows(HERMES, answer, 'it":"k"}')
    refusal = behind(HERMES, rules(answer=ANSWER), "I'm so")
    assert allows(HERMES, refusal, "rry.")
    strict = behind(HERMES, rules(answer=ANSWER), '{"un', GrammarOptions(refusals=False))
    assert allows(HERMES, strict, 'it":"f"}')
    whole = behind(HERMES, rules(answer=ANSWER), "I'm sorry")
    assert allows(HERMES, whole, ", no")
    ids = [*HERMES.ids("I"), 0xE2]
    half = turn_constraint(
        rules(answer=ANSWER),
        ParserPosition(Where.BODY, 0, SegmentKind.FINAL),
        ids,
        THINKING,
        HERMES.vocabulary,
        HERMES.syntax,
    )
    assert half is None or not half.exact
    wrong = behind(HERMES, rules(answer=ANSWER), "Hi")
    assert wrong is None or not wrong.exact


def test_behind_a_call_others_may_follow_or_none() -> None:
    said = call(HERMES, ("weather", JSON))
    more = behind(HERMES, rules(STRICT, calls="required"), said)
    assert allows(HERMES, more, "")
    assert allows(HERMES, more, "\n" + said)
    one = behind(HERMES, rules(STRICT, calls="required", one_call=True), said)
    assert not allows(HERMES, one, "\n" + said)
    v31 = MODELS["deepseek_v31"]
    closed = behind(v31, rules(STRICT, calls="required"), call(v31, ("weather", JSON)))
    assert allows(v31, closed, "")
    assert not allows(v31, closed, call(v31, ("weather", JSON)))
    assert behind(HERMES, rules(STRICT), said + "Hi<|im_end|>") is None


@each("name", MODELS)
def test_the_front_of_a_call_goes_on(name: str) -> None:
    model = MODELS[name]
    syntax, demands = model.syntax.calls, rules(STRICT, FREE, calls="required")
    assert syntax is not None
    whole = call(model, ("weather", JSON))
    for front in (syntax.front(None), syntax.front("weather")):
        said = "".join(part.text if isinstance(part, Mark) else part for part in front)
        found = behind(model, demands, said)
        rest = whole[len(said) :]
        if not said.endswith((" ", "\n", ">", "]")) and rest.startswith(" "):
            rest = rest[1:]
        assert allows(model, found, rest)
        assert not allows(model, found, rest.replace('"c"', '"k"').replace(">c<", ">k<") + "x")


@pytest.mark.parametrize("name", ["hermes", "mistral", "mistral_v3", "llama3_json", "deepseek_v31"])
def test_in_the_middle_of_its_json_a_call_goes_on(name: str) -> None:
    model = MODELS[name]
    whole = call(model, ("weather", JSON))
    at = whole.index('nit"')
    found = behind(model, rules(STRICT, calls="required"), whole[:at])
    assert allows(model, found, whole[at:])
    assert not allows(model, found, whole[at:].replace('"c"', '"k"'))


def test_what_cannot_be_continued_is_not_bound() -> None:
    tagged = MODELS["glm"]
    at = call(tagged, ("weather", JSON)).index("c</arg_value>")
    demands = rules(STRICT, PATCH, calls="required")
    assert behind(tagged, demands, call(tagged, ("weather", JSON))[:at]) is None
    assert behind(HERMES, demands, '<tool_call>{"name": "weath') is None
    assert behind(HERMES, demands, '<tool_call>{"name": "patch", "arguments": {"inp') is None
    assert behind(HERMES, demands, '<tool_call>{"name": "weather", "arguments": "') is None
    assert behind(HERMES, demands, '<tool_call>{"name": "ping", "arguments": {') is None
    assert behind(HERMES, rules(answer=ANSWER), '<tool_call>{"name": "f", "arguments": {') is None
    forbidden = rules(STRICT, calls="none")
    assert behind(HERMES, forbidden, '<tool_call>{"name": "weather", "arguments": {') is None
    quoted = '<tool_call>{"name": "weather", "arguments": 5, "x'
    assert behind(HERMES, demands, quoted) is None


def test_without_ids_for_all_bytes_json_cannot_be_continued() -> None:
    model = HERMES
    bytes_, model.vocabulary.byte_ids = model.vocabulary.byte_ids, ()
    try:
        assert behind(model, rules(answer=ANSWER), '{"un') is None
        assert behind(model, rules(STRICT), '<tool_call>{"name": "weather", "arguments": {') is None
    finally:
        model.vocabulary.byte_ids = bytes_


def test_custom_and_hosted_tools_are_called_with_what_they_take() -> None:
    tools = (PATCH, WORDS, SEARCH, PYTHON)
    found = constraint(HERMES, rules(*tools, calls="required"))
    for name, arguments in (
        ("patch", '{"input":"12"}'),
        ("words", '{"input":"a"}'),
        ("browser.search", JSON),
        ("python", '{"code":"1"}'),
    ):
        assert allows(HERMES, found, call(HERMES, (name, arguments)))
        assert not allows(HERMES, found, call(HERMES, (name, '{"x":1}')))


@pytest.mark.parametrize("model", [CODER, MODELS["glm"], MODELS["qwen3_coder"]])
def test_tags_follow_the_schema(model: Model) -> None:
    found = constraint(model, rules(PLACED, calls="required"))
    assert found is not None
    assert not found.exact
    for arguments in (
        '{"city": "a < b"}',
        '{"city": "Rome", "days": 5, "where": {"a": 1}, "code": "x"}',
    ):
        assert allows(model, found, call(model, ("place", arguments)))
    for arguments in ('{"days": 5}', '{"city": "a", "days": "x"}', '{"town": "a"}'):
        assert not allows(model, found, call(model, ("place", arguments)))
    exact = constraint(model, rules(STRICT, calls="required"))
    assert exact is not None
    assert exact.exact


@pytest.mark.parametrize("schema", [{"type": "object", "properties": {"a": True}}, {"type": "x"}])
def test_tags_of_a_schema_without_properties_are_free(schema: dict[str, Any]) -> None:
    odd = replace(STRICT, schema=schema)
    found = constraint(CODER, rules(odd, PATCH, calls="required"))
    assert found is not None
    assert not found.exact
    assert allows(CODER, found, call(CODER, ("weather", '{"any": "x"}')))
    assert allows(CODER, found, call(CODER, ("patch", '{"input": "x"}')))


def test_text_between_markers_has_none_of_them() -> None:
    node = text_between(("</p>", "<p", "[x]"))
    assert isinstance(node, Ebnf)
    for text in ("", "a", "<", "</", "<<", "</ p>", "[x", "[[x", "a\nb"):
        assert allows_text(node.grammar, text)
    for text in ("</p>", "a<pb", "<</p>x", "[[x]"):
        assert not allows_text(node.grammar, text)
    front = text_between(("</p>",), front="{\n ")
    assert isinstance(front, Ebnf)
    for text, is_allowed in (("", False), ("{", False), ("\n", False), ("a{", True), ("</", True)):
        assert allows_text(front.grammar, text) is is_allowed


def test_text_is_spelled_with_no_special_token() -> None:
    found = constraint(HERMES, rules(), options=GrammarOptions(reasoning=False))
    known = HERMES.vocabulary
    assert found is not None
    assert found.turn == AnyText(tuple(sorted(known.special(one) or 0 for one in known.added())))
    assert set(found.markers) == {known.special(one) for one in HERMES.syntax.markers}


def test_the_constraint_of_a_turn_that_has_not_begun_is_made_once() -> None:
    demands = rules(STRICT)
    assert constraint(HERMES, demands) is constraint(HERMES, demands)
    assert json.dumps(SCHEMA)
