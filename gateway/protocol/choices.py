"""Which of the tools a `tool_choice` means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.protocol.parameters import AllowedTools, ToolChoice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.protocol.callables import NamedTool
    from gateway.protocol.parameters import AnyToolChoice, ToolName


def means(wanted: ToolName, tool: NamedTool) -> bool:
    """Whether `tool` is the one that is named, or one of those."""
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


def allowed_names(choice: AnyToolChoice, tools: Sequence[NamedTool]) -> frozenset[str]:
    """The names, as the model knows them, of what may be called."""
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
