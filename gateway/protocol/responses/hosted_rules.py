"""The rules of the tools that the gateway runs itself, from the grants of a response, and which of
them a `tool_choice` means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.constraints.rules import ToolRule
from gateway.constraints.schemas import schema_fault
from gateway.generation import BROWSER_TOOLS, BUILTIN_PREFIX, PYTHON_TOOL, SegmentKind
from gateway.protocol.tools import flat_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gateway.protocol.hosted.grants import Grants, McpTool, ServerGrant


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Bounds of the schema of an MCP tool: a larger one does not bind the arguments of calls."""

    schema_bytes_max: int = 16 << 10
    schema_depth_max: int = 32
    pattern_chars_max: int = 512


_BOUNDS: Final = _Bounds()
_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer"}


def _arguments(*required: str, **properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_BROWSER_SCHEMAS: Final = dict(
    zip(
        BROWSER_TOOLS,
        (
            _arguments("query", query=_TEXT, topn=_NUMBER, source=_TEXT),
            _arguments(
                id={"type": ["integer", "string"]},
                cursor=_NUMBER,
                loc=_NUMBER,
                num_lines=_NUMBER,
                view_source={"type": "boolean"},
                source=_TEXT,
            ),
            _arguments("pattern", pattern=_TEXT, cursor=_NUMBER),
        ),
        strict=True,
    )
)
"""What gpt-oss was trained to call them with. Its numbers are whole ones."""
_BUILTIN_CHOICES: Final = {
    SegmentKind.WEB_SEARCH_CALL: "web_search",
    SegmentKind.CODE_INTERPRETER_CALL: "code_interpreter",
}
"""What the type of a choice of each begins with."""


def hosted_rules(grants: Grants) -> Iterator[ToolRule]:
    """Yield a rule for each hosted tool: built-in tools first, then those of MCP servers."""
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
        schema=None if schema_fault(schema, _BOUNDS, of_objects=True) else schema,
        declared=schema,
    )


def chooses(choice: Mapping[str, Any], tool: ToolRule) -> bool:
    """Return True if a choice of one tool, as the response repeats it, selects this hosted tool.

    Choices are `{"type": "web_search_preview"}`, `{"type": "code_interpreter"}` and `{"type":
    "mcp", "server_label": ..., "name": ...}`, the last with or without a name.
    """
    kind = choice.get("type")
    if (builtin := _BUILTIN_CHOICES.get(tool.kind)) is not None:
        return isinstance(kind, str) and kind.startswith(builtin)
    if kind != "mcp":
        return False
    asked = (choice.get("server_label"), choice.get("name"))
    known = (tool.namespace, tool.shown_name)
    return all(one in {None, own} for one, own in zip(asked, known, strict=True))
