"""The names of tools, as a model of a chat format knows them.

To such a model every tool is a function, also those that the gateway runs itself: what rules know
as `builtin:browser.search` it knows as `browser.search`, unless the client has a function of that
name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.generation import BUILTIN_PREFIX
from gateway.models.chat.recovery import Rule
from gateway.models.chat.syntax.contract import QUOTES

if TYPE_CHECKING:
    from collections.abc import Collection

NAMESPACE: Final = "functions."
"""What models that have read much of OpenAI's put before the name of a function."""


def offered_name(tool: str) -> str:
    """The name of a function that stands for a tool of rules."""
    return tool.removeprefix(BUILTIN_PREFIX)


def called_tool(written: str, tools: Collection[str]) -> tuple[str, tuple[Rule, ...]]:
    """Which of these tools a written name means, and by which rules; an unknown one is itself."""
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
