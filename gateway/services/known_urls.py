"""The URLs that a request's own words have: what its browser may open where it must not open any.

A page or a tool's result can tell the model to open a URL that carries away what it has seen. So
where a response has other tools beside the browser, whose results may be private, a URL that the
model writes is opened only if the caller wrote it, or a page that was shown has it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gateway.protocol.hosted_tools import CodeInterpreterTool, McpServerTool, WebSearchTool
from gateway.protocol.items import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gateway.protocol.responses.create_request import CreateResponse

ASKING: Final = frozenset({"user", "system", "developer"})
"""The roles of those who ask."""
URLS_MAX: Final = 256
"""URLs that are remembered, at most: the last ones."""
_URL: Final = re.compile(r"https?://[^\s<>\"'`|\\^{}]{1,2040}")
_BEHIND: Final = ".,;:!?*_)]}'\""
"""Characters that often follow a URL in a text and are no part of it."""


def combines(request: CreateResponse) -> bool:
    """Return True if the request offers the browser together with tools that may reveal secrets."""
    kinds = {type(tool) for tool in request.tools}
    return WebSearchTool in kinds and bool(kinds & {CodeInterpreterTool, McpServerTool})


def urls_of(instructions: str | None, items: Iterable[object]) -> tuple[str, ...]:
    """Return the URLs in the instructions and in messages of user and operator, each once."""
    found: dict[str, None] = {}
    for text in _texts(instructions, items):
        for match in _URL.finditer(text):
            whole = match.group()
            # With brackets or without: only the reader could tell.
            found |= dict.fromkeys((whole, whole.rstrip(_BEHIND)))
    return tuple(found)[-URLS_MAX:]


def _texts(instructions: str | None, items: Iterable[object]) -> Iterator[str]:
    yield instructions or ""
    for item in items:
        if isinstance(item, Message) and item.role in ASKING:
            for part in item.content:
                if part.type == "input_text":
                    yield part.text
