from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from starlette.datastructures import QueryParams

from gateway.admin.keys import project_key_body
from gateway.admin.projects import project_body
from gateway.admin.responses import search
from gateway.console.page import Page
from gateway.console.snippets import snippets
from gateway.errors import InvalidRequest
from gateway.protocol.pages import PageParams
from gateway.settings.http_urls import whole_url

if TYPE_CHECKING:
    from gateway.console.page import Call
    from gateway.protocol.admin_bodies import Json

PATH: Final = "/connect"
CHOICES_MAX: Final = 100
PLACEHOLDER: Final = "YOUR_KEY"


async def view(call: Call) -> Json:
    query, models = call.query, list(call.services.models())
    base_url = _url(query.get("base") or call.api_url)
    model = query.get("model", "")
    if model not in models:
        model = call.default_model
    tenants = [one.name for one in await call.services.operator.tenants.list()]
    tenant = query.get("tenant") or (tenants[0] if tenants else "")
    projects, project, keys = await _choices(call, tenant, query.get("project", ""))
    key = next((one for one in keys if one["id"] == query.get("key")), None)
    chosen = {"base": base_url, "model": model, "tenant": tenant, "project": project}
    key_id = "" if key is None else key["id"]
    response = await _newest_response(call, key_id)
    last_used_at = None if key is None else key["last_used_at"]
    return {
        "base_url": base_url,
        "model": model,
        "models": models,
        "tenants": tenants,
        "tenant": tenant,
        "projects": projects,
        "project": project,
        "keys": keys,
        "key": key_id,
        "response": response,
        "last_used_at": last_used_at,
        "is_connected": response is not None or last_used_at is not None,
        "snippets": snippets(base_url, PLACEHOLDER, model),
        "again": f"{PATH}?{urlencode({**chosen, 'key': key_id})}",
        "keys_page": f"/tenants/{quote(tenant, safe='')}/projects/{project}" if project else "",
    }


async def _choices(call: Call, tenant: str, project: str) -> tuple[list[Json], str, list[Json]]:
    # The chosen project is the first where there is no such one.
    if not tenant:
        return [], "", []
    services = call.services.tenant
    tenant_id = (await call.services.operator.tenants.get(tenant)).tenant.id
    page = await services.projects.list(tenant_id, PageParams(CHOICES_MAX))
    projects = list(map(project_body, page.rows))
    own = [one["id"] for one in projects]
    chosen = project if project in own else next(iter(own), "")
    if not chosen:
        return projects, "", []
    keys = await services.keys.list(tenant_id, chosen, PageParams(CHOICES_MAX, order="desc"))
    return projects, chosen, list(map(project_key_body, keys.rows))


async def _newest_response(call: Call, key_id: str) -> Any:
    # Stored responses of a key appear at once; its last use is written once a minute.
    if not key_id or not call.may("responses.read"):
        return None
    query = QueryParams({"api_key_id": key_id, "limit": "1"})
    page = await search(call.services.operator.database, query)
    return next(iter(page["data"]), None)


def _url(text: str) -> str:
    try:
        return whole_url(text).rstrip("/")
    except ValueError as error:
        raise InvalidRequest(f"This is no address for clients: {error}.", param="base") from None


PAGE: Final = Page(
    path=PATH,
    title="Connect",
    template="connect.html",
    permission="tenants.read",
    view=view,
    fragments=frozenset({"seen"}),
    icon="connect",
    shortcut="c",
)
