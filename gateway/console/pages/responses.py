"""Stored responses of all tenants; filters are in the address."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from gateway import ids
from gateway.admin.responses import STATUSES, search
from gateway.console.page import Act, Page, Rendered
from gateway.errors import InvalidRequest, RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.console.page import Call
    from gateway.protocol.admin_bodies import Json

PATH: Final = "/responses"
ROWS: Final = 50
CHOSEN_MAX: Final = 100
"""Cancelled at once."""
SINCE: Final = "since"
"""Parameter of rows that are newer than a response."""
_FILTERS: Final = {
    "id": "Response",
    "tenant": "Tenant",
    "project_id": "Project",
    "api_key_id": "Key",
    "conversation_id": "Conversation",
    "model": "Model",
    "status": "Status",
    "from": "From",
    "until": "Until",
}
"""Parameters and their labels."""
_TIMES: Final = {"from": "created_at[gte]", "until": "created_at[lt]"}
"""In UTC; what the admin API calls them."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Filter in use; `without` is the list's address without it."""

    label: str
    value: str
    without: str


@dataclass(frozen=True, slots=True)
class ResponseList:
    """Rows, and addresses: `here` of the list, `older` of the rest, `news` of newer rows."""

    here: str
    news: str
    rows: Sequence[Json]
    filters: Sequence[Filter]
    chosen: dict[str, str]
    statuses: Sequence[str]
    older: str


class Outcome(NamedTuple):
    """Outcome of a cancellation; without a `refusal` it worked."""

    id: str
    refusal: str


async def view(call: Call) -> ResponseList:
    chosen = {name: value for name in _FILTERS if (value := call.query.get(name, "").strip())}
    place = {"after": after} if (after := call.query.get("after")) else {}
    if since := call.query.get(SINCE):
        place["before"] = since
    query = QueryParams({**_parameters(chosen), **place, "limit": str(ROWS)})
    page = await search(call.services.operator.database, query)
    older = _address({**chosen, "after": page["last_id"]}) if page["has_more"] else ""
    newest = page["first_id"] or ids.response_id(ids.new_uuid())
    filters = [
        Filter(_FILTERS[name], value, _address({**chosen, name: ""}))
        for name, value in chosen.items()
    ]
    return ResponseList(
        here=_address(chosen),
        news="" if after or "until" in chosen else _address({**chosen, SINCE: since or newest}),
        rows=page["data"],
        filters=filters,
        chosen=chosen,
        statuses=STATUSES,
        older=older,
    )


def _parameters(chosen: Mapping[str, str]) -> dict[str, str]:
    parameters = dict(chosen)
    for name, parameter in _TIMES.items():
        if name in chosen:
            try:
                at = datetime.fromisoformat(parameters.pop(name))
            except ValueError:
                raise InvalidRequest(
                    f"'{name}' is no time. Write one as 2026-11-30T09:00, in UTC.", param=name
                ) from None
            parameters[parameter] = str(int(at.replace(tzinfo=at.tzinfo or UTC).timestamp()))
    return parameters


async def cancel(call: Call) -> Rendered:
    chosen = [name for name, value in call.form.items() if value == "chosen"]
    if not 0 < len(chosen) <= CHOSEN_MAX:
        raise InvalidRequest(f"Choose responses to cancel, {CHOSEN_MAX} at most.")
    outcomes = []
    for response_id in chosen:
        try:
            await call.services.operator.responses.cancel(call.author, response_id)
            outcomes.append(Outcome(response_id, ""))
        except RequestError as refusal:
            outcomes.append(Outcome(response_id, refusal.message))
    return Rendered("cancelled.html", "Cancelled", outcomes)


def _address(parameters: dict[str, str]) -> str:
    return f"?{urlencode({name: value for name, value in parameters.items() if value})}"


PAGE: Final = Page(
    path=PATH,
    title="Responses",
    template="responses.html",
    permission="responses.read",
    view=view,
    acts=(Act(f"{PATH}/cancel", "responses.cancel", cancel),),
    fragments=frozenset({"rows", "news"}),
    icon="responses",
    shortcut="r",
)
