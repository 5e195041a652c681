"""Tools as a request declares them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from gateway.protocol.base import WireModel
from gateway.protocol.documented import TOOL_TYPES

SERVED_TOOL_TYPES: Final = ("function",)

FUNCTION_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""OpenAI's rule and a dot, which names from MCP servers have. Names stand in Harmony headers, where
anything else could address somebody else."""


class FunctionTool(WireModel):
    """A function that the client executes. `parameters` is a JSON Schema, None for no arguments.

    `strict` is kept to be echoed; gpt-oss is not decoded under a grammar, so it changes nothing in
    the prompt.
    """

    type: Literal["function"] = "function"
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


def _served(value: object) -> object:
    """A raw tool of a type that is served here; what is documented but not served says so."""
    match value:
        case {"type": "function"}:
            return value
        case {"type": str(kind)} if kind in TOOL_TYPES:
            raise PydanticCustomError("unserved_tool", "", {"kind": kind})
        case {"type": str(kind)}:
            raise PydanticCustomError(
                "unknown_member", "", {"member": "type", "supported": SERVED_TOOL_TYPES}
            )
        case dict() if value.get("type") is None:
            raise PydanticCustomError("missing_member", "", {"member": "type"})
    return value


AnyTool = Annotated[FunctionTool, BeforeValidator(_served)]
"""A tool as a request spells it: unlike our own values it must say its type."""
