"""Check items of hosted tools, so that they are valid where they are listed: the members that
OpenAI's types require, and objects where these have objects.

Only new items are checked. Those that were stored before a check was made stay readable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.protocol.items import (
    AdditionalTools,
    McpListTools,
    ToolSearchCall,
    ToolSearchOutput,
    WebSearchCall,
)
from gateway.protocol.request_errors import missing, wrong_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.protocol.items import AnyHostedItem

_WITH_STATUS: Final = frozenset(
    {
        *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
        *("computer_call", "computer_call_output", "tool_search_call", "tool_search_output"),
        "program_output",
    }
)
"""Items that have a status in OpenAI's types, whatever became of them."""


def check_hosted(path: str, item: AnyHostedItem | ToolSearchOutput) -> None:
    """Raise `InvalidRequest` for missing members of the item at `path`, and for wrong types."""
    match item:
        case McpListTools():
            if item.server_label is None:
                raise missing(f"{path}.server_label")
            if item.tools is None:
                raise missing(f"{path}.tools")
        case ToolSearchOutput() | AdditionalTools():
            if item.tools is None:
                raise missing(f"{path}.tools")
            _check_objects(f"{path}.tools", item.tools)
        case WebSearchCall(action=dict(action)) if action.get("sources") is not None:
            _check_objects(f"{path}.action.sources", action["sources"])
        case _:
            pass


def _check_objects(path: str, members: object) -> None:
    if not isinstance(members, list):
        raise wrong_type(path, "an array of objects", members)
    for index, member in enumerate(members):
        if not isinstance(member, dict):
            raise wrong_type(f"{path}[{index}]", "an object", member)


def implied_members(
    item: AnyHostedItem | ToolSearchCall | ToolSearchOutput,
) -> Mapping[str, str]:
    """Return the members that an item is listed with although it lacks them.

    An item without a status is complete; a tool search without a call id was run by the server.
    """
    implied = {"status": "completed"} if item.status is None and item.type in _WITH_STATUS else {}
    match item:
        case ToolSearchCall(execution=None) | ToolSearchOutput(execution=None):
            implied["execution"] = "server" if item.call_id is None else "client"
        case AdditionalTools():
            implied["role"] = item.role
        case _:
            pass
    return implied
