"""What the model is told of a request's tools: functions all, under one name each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.generation import SegmentKind
from gateway.protocol.tools import (
    ApplyPatchTool,
    CustomTool,
    FunctionTool,
    GrammarFormat,
    HostedTool,
    LocalShellTool,
    NamespaceTool,
    ShellTool,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gateway.protocol.tools import ClientTool, Tool

LOCAL_SHELL: Final = "local_shell"
SHELL: Final = "shell"
APPLY_PATCH: Final = "apply_patch"
CUSTOM_INPUT: Final = "input"
"""The only argument of a custom tool."""

KINDS: Final[dict[type[ClientTool], SegmentKind]] = {
    FunctionTool: SegmentKind.FUNCTION_CALL,
    CustomTool: SegmentKind.CUSTOM_CALL,
    LocalShellTool: SegmentKind.LOCAL_SHELL_CALL,
    ShellTool: SegmentKind.SHELL_CALL,
    ApplyPatchTool: SegmentKind.APPLY_PATCH_CALL,
}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _file_operation(kind: str, *texts: str) -> dict[str, Any]:
    texts_schema = {name: {"type": "string"} for name in texts}
    return _object({"type": {"type": "string", "enum": [kind]}, **texts_schema}, "type", *texts)


_WORDS: Final = {"type": "array", "items": {"type": "string"}, "minItems": 1}
_COUNT: Final = {"type": ["integer", "null"], "minimum": 0, "maximum": 2**31 - 1}
_TEXT: Final = {"type": ["string", "null"]}

LOCAL_SHELL_PARAMETERS: Final = _object(
    {
        "command": _WORDS,
        "env": {"type": "object", "additionalProperties": {"type": "string"}},
        "timeout_ms": _COUNT,
        "user": _TEXT,
        "working_directory": _TEXT,
    },
    "command",
)
SHELL_PARAMETERS: Final = _object(
    {"commands": _WORDS, "timeout_ms": _COUNT, "max_output_length": _COUNT}, "commands"
)
APPLY_PATCH_PARAMETERS: Final = _object(
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

CUSTOM_PARAMETERS: Final = _object({CUSTOM_INPUT: {"type": "string"}}, CUSTOM_INPUT)
NO_ARGUMENTS: Final = _object({})
PARAMETERS: Final[dict[type[ClientTool], dict[str, Any]]] = {
    LocalShellTool: LOCAL_SHELL_PARAMETERS,
    ShellTool: SHELL_PARAMETERS,
    ApplyPatchTool: APPLY_PATCH_PARAMETERS,
}
"""The schemas of the tools whose arguments are not for the client to choose."""

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
_SYNTAXES: Final = {"lark": "this Lark grammar", "regex": "this regular expression"}


@dataclass(frozen=True, slots=True)
class NamedTool:
    """A tool by the name that the model knows, which no other tool of its request has.

    `shown_name` and `namespace` are what the client called it, `path` is where in `tools`, as in
    `[1].tools[0]`.
    """

    name: str
    shown_name: str
    namespace: str | None
    tool: ClientTool
    path: str

    @property
    def kind(self) -> SegmentKind:
        """What a call of it becomes."""
        return KINDS[type(self.tool)]


def flat_name(namespace: str | None, name: str) -> str:
    """The name that the model knows."""
    return f"{namespace}.{name}" if namespace else name


def named(tools: Iterable[Tool]) -> Iterator[NamedTool]:
    """Every tool that can be called, namespaces opened, hosted tools left out."""
    for index, tool in enumerate(tools):
        path = f"[{index}]"
        match tool:
            case HostedTool():
                continue
            case NamespaceTool():
                for at, member in enumerate(tool.tools):
                    name = flat_name(tool.name, member.name)
                    yield NamedTool(name, member.name, tool.name, member, f"{path}.tools[{at}]")
            case FunctionTool() | CustomTool():
                yield NamedTool(tool.name, tool.name, None, tool, path)
            case _:
                yield NamedTool(tool.type, tool.type, None, tool, path)


def declared(tools: Sequence[Tool]) -> tuple[FunctionTool, ...]:
    """The functions that the model is told of.

    What a namespace is for stands at the first of its functions, because all functions of a prompt
    stand in one namespace.
    """
    purposes = _purposes(tools)
    return tuple(_declaration(tool, purposes.get(tool.path, "")) for tool in named(tools))


def _purposes(tools: Sequence[Tool]) -> dict[str, str]:
    """Descriptions of namespaces, by the path of their first tool."""
    return {
        f"[{index}].tools[0]": f"Tools of `{tool.name}`: {tool.description}"
        for index, tool in enumerate(tools)
        if isinstance(tool, NamespaceTool) and tool.description
    }


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
        case _:
            return _APPLY_PATCH


def _shell(tool: ShellTool) -> FunctionTool:
    if not tool.skills:
        return _SHELL
    skills = [f"- `{skill.name}` ({skill.path}): {skill.description}" for skill in tool.skills]
    paragraph = "\n".join(("Skills are folders with instructions in `SKILL.md`:", *skills))
    return _SHELL.model_copy(update={"description": f"{_SHELL.description}\n\n{paragraph}"})


def _custom(tool: CustomTool) -> FunctionTool:
    """A function with one text, the description of which is the tool's, with its grammar."""
    description = tool.description
    if isinstance(tool.format, GrammarFormat):
        language = f"The input must match {_SYNTAXES[tool.format.syntax]}:"
        paragraph = f"{language}\n{tool.format.definition}"
        description = f"{description}\n\n{paragraph}" if description else paragraph
    return FunctionTool(name=tool.name, description=description, parameters=CUSTOM_PARAMETERS)
