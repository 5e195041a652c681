"""The hosted tools that are known by name, as functions: how a model that was not trained with them
is told of them.

They are called with what rules know (`protocol.responses.hosted_rules`); Python with its code as
`code`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.generation import BROWSER_TOOLS, PYTHON_TOOL
from gateway.models.chat.callee import offered_name

if TYPE_CHECKING:
    from gateway.models.format import Builtins

_SEARCH, _OPEN, _FIND = map(offered_name, BROWSER_TOOLS)
_CITE: Final = (
    "Cite what you found as 【cursor†L1-L2】: the number in front of a page, and its lines."
)
_PYTHON: Final = (
    "Run Python code in a notebook that keeps its state between calls. What the code prints, and "
    "the value of its last line, is returned."
)


def _function(
    name: str, about: str, *required: str, **properties: tuple[str, str]
) -> dict[str, Any]:
    return {
        "name": name,
        "description": about,
        "parameters": {
            "type": "object",
            "properties": {
                key: {"type": kind, "description": told} for key, (kind, told) in properties.items()
            },
            "required": list(required),
            "additionalProperties": False,
        },
    }


_BROWSER: Final = (
    _function(
        _SEARCH,
        f"Search the web. Each result has a number, by which {_OPEN} opens it. {_CITE}",
        "query",
        query=("string", "What to search for."),
        topn=("integer", "How many results at most."),
    ),
    _function(
        _OPEN,
        "Open a page: a result or a link of a page by its number, or a URL. Without an `id` the "
        "page is the last one, at another place. Its lines are numbered.",
        id=("string", "The number of a link, or a URL."),
        cursor=("integer", "The number of the page that has the link."),
        loc=("integer", "The line to begin with."),
        num_lines=("integer", "How many lines to show."),
    ),
    _function(
        _FIND,
        "Find a text in a page that was opened.",
        "pattern",
        pattern=("string", "The text."),
        cursor=("integer", "The number of the page; by default the last one."),
    ),
)


def declarations(builtins: Builtins) -> list[dict[str, Any]]:
    """Return the functions that stand for these tools."""
    told = list(_BROWSER) if builtins.browser else []
    if builtins.python:
        about = builtins.python_description or _PYTHON
        code = ("string", "The code.")
        told.append(_function(offered_name(PYTHON_TOOL), about, "code", code=code))
    return told
