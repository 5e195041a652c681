"""The names of tools, as a model of a chat format knows them, and what it calls them with.

To such a model every tool is a function, also those that the gateway runs itself: what rules know
as `builtin:browser.search` it knows as `browser.search`, unless the client has a function of that
name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.generation import BUILTIN_PREFIX, SegmentKind
from gateway.models.chat.recovery import Rule
from gateway.models.chat.syntax.contract import QUOTES

if TYPE_CHECKING:
    from collections.abc import Collection

    from gateway.constraints.rules import ToolRule

NAMESPACE: Final = "functions."
"""What models that have read much of OpenAI's put before the name of a function."""

ANY_OBJECT: Final = {"type": "object"}
_CODE_OBJECT: Final = {
    "type": "object",
    "properties": {"code": {"type": "string"}},
    "required": ["code"],
    "additionalProperties": False,
}
"""What Python is called with."""
_INPUT_OBJECT: Final = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


def offered_name(tool: str) -> str:
    return tool.removeprefix(BUILTIN_PREFIX)


def called_tool(written: str, tools: Collection[str]) -> tuple[str, tuple[Rule, ...]]:
    """Return the tool that a written name means, and the rules that it was read by.

    An unknown name is returned as it is.
    """
    name = written.strip()
    for candidate in (name, BUILTIN_PREFIX + name):
        if candidate in tools:
            return candidate, ()
    unquoted = name.strip(QUOTES)
    bare = unquoted.removeprefix(NAMESPACE)
    for candidate in (bare, BUILTIN_PREFIX + bare):
        if candidate in tools:
            return candidate, (Rule.RECIPIENT_NORMALISED,)
    return unquoted, (Rule.UNDECLARED_FUNCTION,)


def schema_of(tool: ToolRule) -> dict[str, Any]:
    """Return the schema of a tool's arguments, for a tool whose input has no grammar."""
    if tool.schema is not None:
        return tool.schema
    if tool.kind is SegmentKind.CODE_INTERPRETER_CALL:
        return _CODE_OBJECT
    return _INPUT_OBJECT if tool.kind is SegmentKind.CUSTOM_CALL else ANY_OBJECT
