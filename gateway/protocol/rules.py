"""What a request demands of the output, derived from what the response repeats of it.

The rules are a function of `ResponseHead.echo` alone, so that whoever folds a log again, on another
replica or a year later, has the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import TypeAdapter

from gateway.generation import SegmentKind
from gateway.pacing import paced
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
    from collections.abc import Hashable, Mapping

    from gateway.protocol.tools import NamedTool, Tool

CallMode = Literal["none", "auto", "required"]
Summary = Literal["off", "concise", "detailed"]


WHOLE_KINDS: Final = frozenset(
    {SegmentKind.LOCAL_SHELL_CALL, SegmentKind.SHELL_CALL, SegmentKind.APPLY_PATCH_CALL}
)
"""Calls whose items have no text that could stream, and a shape that their arguments must have."""


@dataclass(frozen=True, slots=True)
class TextGrammar:
    """The language of a custom tool's input."""

    syntax: Literal["lark", "regex"]
    definition: str


@dataclass(frozen=True, slots=True)
class ToolRule:
    """One tool that the model knows as the function `name`.

    `shown_name` and `namespace` are what the client called it. `schema` is the JSON Schema that
    the arguments must satisfy, None where they may be anything (not strict). `grammar` is the
    language of a custom tool's input.
    """

    name: str
    kind: SegmentKind
    shown_name: str
    namespace: str | None = None
    schema: dict[str, Any] | None = field(default=None, hash=False)
    grammar: TextGrammar | None = None

    @property
    def is_checked(self) -> bool:
        """What the model writes for it can be wrong."""
        is_bound = self.schema is not None or self.grammar is not None
        return is_bound or self.kind in WHOLE_KINDS


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The answer is JSON. `schema` binds it if `strict`; else it need only be JSON (an object, for
    `json_object`), and the model is shown the schema.
    """

    kind: Literal["json_object", "json_schema"]
    schema: dict[str, Any] = field(hash=False)
    name: str = ""
    description: str = ""
    strict: bool = False

    @property
    def demand(self) -> dict[str, Any]:
        """The JSON Schema that the answer has to satisfy, whatever else the model was shown."""
        if self.kind == "json_schema" and self.strict:
            return self.schema
        is_object = self.kind == "json_object" or self.schema.get("type") == "object"
        return {"type": "object"} if is_object else {}


@dataclass(frozen=True)
class OutputRules:
    """All demands.

    `tools` are the tools that the model is told of, by the name it knows. Of these only `allowed`
    may be called; names that are no tool at all may be, too, if `open_calls` (clients answer "no
    such tool", and the model corrects itself). With `calls` "required" a turn must not end without
    a call; with "none" none may be made. `one_call`: no more than one. `stop` ends the answer.
    `summary` is how much of the reasoning is repeated as its summary.
    """

    tools: Mapping[str, ToolRule]
    allowed: frozenset[str]
    calls: CallMode = "auto"
    open_calls: bool = True
    one_call: bool = False
    answer: AnswerFormat | None = None
    stop: tuple[str, ...] = ()
    summary: Summary = "off"

    @cached_property
    def checks_calls(self) -> bool:
        """Some of the tools are checked."""
        return any(tool.is_checked for tool in self.tools.values())

    @cached_property
    def calls_functions(self) -> bool:
        """All tools are functions to the client, too, and may be given anything."""
        kinds = {tool.kind for tool in self.tools.values()}
        return not self.checks_calls and kinds <= {SegmentKind.FUNCTION_CALL}

    @cached_property
    def grammars(self) -> frozenset[TextGrammar]:
        """Those of the tools."""
        every = (tool.grammar for tool in self.tools.values())
        return frozenset(grammar for grammar in every if grammar is not None)

    @cached_property
    def derived(self) -> dict[Hashable, Any]:
        """What is made of these rules, for the next request that has them: those of one kind share
        theirs, also in several threads.
        """
        return {}


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
        tools={tool.name: _tool_rule(tool) for tool in paced(tools)},
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
