"""Stored responses of all tenants: a list with filters in its address, without what they say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from gateway.admin.inspection import STATUSES, search
from gateway.console.page import Page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.console.page import Call
    from gateway.protocol.admin_bodies import Json

PATH: Final = "/responses"
ROWS: Final = 50
_FILTERS: Final = {
    "id": "Response",
    "tenant": "Tenant",
    "project_id": "Project",
    "api_key_id": "Key",
    "conversation_id": "Conversation",
    "model": "Model",
    "status": "Status",
}
"""Parameters of the address, and what they are called on the page."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter that the list has; `without` is the address of the list that lacks it."""

    label: str
    value: str
    without: str


@dataclass(frozen=True, slots=True)
class ResponseList:
    """Rows as the admin API has them. `older`: the address of the rest; empty: there is none."""

    rows: Sequence[Json]
    filters: Sequence[Filter]
    chosen: dict[str, str]
    statuses: Sequence[str]
    older: str


async def view(call: Call) -> ResponseList:
    """Read a page of the list. Raises `InvalidRequest` for a malformed filter."""
    chosen = {name: value for name in _FILTERS if (value := call.query.get(name, "").strip())}
    place = {"after": after} if (after := call.query.get("after")) else {}
    query = QueryParams({**chosen, **place, "limit": str(ROWS)})
    page = await search(call.services.operator.database, query)
    older = _address({**chosen, "after": page["last_id"]}) if page["has_more"] else ""
    filters = [
        Filter(_FILTERS[name], value, _address({**chosen, name: ""}))
        for name, value in chosen.items()
    ]
    return ResponseList(page["data"], filters, chosen, STATUSES, older)


def _address(parameters: dict[str, str]) -> str:
    return f"?{urlencode({name: value for name, value in parameters.items() if value})}"


PAGE: Final = Page(
    path=PATH,
    title="Responses",
    template="responses.html",
    permission="responses.read",
    view=view,
    fragments=frozenset({"rows"}),
    icon="responses",
    shortcut="r",
)
