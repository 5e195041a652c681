"""What the model is told of tools, and by which names."""

from __future__ import annotations

from typing import Any

from jsonschema_rs import Draft202012Validator

from gateway.constraints.output_rules import INPUT_OBJECT
from gateway.generation import SegmentKind
from gateway.protocol.tool_types import (
    APPLY_PATCH_PARAMETERS,
    LOCAL_SHELL_PARAMETERS,
    SHELL_PARAMETERS,
    declared,
    named,
)
from tests.fakes.cases import each
from tests.fakes.create_bodies import CUSTOM, FUNCTION, GRAMMAR, NAMESPACE, SHELLS, TOOLS, parse


def test_every_tool_is_a_function_with_a_name_of_its_own() -> None:
    tools = parse(tools=TOOLS).tools
    assert [tool.name for tool in declared(tools)] == [
        *("f", "s", "c", "g", "ns.m", "ns.n"),
        *("local_shell", "shell", "apply_patch"),
    ]
    assert [tool.kind for tool in named(tools)] == [
        SegmentKind.FUNCTION_CALL,
        SegmentKind.FUNCTION_CALL,
        SegmentKind.CUSTOM_CALL,
        SegmentKind.CUSTOM_CALL,
        SegmentKind.FUNCTION_CALL,
        SegmentKind.CUSTOM_CALL,
        SegmentKind.LOCAL_SHELL_CALL,
        SegmentKind.SHELL_CALL,
        SegmentKind.APPLY_PATCH_CALL,
    ]


def test_a_tool_in_a_namespace_is_known_by_both_names_and_by_its_place() -> None:
    tool = list(named(parse(tools=[FUNCTION, NAMESPACE]).tools))[2]
    assert (tool.name, tool.namespace, tool.shown_name) == ("ns.n", "ns", "n")
    assert tool.path == "[1].tools[1]"


def test_a_function_is_declared_as_it_is() -> None:
    request = parse(tools=[{**FUNCTION, "description": "d"}])
    assert declared(request.tools) == request.tools
    (bare,) = declared(parse(tools=[FUNCTION]).tools)
    assert bare.description is None


def test_hosted_tools_are_not_told() -> None:
    assert declared(parse(tools=[{"type": "web_search"}, {"type": "mcp"}]).tools) == ()


def test_what_a_namespace_is_for_stands_at_its_first_tool() -> None:
    first, second = declared(parse(tools=[NAMESPACE]).tools)
    assert first.description == "Tools of `ns`: Some tools."
    assert second.description == "Runs code."
    silent = {key: value for key, value in NAMESPACE.items() if key != "description"}
    assert declared(parse(tools=[silent]).tools)[0].description is None


def test_a_custom_tool_takes_one_text_and_is_described_with_its_grammar() -> None:
    plain, grammar, both = declared(
        parse(tools=[CUSTOM, GRAMMAR, {**GRAMMAR, "name": "h", "description": "d"}]).tools
    )
    assert plain.parameters == grammar.parameters == INPUT_OBJECT
    assert plain.description == "Runs code."
    assert grammar.description == 'The input must match this Lark grammar:\nstart: "a"+'
    assert both.description == f"d\n\n{grammar.description}"


def test_an_expression_is_called_one() -> None:
    form = {"type": "grammar", "syntax": "regex", "definition": "a+"}
    (tool,) = declared(parse(tools=[{**CUSTOM, "format": form}]).tools)
    assert tool.description == ("Runs code.\n\nThe input must match this regular expression:\na+")


def test_the_shells_and_the_patcher_explain_themselves() -> None:
    for tool in declared(parse(tools=SHELLS).tools):
        assert tool.description
        assert tool.parameters
        Draft202012Validator(tool.parameters)


def test_the_skills_of_a_shell_are_told() -> None:
    skill = {"name": "pdf", "description": "Reads PDFs.", "path": "/skills/pdf"}
    shell = {"type": "shell", "environment": {"type": "local", "skills": [skill]}}
    (tool,) = declared(parse(tools=[shell]).tools)
    assert tool.description
    assert tool.description.endswith(
        "\n\nSkills are folders with instructions in `SKILL.md`:\n"
        "- `pdf` (/skills/pdf): Reads PDFs."
    )


@each(
    ("schema", "arguments", "valid"),
    [
        (LOCAL_SHELL_PARAMETERS, {"command": ["ls"]}, True),
        (LOCAL_SHELL_PARAMETERS, {"command": ["ls"], "user": None, "env": {"A": "b"}}, True),
        (LOCAL_SHELL_PARAMETERS, {"command": []}, False),
        (LOCAL_SHELL_PARAMETERS, {"command": "ls"}, False),
        (LOCAL_SHELL_PARAMETERS, {"command": ["ls"], "cwd": "/"}, False),
        (SHELL_PARAMETERS, {"commands": ["ls"], "timeout_ms": 5, "max_output_length": None}, True),
        (SHELL_PARAMETERS, {"commands": ["ls"], "timeout_ms": -1}, False),
        (SHELL_PARAMETERS, {"command": ["ls"]}, False),
        (
            APPLY_PATCH_PARAMETERS,
            {"operation": {"type": "create_file", "path": "p", "diff": "+a"}},
            True,
        ),
        (APPLY_PATCH_PARAMETERS, {"operation": {"type": "delete_file", "path": "p"}}, True),
        (APPLY_PATCH_PARAMETERS, {"operation": {"type": "update_file", "path": "p"}}, False),
        (APPLY_PATCH_PARAMETERS, {"operation": {"type": "move_file", "path": "p"}}, False),
    ],
)
def test_what_the_shells_and_the_patcher_take(
    schema: dict[str, Any], arguments: dict[str, Any], *, valid: bool
) -> None:
    assert Draft202012Validator(schema).is_valid(arguments) is valid
