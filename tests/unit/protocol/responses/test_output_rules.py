"""What a request demands of the output, read from the echo."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.constraints.output_rules import (
    AnswerFormat,
    CallMode,
    OutputRules,
    TextGrammar,
    ToolRule,
)
from gateway.generation import SegmentKind
from gateway.protocol.responses.response_object import echo
from gateway.protocol.responses.response_rules import rules_of
from gateway.protocol.tool_types import NO_ARGUMENTS, SHELL_PARAMETERS
from tests.fakes.cases import each
from tests.fakes.create_bodies import GRAMMAR, NAMESPACE, SCHEMA, STRICT, TOOLS, parse

NAMES = ("f", "s", "c", "g", "ns.m", "ns.n", "local_shell", "shell", "apply_patch")


def rules(**fields: Any) -> OutputRules:
    return rules_of(echo(parse(**fields)))


def test_a_bare_request_demands_nothing() -> None:
    assert rules() == OutputRules(tools={}, allowed=frozenset())


def test_every_tool_has_a_rule_under_the_name_that_the_model_knows() -> None:
    found = rules(tools=TOOLS)
    assert tuple(found.tools) == NAMES
    assert found.allowed == set(NAMES)
    assert found.open_calls
    assert all(found.tools[name].name == name for name in NAMES)


def test_a_strict_function_is_held_to_its_schema() -> None:
    plain, strict, *_ = rules(tools=TOOLS).tools.values()
    assert (plain.schema, plain.is_checked) == (None, False)
    assert (strict.schema, strict.is_checked) == (STRICT["parameters"], True)
    bare = {"type": "function", "name": "f", "strict": True}
    assert rules(tools=[bare]).tools["f"].schema == NO_ARGUMENTS


def test_a_custom_tool_is_held_to_its_grammar_and_a_shell_to_its_arguments() -> None:
    tools = rules(tools=TOOLS).tools
    assert tools["c"] == ToolRule("c", SegmentKind.CUSTOM_CALL, "c")
    assert tools["g"].grammar == TextGrammar("lark", GRAMMAR["format"]["definition"])
    assert tools["shell"].schema == SHELL_PARAMETERS
    assert all(tools[name].is_checked for name in ("g", "local_shell", "shell", "apply_patch"))


def test_a_namespace_is_remembered() -> None:
    assert rules(tools=[NAMESPACE]).tools["ns.n"] == ToolRule(
        "ns.n", SegmentKind.CUSTOM_CALL, "n", namespace="ns"
    )


def test_hosted_tools_have_no_rule() -> None:
    assert rules(tools=[{"type": "web_search"}]) == rules()


@each(
    ("choice", "calls", "allowed"),
    [
        ("auto", "auto", set(NAMES)),
        ("required", "required", set(NAMES)),
        ("none", "none", set()),
        ({"type": "function", "name": "f"}, "required", {"f"}),
        ({"type": "function", "name": "ns.m"}, "required", {"ns.m"}),
        ({"type": "function", "name": "m", "namespace": "ns"}, "required", {"ns.m"}),
        ({"type": "custom", "name": "n", "namespace": "ns"}, "required", {"ns.n"}),
        ({"type": "custom", "name": "g"}, "required", {"g"}),
        ({"type": "local_shell"}, "required", {"local_shell"}),
        ({"type": "shell"}, "required", {"shell"}),
        ({"type": "apply_patch"}, "required", {"apply_patch"}),
        ({"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]}, "auto", {"f"}),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [
                    {"type": "namespace", "name": "ns"},
                    {"type": "shell"},
                    {"type": "web_search"},
                ],
            },
            "required",
            {"ns.m", "ns.n", "shell"},
        ),
    ],
)
def test_the_choice_decides_what_may_and_what_must_be_called(
    choice: str | dict[str, Any], calls: CallMode, allowed: set[str]
) -> None:
    found = rules(tools=[*TOOLS, {"type": "web_search"}], tool_choice=choice)
    assert found.calls == calls
    assert found.allowed == allowed
    assert found.open_calls is (choice == "auto")


def test_no_tool_is_told_of_when_none_may_be_called() -> None:
    assert rules(tools=TOOLS, tool_choice="none").tools == {}


def test_without_parallel_calls_there_is_one() -> None:
    assert not rules().one_call
    assert rules(parallel_tool_calls=False).one_call


def test_the_answer_s_format_is_a_schema_or_any_object() -> None:
    assert rules(text={"format": {"type": "text"}}).answer is None
    assert rules(text={"format": {"type": "json_object"}}).answer == AnswerFormat(
        "json_object", {"type": "object"}
    )
    assert rules(text={"format": SCHEMA}).answer == AnswerFormat(
        "json_schema", SCHEMA["schema"], name="answer"
    )
    strict = rules(text={"format": {**SCHEMA, "description": "d", "strict": True}}).answer
    assert strict == AnswerFormat(
        "json_schema", SCHEMA["schema"], name="answer", description="d", strict=True
    )


def test_stops_are_kept_in_their_order() -> None:
    assert rules(stop="x").stop == ("x",)
    assert rules(stop=["b", "a"]).stop == ("b", "a")


@pytest.mark.parametrize(
    ("asked", "summary"),
    [(None, "off"), ("auto", "detailed"), ("concise", "concise"), ("detailed", "detailed")],
)
def test_a_summary_is_whole_or_concise(asked: str | None, summary: str) -> None:
    assert rules(reasoning={"summary": asked}).summary == summary
    assert rules(reasoning={"generate_summary": asked}).summary == summary


def test_without_summaries_there_is_none_whatever_is_asked() -> None:
    request = parse(reasoning={"summary": "auto"})
    assert rules_of(echo(request, summaries=False)).summary == "off"


def test_an_answer_satisfies_its_schema_only_if_that_is_strict() -> None:
    schema = {"type": "object", "required": ["a"]}
    assert AnswerFormat("json_schema", schema, strict=True).demand == schema
    assert AnswerFormat("json_schema", schema).demand == {"type": "object"}
    assert AnswerFormat("json_schema", {"type": "array"}).demand == {}
    assert AnswerFormat("json_object", {"type": "object"}).demand == {"type": "object"}


@each("choice", ["none", "auto", "required"])
@each("parallel", [True, False])
@each("summary", [None, "concise", "auto", "detailed"])
def test_a_request_without_demands_has_the_rules_that_any_other_would_have(
    choice: str, parallel: bool, summary: str | None
) -> None:
    plain = echo(parse()) | {
        "tool_choice": choice,
        "parallel_tool_calls": parallel,
        "reasoning": {"effort": "low", "summary": summary},
    }
    assert rules_of(plain) == rules_of(plain | {"stop": []})
