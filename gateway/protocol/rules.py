"""What a request demands of the output, derived from what the response repeats of it.

The rules are a function of `ResponseHead.echo` alone, so that whoever folds a log again, on another
replica or a year later, has the same ones.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter

from gateway.constraints.rules import AnswerFormat, OutputRules, TextGrammar, ToolRule
from gateway.protocol.fields import VeryMany
from gateway.protocol.parameters import (
    AllowedTools,
    AnyFormat,
    AnyToolChoice,
    JsonSchemaFormat,
    ToolChoice,
)
from gateway.protocol.tools import (
    NO_ARGUMENTS,
    PARAMETERS,
    AnyTool,
    CustomTool,
    FunctionTool,
    GrammarFormat,
    allowed_names,
    named,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.constraints.rules import CallMode, Summary
    from gateway.protocol.tools import NamedTool, Tool

_TOOLS: Final[TypeAdapter[tuple[Tool, ...]]] = TypeAdapter(VeryMany[AnyTool])
_CHOICE: Final[TypeAdapter[AnyToolChoice]] = TypeAdapter(AnyToolChoice)
_FORMAT: Final[TypeAdapter[AnyFormat]] = TypeAdapter(AnyFormat)

_SUMMARIES: Final[dict[str | None, Summary]] = {
    None: "off",
    "concise": "concise",
    "auto": "detailed",
    "detailed": "detailed",
}


def rules_of(echo: Mapping[str, Any]) -> OutputRules:
    """The rules of a response that repeats `echo` of its request (`responses.body.echo`)."""
    choice = echo["tool_choice"]
    is_plain = isinstance(choice, str) and not echo["tools"] and "stop" not in echo
    if is_plain and echo["text"]["format"]["type"] == "text":
        return _plain_rules(choice, not echo["parallel_tool_calls"], echo["reasoning"]["summary"])
    if not isinstance(choice, str):
        choice = _CHOICE.validate_python(choice)
    calls = _calls(choice)
    offered = [] if calls == "none" else echo["tools"]
    tools = tuple(named(_TOOLS.validate_python(offered))) if offered else ()
    answer = _answer(echo["text"]["format"])
    return OutputRules(
        tools={tool.name: _tool_rule(tool) for tool in tools},
        allowed=allowed_names(choice, tools),
        calls=calls,
        open_calls=choice == "auto" and (bool(tools) or answer is None),
        one_call=not echo["parallel_tool_calls"],
        answer=answer,
        stop=tuple(echo.get("stop", ())),
        summary=_SUMMARIES[echo["reasoning"]["summary"]],
    )


@cache
def _plain_rules(calls: CallMode, one_call: bool, summary: str | None) -> OutputRules:  # noqa: FBT001 - as `cache` wants it
    """Those of a request that demands next to nothing: the same for all of them."""
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
    match tool.tool:
        case FunctionTool(strict=True, parameters=parameters):
            schema = NO_ARGUMENTS if parameters is None else parameters
        case CustomTool(format=GrammarFormat() as asked):
            grammar = TextGrammar(asked.syntax, asked.definition)
        case _:
            pass
    return ToolRule(
        tool.name, tool.kind, tool.shown_name, tool.namespace, schema=schema, grammar=grammar
    )


def _answer(asked: Mapping[str, Any]) -> AnswerFormat | None:
    if asked["type"] == "text":
        return None
    match _FORMAT.validate_python(asked):
        case JsonSchemaFormat() as bound:
            return AnswerFormat(
                "json_schema",
                bound.schema_,
                name=bound.name,
                description=bound.description or "",
                strict=bound.strict,
            )
        case _:
            return AnswerFormat("json_object", {"type": "object"})
