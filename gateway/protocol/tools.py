"""Tools as a request declares them.

A client executes functions, custom tools (whose input is text, perhaps of a grammar), and the
shells and the patcher that OpenAI's models know by heart. Hosted tools would run at the server:
there are none here, so they are dropped, and the response says which.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Discriminator, Tag
from pydantic_core import PydanticCustomError

from gateway.protocol.base import WireModel, type_of
from gateway.protocol.documented import TOOL_TYPES
from gateway.protocol.fields import Many
from gateway.protocol.nulls import NullableModel

FUNCTION_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""OpenAI's rule and a dot, which names from MCP servers have. Names stand in Harmony headers, where
anything else could address somebody else."""

SERVED_TOOL_TYPES: Final = (
    "function",
    "custom",
    "namespace",
    "local_shell",
    "shell",
    "apply_patch",
)
HOSTED_TOOL_TYPES: Final = frozenset(TOOL_TYPES) - frozenset(SERVED_TOOL_TYPES)
MEMBER_TYPES: Final = ("function", "custom")
"""What can be in a namespace."""


class FunctionTool(WireModel):
    """A function that the client executes. `parameters` is a JSON Schema, None for no arguments.

    Only with `strict` the arguments must satisfy it; otherwise the model is merely shown it.
    """

    type: Literal["function"] = "function"
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class PlainFormat(NullableModel):
    """A custom tool's input is any text."""

    type: Literal["text"] = "text"


class GrammarFormat(NullableModel):
    """A custom tool's input is of a language: a Lark grammar, or a regular expression."""

    type: Literal["grammar"] = "grammar"
    syntax: Literal["lark", "regex"]
    definition: str


CustomFormat = Annotated[
    Annotated[PlainFormat, Tag("text")] | Annotated[GrammarFormat, Tag("grammar")],
    Discriminator(type_of),
]


class CustomTool(NullableModel):
    """A tool that takes one text. No `format` is any text."""

    type: Literal["custom"] = "custom"
    name: str
    description: str | None = None
    format: CustomFormat | None = None


class LocalShellTool(NullableModel):
    """The older of the two shells: one command at a time, as a list of arguments."""

    type: Literal["local_shell"] = "local_shell"


class Skill(NullableModel):
    """A folder at the client with instructions for a kind of task."""

    name: str
    description: str
    path: str


class LocalEnvironment(NullableModel):
    """The client's machine, and what the model may look up there."""

    type: Literal["local"] = "local"
    skills: Many[Skill] | None = None


class ShellTool(NullableModel):
    """A shell that the client runs."""

    type: Literal["shell"] = "shell"
    environment: LocalEnvironment | None = None

    @property
    def skills(self) -> tuple[Skill, ...]:
        """What the model is told of beside the shell itself."""
        return (self.environment and self.environment.skills) or ()


class ApplyPatchTool(NullableModel):
    """Creates, updates and deletes files at the client."""

    type: Literal["apply_patch"] = "apply_patch"


class HostedTool(NullableModel):
    """A tool that OpenAI runs and this gateway does not: dropped."""

    type: str


def _tag_of(value: object) -> str | None:
    """The tag of a tool of a known type, raw or typed.

    The tags are no names of fields, so that a path can be told from them.
    """
    kind = type_of(value)
    if kind is None:
        return None
    return "hosted_tool" if _is_hosted(kind, value) else f"{kind}_tool"


def _is_hosted(kind: str, tool: object) -> bool:
    """A shell is, if it is in a container."""
    match tool:
        case {"type": "shell", "environment": {"type": place}}:
            return bool(place != "local")
        case _:
            return kind in HOSTED_TOOL_TYPES


def _known(value: object, known: tuple[str, ...], served: tuple[str, ...]) -> object:
    """`value`, unless its type is not `known`; then those that are `served` are named."""
    match value:
        case {"type": str(kind)} if kind not in known:
            raise PydanticCustomError("unknown_member", "", {"member": "type", "supported": served})
        case _:
            return value


def _tool(value: object) -> object:
    return _known(value, TOOL_TYPES, SERVED_TOOL_TYPES)


def _member(value: object) -> object:
    return _known(value, MEMBER_TYPES, MEMBER_TYPES)


NamespaceMember = Annotated[
    Annotated[FunctionTool, Tag("function_tool")] | Annotated[CustomTool, Tag("custom_tool")],
    Discriminator(_tag_of),
    BeforeValidator(_member),
]


class NamespaceTool(NullableModel):
    """Tools under a common name; a call says name and namespace apart (clients.md, Codex)."""

    type: Literal["namespace"] = "namespace"
    name: str
    description: str = ""
    tools: Many[NamespaceMember]


ClientTool = FunctionTool | CustomTool | LocalShellTool | ShellTool | ApplyPatchTool
"""What a model can call: one function each."""
Tool = ClientTool | NamespaceTool | HostedTool
AnyTool = Annotated[
    Annotated[FunctionTool, Tag("function_tool")]
    | Annotated[CustomTool, Tag("custom_tool")]
    | Annotated[NamespaceTool, Tag("namespace_tool")]
    | Annotated[LocalShellTool, Tag("local_shell_tool")]
    | Annotated[ShellTool, Tag("shell_tool")]
    | Annotated[ApplyPatchTool, Tag("apply_patch_tool")]
    | Annotated[HostedTool, Tag("hosted_tool")],
    Discriminator(_tag_of),
    BeforeValidator(_tool),
]
"""A tool as a request spells it: unlike our own values it must say its type."""
