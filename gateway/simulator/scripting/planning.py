"""Which of the offered tools the user's request asks for, and how often."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.simulator.directives import Wishes
    from gateway.simulator.scripting.typescript import Tool

CALLS_MAX: Final = 100
_TIMES: Final = {"once": 1, "twice": 2, "thrice": 3}
_COUNTS: Final = {"two": 2, "three": 3, "four": 4, "five": 5}
_REPEAT: Final = re.compile(r"(?i)\b(once|twice|thrice)\b|\b(two|three|four|five|\d{1,2}) times\b")
_REFUSAL: Final = re.compile(r"(?i)\b(?:don't|do not|never|without) (?:call|us(?:e|ing)|run)")
_ASKS: Final = re.compile(r"(?i)\b(?:call|use|run|invoke)\b")
_IMPERATIVE: Final = re.compile(
    r"(?i)\A(?:please\s+)?(?:add|book|calculate|check|compute|create|delete|execute|fetch|find|get"
    r"|list|look|make|open|order|read|search|send|set|show|start|tell me the|update|write)\b"
)
_WORD_CHARS_MIN: Final = 4


def planned_calls(request: str, tools: Sequence[Tool], wishes: Wishes) -> list[Tool]:
    """The calls that answer the request, in the order they are made; empty for none."""
    if wishes.call == "none" or not tools:
        return []
    chosen = _chosen(request, tools, wishes)
    if len(chosen) != 1:
        return chosen[:CALLS_MAX]
    times = wishes.calls if wishes.calls is not None else _repetitions(request)
    return chosen * min(times, CALLS_MAX)


def _chosen(request: str, tools: Sequence[Tool], wishes: Wishes) -> list[Tool]:
    if wishes.call is not None:
        return [tool for tool in tools if tool.name == wishes.call]
    if _REFUSAL.search(request):
        return []
    if named := _named(request, tools):
        return named
    if meant := [tool for tool in tools if _is_meant(request, tool)]:
        return meant[:1]
    if _ASKS.search(request) or (len(tools) == 1 and _IMPERATIVE.search(request)):
        return list(tools[:1])
    return []


def _named(request: str, tools: Sequence[Tool]) -> list[Tool]:
    """Tools whose whole name is in the request, in the order of the request."""
    found = {
        match.start(): tool
        for tool in tools
        if (match := re.search(rf"(?<!\w){re.escape(tool.name)}(?!\w)", request, re.IGNORECASE))
    }
    return [found[place] for place in sorted(found)]


def _is_meant(request: str, tool: Tool) -> bool:
    """Whether a longer word of the tool's name is in the request: `weather` of `get_weather`."""
    said = set(re.findall(r"\w+", request.casefold()))
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", tool.name)
    return any(word.casefold() in said for word in words if len(word) >= _WORD_CHARS_MIN)


def _repetitions(request: str) -> int:
    match = _REPEAT.search(request)
    if match is None:
        return 1
    if match[1]:
        return _TIMES[match[1].lower()]
    word = match[2].lower()
    return _COUNTS[word] if word in _COUNTS else int(word)
