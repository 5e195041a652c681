"""Stored responses of all tenants, of one conversation, and the search box."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from gateway import ids
from gateway.admin.responses import STATUSES, search
from gateway.console.page import Act, Page, Rendered
from gateway.errors import InvalidRequest, RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
_ID_FILTERS: Final = {"project_id": ids.parse_project_id, "api_key_id": ids.parse_api_key_id}
_TIMES: Final = {"from": "created_at[gte]", "until": "created_at[lt]"}
"""In UTC; what the admin API calls them."""


async def view(call: Call) -> Json:
    chosen = {name: value for name in _FILTERS if (value := call.query.get(name, "").strip())}
    place = {"after": after} if (after := call.query.get("after")) else {}
    if since := call.query.get(SINCE):
        place["before"] = since
    query = QueryParams({**_parameters(chosen), **place, "limit": str(ROWS)})
    page = await search(call.services.operator.database, query)
    older = _address({**chosen, "after": page["last_id"]}) if page["has_more"] else ""
    newest = page["first_id"] or ids.response_id(ids.new_uuid())
    filters = [
        {"label": _FILTERS[name], "value": value, "without": _address({**chosen, name: ""})}
        for name, value in chosen.items()
    ]
    return {
        "here": _address(chosen),
        "news": "" if after or "until" in chosen else _address({**chosen, SINCE: since or newest}),
        "rows": page["data"],
        "filters": filters,
        "chosen": chosen,
        "statuses": STATUSES,
        "older": older,
    }


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
        refusal = ""
        try:
            await call.services.operator.responses.cancel(call.author, response_id)
        except RequestError as error:
            refusal = error.message
        outcomes.append({"id": response_id, "refusal": refusal})
    return Rendered("cancelled.html", "Cancelled", outcomes)


async def view_conversation(call: Call) -> Json:
    """Show its turns, the oldest first."""
    conversation_id = call.path["conversation_id"]
    after = call.query.get("after") or None
    page = await call.services.operator.responses.conversation(conversation_id, after=after)
    newer = page["last_id"] if page["has_more"] else None
    return {"id": conversation_id, "turns": page["data"], "newer": newer}


async def find_page(call: Call) -> str:
    """Return the path of what has this id; any other text is the name of a tenant."""
    text = call.query.get("q", "").strip()
    if ids.parse_response_id(text) is not None:
        return f"{PATH}/{text}"
    if ids.parse_conversation_id(text) is not None:
        return f"/conversations/{text}"
    for name, parse in _ID_FILTERS.items():
        if parse(text) is not None:
            return PATH + _address({name: text})
    return PATH + _address({"tenant": text}) if text else PATH


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
CONVERSATION: Final = Page(
    path="/conversations/{conversation_id}",
    title="Conversation",
    template="conversation.html",
    permission="responses.read",
    view=view_conversation,
)
SEARCH: Final = Page(path="/search", permission="responses.read", view=find_page)
