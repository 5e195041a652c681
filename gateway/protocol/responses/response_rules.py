"""The rules of a response's output.

They depend only on its echo and its grants, so a fold elsewhere or a year later has the same rules.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter

from gateway.constraints.output_rules import AnswerFormat, OutputRules, TextGrammar, ToolRule
from gateway.constraints.schemas import ANY_OBJECT, SchemaBounds, object_schema, schema_fault
from gateway.generation import BROWSER_TOOLS, BUILTIN_PREFIX, PYTHON_TOOL, SegmentKind
from gateway.protocol.base import Many
from gateway.protocol.parameters import (
    AllowedTools,
    AnyFormat,
    AnyToolChoice,
    JsonSchemaFormat,
    ToolChoice,
)
from gateway.protocol.tool_types import (
    NO_ARGUMENTS,
    PARAMETERS,
    AnyTool,
    CustomTool,
    FunctionTool,
    GrammarFormat,
    ToolSearchTool,
    allowed_names,
    flat_name,
    named,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gateway.constraints.output_rules import CallMode, Summary
    from gateway.protocol.grants import Grants, McpTool, ServerGrant
    from gateway.protocol.tool_types import NamedTool, Tool


_SCHEMA_BOUNDS: Final = SchemaBounds(schema_bytes_max=16 << 10, pattern_chars_max=512)
"""The schema of an MCP tool beyond them does not bind the arguments of calls."""
_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer"}


_BROWSER_SCHEMAS: Final = dict(
    zip(
        BROWSER_TOOLS,
        (
            object_schema({"query": _TEXT, "topn": _NUMBER, "source": _TEXT}, "query"),
            object_schema(
                {
                    "id": {"type": ["integer", "string"]},
                    "cursor": _NUMBER,
                    "loc": _NUMBER,
                    "num_lines": _NUMBER,
                    "view_source": {"type": "boolean"},
                    "source": _TEXT,
                }
            ),
            object_schema({"pattern": _TEXT, "cursor": _NUMBER}, "pattern"),
        ),
        strict=True,
    )
)
"""Arguments of the tools of web search, as gpt-oss was trained."""
_BUILTIN_CHOICES: Final = {
    SegmentKind.WEB_SEARCH_CALL: "web_search",
    SegmentKind.CODE_INTERPRETER_CALL: "code_interpreter",
}
"""Prefix of the types of tool choices."""


def hosted_rules(grants: Grants) -> Iterator[ToolRule]:
    if grants.browser is not None:
        for name, schema in _BROWSER_SCHEMAS.items():
            shown = name.removeprefix(BUILTIN_PREFIX)
            yield ToolRule(name, SegmentKind.WEB_SEARCH_CALL, shown, schema=schema)
    if grants.python is not None:
        shown = PYTHON_TOOL.removeprefix(BUILTIN_PREFIX)
        yield ToolRule(PYTHON_TOOL, SegmentKind.CODE_INTERPRETER_CALL, shown)
    for server in grants.servers:
        yield from (_mcp_rule(server, tool) for tool in server.tools)


def _mcp_rule(server: ServerGrant, tool: McpTool) -> ToolRule:
    # The schema binds the arguments if a grammar can be made of it; the server checks them.
    asks, schema = tool.needs_approval, tool.parameters
    return ToolRule(
        flat_name(server.label, tool.name),
        SegmentKind.MCP_APPROVAL_REQUEST if asks else SegmentKind.MCP_CALL,
        tool.name,
        server.label,
        schema=None if schema_fault(schema, _SCHEMA_BOUNDS, of_objects=True) else schema,
        declared=schema,
    )


def chooses(choice: Mapping[str, Any], tool: ToolRule) -> bool:
    """Return True if a choice of one tool, as the response repeats it, selects this hosted tool.

    An MCP choice has a `server_label`, and perhaps a `name`.
    """
    kind = choice.get("type")
    if (builtin := _BUILTIN_CHOICES.get(tool.kind)) is not None:
        return isinstance(kind, str) and kind.startswith(builtin)
    if kind != "mcp":
        return False
    wanted = (choice.get("server_label"), choice.get("name"))
    names = (tool.namespace, tool.shown_name)
    return all(one in {None, own} for one, own in zip(wanted, names, strict=True))


OFFERED: Final = "offered_tools"
"""Tools that the model sees, in an echo where they differ from `tools`: some are not loaded, or
items brought more. It is not shown.
"""
_TOOLS: Final[TypeAdapter[tuple[Tool, ...]]] = TypeAdapter(Many[AnyTool])
_CHOICE: Final[TypeAdapter[AnyToolChoice]] = TypeAdapter(AnyToolChoice)
_FORMAT: Final[TypeAdapter[AnyFormat]] = TypeAdapter(AnyFormat)
_SUMMARIES: Final[dict[str | None, Summary]] = {
    None: "off",
    "concise": "concise",
    "auto": "detailed",
    "detailed": "detailed",
}


def rules_of(echo: Mapping[str, Any], grants: Grants | None = None) -> OutputRules:
    """Return the rules for an echo (of the function `echo`) and grants.

    A function of the request with the name of a hosted tool replaces it.
    """
    choice = echo["tool_choice"]
    shown = offered_tools(echo)
    is_plain = isinstance(choice, str) and not shown and "stop" not in echo
    if is_plain and grants is None and echo["text"]["format"]["type"] == "text":
        return _plain_rules(choice, not echo["parallel_tool_calls"], echo["reasoning"]["summary"])
    typed: AnyToolChoice = choice
    if not isinstance(choice, str):
        typed = _CHOICE.validate_python(choice)
    calls = _calls(typed)
    offered = [] if calls == "none" else shown
    tools = tuple(named(_TOOLS.validate_python(offered))) if offered else ()
    hosted = () if grants is None or calls == "none" else tuple(hosted_rules(grants))
    answer = _answer(echo["text"]["format"])
    return OutputRules(
        tools={tool.name: tool for tool in (*hosted, *map(_tool_rule, tools))},
        allowed=allowed_names(typed, tools).union(_allowed_hosted(choice, hosted)),
        calls=calls,
        open_calls=typed == "auto" and (bool(tools) or answer is None),
        one_call=not echo["parallel_tool_calls"],
        answer=answer,
        stop=tuple(echo.get("stop", ())),
        summary=_SUMMARIES[echo["reasoning"]["summary"]],
    )


def offered_tools(echo: Mapping[str, Any]) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = echo.get(OFFERED, echo["tools"])
    return tools


def _allowed_hosted(choice: str | Mapping[str, Any], hosted: Sequence[ToolRule]) -> Iterator[str]:
    if isinstance(choice, str):
        return (tool.name for tool in hosted)
    wanted = choice["tools"] if choice["type"] == "allowed_tools" else (choice,)
    return (tool.name for tool in hosted if any(chooses(one, tool) for one in wanted))


@cache
def _plain_rules(calls: CallMode, one_call: bool, summary: str | None) -> OutputRules:  # noqa: FBT001 - as `cache` wants it
    return OutputRules(
        tools={},
        allowed=frozenset(),
        calls=calls,
        open_calls=calls == "auto",
        one_call=one_call,
        summary=_SUMMARIES[summary],
    )


def _calls(choice: AnyToolChoice) -> CallMode:
    match choice:
        case AllowedTools():
            return choice.mode
        case ToolChoice():
            return "required"
        case mode:
            return mode


def _tool_rule(tool: NamedTool) -> ToolRule:
    schema, grammar = PARAMETERS.get(type(tool.tool)), None
    declared = (
        tool.tool.parameters if isinstance(tool.tool, FunctionTool | ToolSearchTool) else None
    )
    match tool.tool:
        case ToolSearchTool():
            schema = ANY_OBJECT  # its item has no field for anything else
        case FunctionTool(strict=True, parameters=parameters):
            schema = NO_ARGUMENTS if parameters is None else parameters
        case CustomTool(format=GrammarFormat() as format_):
            grammar = TextGrammar(format_.syntax, format_.definition)
        case _:
            pass
    return ToolRule(
        tool.name,
        tool.kind,
        tool.shown_name,
        tool.namespace,
        schema=schema,
        grammar=grammar,
        declared=declared,
    )


def _answer(format_: Mapping[str, Any]) -> AnswerFormat | None:
    if format_["type"] == "text":
        return None
    match _FORMAT.validate_python(format_):
        case JsonSchemaFormat() as bound:
            return AnswerFormat(
                "json_schema",
                bound.schema_,
                name=bound.name,
                description=bound.description or "",
                strict=bound.strict,
            )
        case _:
            return AnswerFormat("json_object", ANY_OBJECT)
