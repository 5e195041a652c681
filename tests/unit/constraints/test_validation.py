"""What a model wrote, held against what was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.constraints import validation
from gateway.constraints.output_rules import AnswerFormat, OutputRules, TextGrammar, ToolRule
from gateway.constraints.validation import Checker
from gateway.errors import InvalidRequest
from gateway.generation import SegmentKind
from gateway.protocol.call_items import call_fields
from tests.fakes.cases import each

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"enum": ["c", "f"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
SHELL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"commands": {"type": "array", "items": {"type": "string"}, "minItems": 1}},
    "required": ["commands"],
}
CODEX = (Path(__file__).parents[2] / "data" / "grammars" / "codex_apply_patch.lark").read_text()
PATCH = "*** Begin Patch\n*** Delete File: a\n*** End Patch\n"

TOOLS = (
    ToolRule("strict", SegmentKind.FUNCTION_CALL, "strict", schema=SCHEMA),
    ToolRule("free", SegmentKind.FUNCTION_CALL, "free"),
    ToolRule("patch", SegmentKind.CUSTOM_CALL, "patch", grammar=TextGrammar("lark", CODEX)),
    ToolRule("words", SegmentKind.CUSTOM_CALL, "words"),
    ToolRule("date", SegmentKind.CUSTOM_CALL, "date", grammar=TextGrammar("regex", r"^\d{4}$")),
    ToolRule("shell", SegmentKind.SHELL_CALL, "shell", schema=SHELL_SCHEMA),
    ToolRule("loose_shell", SegmentKind.SHELL_CALL, "loose_shell"),
)


def rules(*tools: ToolRule, answer: AnswerFormat | None = None) -> OutputRules:
    return OutputRules(
        {tool.name: tool for tool in tools}, frozenset(t.name for t in tools), answer=answer
    )


def strict(schema: dict[str, Any]) -> Checker:
    return Checker(rules(answer=AnswerFormat("json_schema", schema, strict=True)), call_fields)


CHECKER = Checker(
    rules(*TOOLS, answer=AnswerFormat("json_schema", SCHEMA, strict=True)), call_fields
)


def custom(text: str) -> str:
    return orjson.dumps({"input": text}).decode()


@each(
    ("name", "arguments"),
    [
        ("strict", '{"unit":"c"}'),
        ("free", "no JSON at all"),
        ("undeclared", "anything"),
        ("patch", custom(PATCH)),
        ("patch", PATCH),
        ("words", custom("any")),
        ("date", custom("2026")),
        ("shell", '{"commands":["ls"]}'),
    ],
)
def test_a_call_that_is_right_has_no_fault(name: str, arguments: str) -> None:
    assert CHECKER.call_fault(name, arguments) is None


@each(
    ("name", "arguments", "fault"),
    [
        ("strict", '{"unit":"k"}', '/unit: it is not one of "c" or "f"'),
        ("strict", "{}", 'as a whole: "unit" is a required property'),
        ("strict", "{", "it is not JSON"),
        ("patch", custom("x"), "its grammar does not allow byte 0"),
        ("patch", custom(PATCH[:20]), "it ends too early for its grammar"),
        ("date", custom("20267"), "its grammar does not allow byte 4"),
        ("shell", '{"commands":[]}', "/commands: "),
        ("loose_shell", "{}", "not the arguments of "),
    ],
)
def test_a_call_that_is_wrong_has_its_fault_named(name: str, arguments: str, fault: str) -> None:
    found = CHECKER.call_fault(name, arguments)
    assert found is not None
    assert found.startswith(fault)


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        (None, ["", "Hello."], []),
        (AnswerFormat("json_object", {}), ["{}", ' {"a":[1]} '], ["[1]", "", "{} {}", "NaN"]),
        (AnswerFormat("json_schema", SCHEMA), ["{}"], ["[1]", "x"]),
        (AnswerFormat("json_schema", {"type": "array"}), ["{}", "null"], ["x"]),
        (AnswerFormat("json_schema", SCHEMA, strict=True), ['{"unit":"c"}'], ["{}"]),
    ],
)
def test_an_answer_is_held_against_its_format(
    answer: AnswerFormat | None, right: list[str], wrong: list[str]
) -> None:
    checker = Checker(rules(answer=answer), call_fields)
    checker.compile()
    assert [checker.answer_fault(text) for text in right] == [None] * len(right)
    assert all(checker.answer_fault(text) for text in wrong)


def test_a_fault_is_one_short_line_and_repeats_nothing_of_the_text() -> None:
    checker = strict({"enum": ["x" * 400]})
    fault = checker.answer_fault('"my secret"')
    assert fault is not None
    assert len(fault) <= 300
    assert "secret" not in fault
    assert "\n" not in fault


@pytest.mark.parametrize(
    "text",
    ['{"a":1,"a":2}', "[" * 50_000, '{"a":' * 900 + "1" + "}" * 900, "1" * 50_000, '"\ud800"'],
    ids=["a name twice", "no end", "too deep", "too long a number", "half a character"],
)
def test_json_that_readers_disagree_about_is_none(text: str) -> None:
    node: dict[str, Any] = {"properties": {"a": {"$ref": "#"}}}
    assert strict(node).answer_fault(text) is not None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objct"},
        {"allOf": 3},
        {"pattern": "(?=a)"},
        {"$ref": "#/$defs/none"},
        {"$ref": "x"},
    ],
)
def test_a_schema_that_is_none_is_the_callers_mistake(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        strict(schema).compile()
    assert (caught.value.param, caught.value.code) == ("text.format.schema", "invalid_json_schema")
    tool = ToolRule("look_up", SegmentKind.FUNCTION_CALL, "look_up", schema=schema)
    with pytest.raises(InvalidRequest, match="'look_up'") as caught:
        Checker(rules(tool), call_fields, paths={"look_up": "tools[3].tools[1]"}).compile()
    assert caught.value.param == "tools[3].tools[1].parameters"
    assert caught.value.code == "invalid_function_parameters"


@pytest.mark.parametrize(
    "grammar",
    [
        TextGrammar("lark", "start: ("),
        TextGrammar("lark", ""),
        TextGrammar("lark", "start: " + "(" * 30_000),
        TextGrammar("regex", "(?=a)"),
        TextGrammar("regex", "("),
    ],
)
def test_a_grammar_that_is_none_is_the_callers_mistake(grammar: TextGrammar) -> None:
    tool = ToolRule("patch", SegmentKind.CUSTOM_CALL, "patch", grammar=grammar)
    with pytest.raises(InvalidRequest, match="'patch'") as caught:
        Checker(rules(tool), call_fields).compile()
    assert caught.value.param == "tools"


def test_checks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "WORK_MAX", 10)
    monkeypatch.setattr(validation, "GRAMMAR_SECONDS_MAX", 0.0)
    answer = AnswerFormat("json_schema", {"items": {"type": "integer"}}, strict=True)
    checker = Checker(rules(TOOLS[2], answer=answer), call_fields)
    assert checker.answer_fault("[1,2,3]") is None
    assert checker.answer_fault("[1,2,3,4,5,6,7,8,9,10]") is not None
    assert "too long" in str(checker.call_fault("patch", custom(PATCH)))


def test_all_is_compiled_at_once_and_once() -> None:
    checker = Checker(rules(*TOOLS, answer=AnswerFormat("json_object", {})), call_fields)
    checker.compile()
    checker.compile()
    assert checker.call_fault("strict", '{"unit":"f"}') is None


@pytest.mark.slow
@given(st.text(), st.sampled_from([*(tool.name for tool in TOOLS), "undeclared"]))
def test_no_text_makes_a_check_raise(text: str, name: str) -> None:
    for fault in (CHECKER.answer_fault(text), CHECKER.call_fault(name, text)):
        assert fault is None or (fault and "\n" not in fault)


@pytest.mark.slow
@given(st.text(st.characters(codec=None), max_size=30))
def test_not_even_text_that_is_not_unicode_does(text: str) -> None:
    for tool in TOOLS:
        CHECKER.call_fault(tool.name, text)
    CHECKER.answer_fault(f'"{text}')


def test_the_schemas_of_one_request_have_only_so_many_patterns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(validation, "PATTERNS_MAX", 30)
    schema = {"properties": {f"p{n}": {"pattern": f"^{n}$"} for n in range(10)}}
    tools = [ToolRule(f"f{n}", SegmentKind.FUNCTION_CALL, f"f{n}", schema=schema) for n in range(2)]
    answer = AnswerFormat("json_schema", schema, strict=True)
    Checker(rules(*tools, answer=answer), call_fields).compile()
    monkeypatch.setattr(validation, "PATTERNS_MAX", 29)
    with pytest.raises(InvalidRequest, match="have 30 patterns") as raised:
        Checker(rules(*tools, answer=answer), call_fields).compile()
    assert (raised.value.code, raised.value.param) == ("invalid_value", "tools")


@pytest.mark.parametrize(
    "schema",
    [{"properties": {"a": {"pattern": "^a$"}}}, {"type": "no such type"}],
    ids=["patterns", "unusable"],
)
def test_the_schema_of_a_server_that_cannot_be_used_is_left_to_its_tool(
    schema: dict[str, Any],
) -> None:
    tool = ToolRule("crm.add", SegmentKind.MCP_CALL, "add", "crm", schema=schema)
    checker = Checker(rules(tool), call_fields)
    assert checker.call_fault("crm.add", "") is None
    assert checker.call_fault("crm.add", '{"a": "b"}') is None
    assert checker.call_fault("crm.add", "[1") is not None
