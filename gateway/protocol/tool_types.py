"""Tools: their declarations in requests, and their descriptions for the model.

Tools that a client executes are functions to the model. The gateway runs some of OpenAI's hosted
tools (`protocol.hosted_tools`); all others are dropped, and the response lists them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from pydantic import BeforeValidator, Discriminator, Tag, ValidationInfo
from pydantic_core import PydanticCustomError

from gateway.constraints.output_rules import INPUT_OBJECT
from gateway.constraints.schemas import object_schema
from gateway.generation import SegmentKind
from gateway.protocol.base import Many, NullableModel, WireModel
from gateway.protocol.documented import TOOL_TYPES
from gateway.protocol.hosted_tools import (
    FAMILIES,
    CodeInterpreterTool,
    McpServerTool,
    WebSearchTool,
)
from gateway.protocol.parameters import AllowedTools, ToolChoice

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from gateway.protocol.hosted_tools import HostedFamily, RunTool
    from gateway.protocol.parameters import AnyToolChoice, ToolName


FUNCTION_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""OpenAI's rule and a dot, which names from MCP servers have. In a Harmony header anything else
could address another recipient.
"""
SERVED_TOOL_TYPES: Final = (
    "function",
    "custom",
    "namespace",
    "local_shell",
    "shell",
    "apply_patch",
    "tool_search",
)
HOSTED_TOOL_TYPES: Final = frozenset(TOOL_TYPES) - frozenset(SERVED_TOOL_TYPES)
MEMBER_TYPES: Final = ("function", "custom")


class FunctionTool(WireModel):
    """Function of the client. Without `strict` its schema is only shown to the model. With
    `defer_loading` a search has to load it first (`protocol.brought_tools`). `parameters` is None
    for no arguments.
    """

    type: Literal["function"] = "function"
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class PlainFormat(NullableModel):
    type: Literal["text"] = "text"


class GrammarFormat(NullableModel):
    type: Literal["grammar"] = "grammar"
    syntax: Literal["lark", "regex"]
    definition: str


CustomFormat = Annotated[PlainFormat | GrammarFormat, Discriminator("type")]


class CustomTool(NullableModel):
    """Tool that takes one text; without `format` any text."""

    type: Literal["custom"] = "custom"
    name: str
    description: str | None = None
    format: CustomFormat | None = None
    defer_loading: bool | None = None


class LocalShellTool(NullableModel):
    """The older shell: one command at a time, as a list of arguments."""

    type: Literal["local_shell"] = "local_shell"


class Skill(NullableModel):
    name: str
    description: str
    path: str


class LocalEnvironment(NullableModel):
    type: Literal["local"] = "local"
    skills: Many[Skill] | None = None


class ShellTool(NullableModel):
    """Shell that takes several commands at once, as lines."""

    type: Literal["shell"] = "shell"
    environment: LocalEnvironment | None = None

    @property
    def skills(self) -> tuple[Skill, ...]:
        return (self.environment and self.environment.skills) or ()


class ApplyPatchTool(NullableModel):
    type: Literal["apply_patch"] = "apply_patch"


class ToolSearchTool(NullableModel):
    type: Literal["tool_search"] = "tool_search"
    execution: Literal["client"]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class HostedTool(NullableModel):
    """Dropped tool: not run by this gateway or for this tenant, or callable only by programs.

    The latter, which clients execute, have a `name`.
    """

    type: str
    name: str | None = None

    @property
    def label(self) -> str:
        is_safe = self.name is not None and FUNCTION_NAME.fullmatch(self.name)
        return f"{self.type};name={self.name}" if is_safe else self.type


def _tag_of(value: object) -> str | None:
    # Tags are no field names, so that error paths can tell them apart.
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if not isinstance(kind, str):
        return None
    if isinstance(value, HostedTool):
        return "hosted_tool"
    if family := FAMILIES.get(kind):
        return f"{family}_tool"
    return "hosted_tool" if _is_hosted(kind, value) else f"{kind}_tool"


def _is_hosted(kind: str, tool: object) -> bool:
    match tool:
        case {"type": "shell", "environment": {"type": place}}:
            return bool(place != "local")
        case {"type": "tool_search", **others}:
            return others.get("execution") != "client"
        case _:
            return kind in HOSTED_TOOL_TYPES


def _tool(value: object, info: ValidationInfo) -> object:
    # `info.context` holds the hosted families that the gateway runs for this caller.
    match value:
        case {"type": str(kind)} if kind not in TOOL_TYPES:
            families = info.context or ()
            run = tuple(kind for kind, family in FAMILIES.items() if family in families)
            raise _unknown_type(SERVED_TOOL_TYPES + run)
        case _:
            return value


def _member(value: object) -> object:
    match value:
        case {"type": str(kind)} if kind not in MEMBER_TYPES:
            raise _unknown_type(MEMBER_TYPES)
        case _:
            return value


def _unknown_type(served: tuple[str, ...]) -> PydanticCustomError:
    return PydanticCustomError("unknown_member", "", {"member": "type", "supported": served})


NamespaceMember = Annotated[
    Annotated[FunctionTool, Tag("function_tool")]
    | Annotated[CustomTool, Tag("custom_tool")]
    | Annotated[HostedTool, Tag("hosted_tool")],
    Discriminator(_tag_of),
    BeforeValidator(_member),
]


class NamespaceTool(NullableModel):
    """Tools under a common name; Codex sends name and namespace of a call apart."""

    type: Literal["namespace"] = "namespace"
    name: str
    description: str = ""
    tools: Many[NamespaceMember]


ClientTool = (
    FunctionTool | CustomTool | LocalShellTool | ShellTool | ApplyPatchTool | ToolSearchTool
)
Tool = ClientTool | NamespaceTool | WebSearchTool | CodeInterpreterTool | McpServerTool | HostedTool
AnyTool = Annotated[
    Annotated[FunctionTool, Tag("function_tool")]
    | Annotated[CustomTool, Tag("custom_tool")]
    | Annotated[NamespaceTool, Tag("namespace_tool")]
    | Annotated[LocalShellTool, Tag("local_shell_tool")]
    | Annotated[ShellTool, Tag("shell_tool")]
    | Annotated[ApplyPatchTool, Tag("apply_patch_tool")]
    | Annotated[ToolSearchTool, Tag("tool_search_tool")]
    | Annotated[WebSearchTool, Tag("web_search_tool")]
    | Annotated[CodeInterpreterTool, Tag("code_interpreter_tool")]
    | Annotated[McpServerTool, Tag("mcp_tool")]
    | Annotated[HostedTool, Tag("hosted_tool")],
    Discriminator(_tag_of),
    BeforeValidator(_tool),
]
"""Unlike tools in code, a tool in a request must have its type."""


def without_unserved(tools: object, served: Collection[HostedFamily]) -> object:
    """Return the raw `tools` without hosted tools that are not `served`, whatever else they
    contain.

    Tools that only programs may call are dropped too: no programs run here.
    """
    if not isinstance(tools, list | tuple):
        return tools
    return [_served(tool, served) for tool in tools]


def _served(tool: object, served: Collection[HostedFamily]) -> object:
    match tool:
        case {"type": str(kind)} if (family := FAMILIES.get(kind)) and family not in served:
            return HostedTool(type=kind)
        case {"type": "namespace", "tools": [*members], **others}:
            called = [_called(member, MEMBER_TYPES) for member in members]
            return {**others, "type": "namespace", "tools": called}
        case _:
            return _called(tool, TOOL_TYPES)


def _called(tool: object, kinds: Sequence[str]) -> object:
    match tool:
        case {"type": str(kind), "allowed_callers": [*callers], **others} if (
            kind in kinds and callers and "direct" not in callers
        ):
            name = others.get("name")
            return HostedTool(type=kind, name=name if isinstance(name, str) else None)
        case _:
            return tool


def dropped(tools: Iterable[Tool]) -> tuple[HostedTool, ...]:
    hosted: list[HostedTool] = []
    for tool in tools:
        if isinstance(tool, HostedTool):
            hosted.append(tool)
        elif isinstance(tool, NamespaceTool):
            hosted += [member for member in tool.tools if isinstance(member, HostedTool)]
    return tuple(hosted)


def run_tools(tools: Iterable[Tool]) -> tuple[RunTool, ...]:
    return tuple(
        tool
        for tool in tools
        if isinstance(tool, WebSearchTool | CodeInterpreterTool | McpServerTool)
    )


LOCAL_SHELL: Final = "local_shell"
SHELL: Final = "shell"
APPLY_PATCH: Final = "apply_patch"
TOOL_SEARCH: Final = "tool_search"
CUSTOM_INPUT: Final = "input"
"""The only argument of a custom tool."""
KINDS: Final[dict[type[ClientTool], SegmentKind]] = {
    FunctionTool: SegmentKind.FUNCTION_CALL,
    CustomTool: SegmentKind.CUSTOM_CALL,
    LocalShellTool: SegmentKind.LOCAL_SHELL_CALL,
    ShellTool: SegmentKind.SHELL_CALL,
    ApplyPatchTool: SegmentKind.APPLY_PATCH_CALL,
    ToolSearchTool: SegmentKind.TOOL_SEARCH_CALL,
}


def _file_operation(kind: str, *texts: str) -> dict[str, Any]:
    texts_schema = {name: {"type": "string"} for name in texts}
    return object_schema(
        {"type": {"type": "string", "enum": [kind]}, **texts_schema}, "type", *texts
    )


_WORDS: Final = {"type": "array", "items": {"type": "string"}, "minItems": 1}
_COUNT: Final = {"type": ["integer", "null"], "minimum": 0, "maximum": 2**31 - 1}
_TEXT: Final = {"type": ["string", "null"]}
LOCAL_SHELL_PARAMETERS: Final = object_schema(
    {
        "command": _WORDS,
        "env": {"type": "object", "additionalProperties": {"type": "string"}},
        "timeout_ms": _COUNT,
        "user": _TEXT,
        "working_directory": _TEXT,
    },
    "command",
)
SHELL_PARAMETERS: Final = object_schema(
    {"commands": _WORDS, "timeout_ms": _COUNT, "max_output_length": _COUNT}, "commands"
)
APPLY_PATCH_PARAMETERS: Final = object_schema(
    {
        "operation": {
            "oneOf": [
                _file_operation("create_file", "path", "diff"),
                _file_operation("update_file", "path", "diff"),
                _file_operation("delete_file", "path"),
            ]
        }
    },
    "operation",
)
NO_ARGUMENTS: Final = object_schema({})
PARAMETERS: Final[dict[type[ClientTool], dict[str, Any]]] = {
    LocalShellTool: LOCAL_SHELL_PARAMETERS,
    ShellTool: SHELL_PARAMETERS,
    ApplyPatchTool: APPLY_PATCH_PARAMETERS,
}
"""Tools whose arguments the client does not choose."""
_LOCAL_SHELL: Final = FunctionTool(
    name=LOCAL_SHELL,
    description=(
        "Runs one command on the user's machine and returns what it printed. `command` is the "
        "program and its arguments, one string each; no shell interprets them."
    ),
    parameters=LOCAL_SHELL_PARAMETERS,
)
_SHELL: Final = FunctionTool(
    name=SHELL,
    description=(
        "Runs shell commands on the user's machine, in order, and returns what each printed and "
        "its exit code. `max_output_length` bounds the characters returned."
    ),
    parameters=SHELL_PARAMETERS,
)
_APPLY_PATCH: Final = FunctionTool(
    name=APPLY_PATCH,
    description=(
        "Creates, updates or deletes one file. `diff` is in the V4A format: for a new file every "
        "line begins with `+`; for an update there are sections that begin with `@@`, with context "
        "lines, `-` lines and `+` lines."
    ),
    parameters=APPLY_PATCH_PARAMETERS,
)
_TOOL_SEARCH: Final = FunctionTool(
    name=TOOL_SEARCH,
    description="Searches for tools that can be called once they were found.",
    parameters=object_schema({"query": {"type": "string"}}, "query"),
)
_SYNTAXES: Final = {"lark": "this Lark grammar", "regex": "this regular expression"}


class NamedTool(NamedTuple):
    """Tool by the model's name, which is unique in a request.

    `shown_name` and `namespace` are the client's; `path` is its place, as in `[1].tools[0]`.
    """

    name: str
    shown_name: str
    namespace: str | None
    tool: ClientTool
    path: str

    @property
    def kind(self) -> SegmentKind:
        return KINDS[type(self.tool)]


def flat_name(namespace: str | None, name: str) -> str:
    return f"{namespace}.{name}" if namespace else name


def named(tools: Iterable[Tool]) -> Iterator[NamedTool]:
    for index, tool in enumerate(tools):
        path = f"[{index}]"
        match tool:
            case FunctionTool() | CustomTool():
                yield NamedTool(tool.name, tool.name, None, tool, path)
            case HostedTool() | WebSearchTool() | CodeInterpreterTool() | McpServerTool():
                continue
            case NamespaceTool():
                yield from _members(tool, path)
            case _:
                yield NamedTool(tool.type, tool.type, None, tool, path)


def _members(space: NamespaceTool, path: str) -> Iterator[NamedTool]:
    for at, member in enumerate(space.tools):
        if not isinstance(member, HostedTool):
            name = flat_name(space.name, member.name)
            yield NamedTool(name, member.name, space.name, member, f"{path}.tools[{at}]")


def declared(tools: Sequence[Tool]) -> tuple[FunctionTool, ...]:
    """Return the functions that the model sees.

    A prompt has one namespace, so the first function of a namespace carries its description.
    """
    purposes = {
        tool.name: f"Tools of `{tool.name}`: {tool.description}"
        for tool in tools
        if isinstance(tool, NamespaceTool) and tool.description
    }
    return tuple(
        _declaration(tool, purposes.pop(tool.namespace or "", "")) for tool in named(tools)
    )


def _declaration(tool: NamedTool, purpose: str) -> FunctionTool:
    function = _function(tool.tool)
    if not purpose and function.name == tool.name:
        return function
    description = "\n\n".join(filter(None, (purpose, function.description)))
    return function.model_copy(
        update={"name": tool.name, "description": description or function.description}
    )


def _function(tool: ClientTool) -> FunctionTool:
    match tool:
        case FunctionTool():
            return tool
        case CustomTool():
            return _custom(tool)
        case LocalShellTool():
            return _LOCAL_SHELL
        case ShellTool():
            return _shell(tool)
        case ToolSearchTool():
            return _TOOL_SEARCH.model_copy(
                update={
                    "description": tool.description or _TOOL_SEARCH.description,
                    "parameters": tool.parameters or _TOOL_SEARCH.parameters,
                }
            )
        case _:
            return _APPLY_PATCH


def _shell(tool: ShellTool) -> FunctionTool:
    if not tool.skills:
        return _SHELL
    skills = [f"- `{skill.name}` ({skill.path}): {skill.description}" for skill in tool.skills]
    paragraph = "\n".join(("Skills are folders with instructions in `SKILL.md`:", *skills))
    return _SHELL.model_copy(update={"description": f"{_SHELL.description}\n\n{paragraph}"})


def _custom(tool: CustomTool) -> FunctionTool:
    description = tool.description
    if isinstance(tool.format, GrammarFormat):
        language = f"The input must match {_SYNTAXES[tool.format.syntax]}:"
        paragraph = f"{language}\n{tool.format.definition}"
        description = f"{description}\n\n{paragraph}" if description else paragraph
    return FunctionTool(name=tool.name, description=description, parameters=INPUT_OBJECT)


def means(wanted: ToolName, tool: NamedTool) -> bool:
    match wanted.type:
        case "function" | "custom" if wanted.namespace:
            named = (wanted.namespace, wanted.name) == (tool.namespace, tool.shown_name)
            return named and tool.tool.type == wanted.type
        case "function" | "custom":
            return wanted.name == tool.name and tool.tool.type == wanted.type
        case "namespace":
            return wanted.name == tool.namespace
        case kind:
            return kind == tool.tool.type


def means_hosted(wanted: ToolName, tools: Iterable[RunTool]) -> bool:
    """Return True if `wanted` selects one of `tools`.

    Of an MCP server any name is accepted, because its tools are not listed yet.
    """
    family = FAMILIES.get(wanted.type)
    return any(
        FAMILIES.get(tool.type) == family
        and (
            not isinstance(tool, McpServerTool) or wanted.server_label in {None, tool.server_label}
        )
        for tool in tools
    )


def allowed_names(choice: AnyToolChoice, tools: Sequence[NamedTool]) -> frozenset[str]:
    match choice:
        case "none":
            return frozenset()
        case AllowedTools():
            wanted: tuple[ToolName, ...] = choice.tools
        case ToolChoice():
            wanted = (choice,)
        case _:
            return frozenset(tool.name for tool in tools)
    return frozenset(tool.name for tool in tools if any(means(name, tool) for name in wanted))
