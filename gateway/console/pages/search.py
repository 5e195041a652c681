"""The search box: an id of any kind leads to its page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from gateway import ids
from gateway.console.page import Page

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from gateway.console.page import Call

_LISTED: Final[dict[str, Callable[[str], UUID | None]]] = {
    "project_id": ids.parse_project_id,
    "api_key_id": ids.parse_api_key_id,
}
"""Filters of the list of responses."""


async def view(call: Call) -> str:
    text = call.query.get("q", "").strip()
    if ids.parse_response_id(text) is not None:
        return f"/responses/{text}"
    if ids.parse_conversation_id(text) is not None:
        return f"/conversations/{text}"
    for name, parse in _LISTED.items():
        if parse(text) is not None:
            return f"/responses?{urlencode({name: text})}"
    return f"/responses?{urlencode({'tenant': text})}" if text else "/responses"


PAGE: Final = Page(
    path="/search",
    permission="responses.read",
    view=view,
)
