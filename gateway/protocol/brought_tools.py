"""Tools that items of a context bring, besides those that its request declares.

Only tools that a client executes can be brought: others need what no item may hold (the token of an
MCP server is stored nowhere), and are dropped.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import ValidationError

from gateway.errors import InvalidRequest
from gateway.protocol.base import Many, WireModel
from gateway.protocol.hosted_tools import NO_FAMILIES
from gateway.protocol.items import AdditionalTools, ToolSearchOutput
from gateway.protocol.request_errors import refusal_of
from gateway.protocol.tool_types import (
    AnyTool,
    CustomTool,
    FunctionTool,
    NamedTool,
    NamespaceTool,
    Tool,
    ToolSearchTool,
    named,
    run_tools,
    without_unserved,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gateway.protocol.context_item import ContextItem

BRINGING: Final = frozenset({"additional_tools", "tool_search_output"})
LOADED_TOOLS_MAX: Final = 512
"""The last loaded ones count."""
BROUGHT_TOOLS_MAX: Final = 2048
"""With duplicates. A request with more is refused; of earlier items the last ones count."""
_CATALOGUE: Final = "Tools that it can load:"


class _Bringing(WireModel):
    tools: Many[AnyTool]


@dataclass(frozen=True, slots=True)
class BroughtTools:
    """Tools of the item at `path`, as in `input[1].`; `loaded` tools were found by a search."""

    path: str
    tools: tuple[Tool, ...]
    loaded: bool

    @classmethod
    def from_item(cls, item: AdditionalTools | ToolSearchOutput, path: str) -> Self:
        document = {"tools": without_unserved(item.tools, NO_FAMILIES)}
        try:
            tools = _Bringing.model_validate(document).tools
        except ValidationError as error:
            raise refusal_of(error, within=path) from None
        return cls(path, tools, isinstance(item, ToolSearchOutput))

    @property
    def count(self) -> int:
        spaces = (tool.tools for tool in self.tools if isinstance(tool, NamespaceTool))
        return len(self.tools) + sum(map(len, spaces))


def brought_before(items: Sequence[ContextItem]) -> tuple[BroughtTools, ...]:
    kept: list[BroughtTools] = []
    count = 0
    for context in reversed(items):
        item = context.item() if context.kind in BRINGING and context.json else None
        if not isinstance(item, AdditionalTools | ToolSearchOutput):
            continue
        with suppress(InvalidRequest):
            each = BroughtTools.from_item(item, "input.")
            count += each.count
            if count > BROUGHT_TOOLS_MAX:
                break
            kept.append(each)
    return tuple(reversed(kept))


def offered(tools: Sequence[Tool], brought: Sequence[BroughtTools] = ()) -> tuple[Tool, ...]:
    """Return the tools that the model sees: each name once, declared tools before loaded ones.

    A deferred tool is left out until it is loaded, if there is a search that can load it.
    """
    added = [tool for each in brought if not each.loaded for tool in each.tools]
    declared = [*tools, *added]
    loaded = _loaded(brought)
    searches = bool(loaded) or any(isinstance(tool, ToolSearchTool) for tool in declared)
    if not brought and not (searches and any(_defers(tool) for tool in named(declared))):
        return tuple(tools)
    visible: dict[str, NamedTool] = {}
    deferred: dict[str, NamedTool] = {}
    for tool in named(declared):
        is_deferred = searches and _defers(tool)
        (deferred if is_deferred else visible).setdefault(tool.name, tool)
    visible |= {name: tool for name, tool in loaded.items() if name not in visible}
    loaded_tools = [tool for each in brought if each.loaded for tool in each.tools]
    purposes = _purposes((*declared, *loaded_tools))
    left = [tool for name, tool in deferred.items() if name not in visible]
    shown = (_with_catalogue(tool, left, purposes) for tool in visible.values())
    return (*run_tools(tools), *_grouped(shown, purposes))


def paths_of(tools: Sequence[Tool], brought: Sequence[BroughtTools] = ()) -> dict[str, str]:
    paths = {
        tool.name: f"{each.path}tools{tool.path}" for each in brought for tool in named(each.tools)
    }
    return paths | {tool.name: f"tools{tool.path}" for tool in named(tools)}


def _loaded(brought: Iterable[BroughtTools]) -> dict[str, NamedTool]:
    # The last version of each tool, in the order in which the tools were first loaded.
    by_name: dict[str, NamedTool] = {}
    for each in brought:
        if each.loaded:
            by_name |= {tool.name: tool for tool in named(each.tools)}
    return dict([*by_name.items()][-LOADED_TOOLS_MAX:])


def _defers(tool: NamedTool) -> bool:
    return isinstance(tool.tool, FunctionTool | CustomTool) and tool.tool.defer_loading is True


def _purposes(tools: Iterable[Tool]) -> dict[str, str]:
    return {
        tool.name: tool.description
        for tool in tools
        if isinstance(tool, NamespaceTool) and tool.description
    }


def _with_catalogue(
    tool: NamedTool, left: Sequence[NamedTool], purposes: Mapping[str, str]
) -> NamedTool:
    if not left or not isinstance(tool.tool, ToolSearchTool):
        return tool
    names = {
        each.namespace or each.name: purposes.get(each.namespace or "", "")
        if each.namespace
        else getattr(each.tool, "description", None)
        for each in left
    }
    lines = [f"- `{name}`: {about}" if about else f"- `{name}`" for name, about in names.items()]
    catalogue = "\n".join((_CATALOGUE, *lines))
    own = tool.tool.description
    description = f"{own}\n\n{catalogue}" if own else catalogue
    return tool._replace(tool=tool.tool.model_copy(update={"description": description}))


def _grouped(tools: Iterable[NamedTool], purposes: Mapping[str, str]) -> list[Tool]:
    groups: dict[str, list[NamedTool]] = {}
    for tool in tools:
        groups.setdefault(tool.namespace or f".{tool.name}", []).append(tool)
    return [tool for group in groups.values() for tool in _group(group, purposes)]


def _group(group: Sequence[NamedTool], purposes: Mapping[str, str]) -> Iterator[Tool]:
    space = group[0].namespace
    if space is None:
        yield from (tool.tool for tool in group)
        return
    members: Any = tuple(tool.tool for tool in group)
    yield NamespaceTool(name=space, description=purposes.get(space, ""), tools=members)
