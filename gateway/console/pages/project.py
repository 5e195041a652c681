from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.admin.keys import AccountKeyCreate, KeyRotate, project_key_body
from gateway.admin.projects import ProjectUpdate, project_body
from gateway.console.page import Act, Page
from gateway.console.pages.tenants import ONE as TENANT
from gateway.console.pages.tenants import new_key, path_of, serving_tenant_id, tenant_id_of
from gateway.console.snippets import snippets
from gateway.console.spending import budgets_of, limits_of, set_budget, set_limits
from gateway.errors import InvalidRequest
from gateway.protocol.pages import PageParams
from gateway.protocol.request_errors import validated
from gateway.tenancy.permissions import SCOPES
from gateway.tenancy.policy import DAY_S

if TYPE_CHECKING:
    from gateway.admin.keys import ShownKey
    from gateway.admin.limits import LimitOwner
    from gateway.console.page import Call, Rendered
    from gateway.protocol.admin_bodies import Json
    from gateway.tenancy import TenantId

PATH: Final = f"{TENANT}/projects/{{project_id}}"
KEYS_SHOWN_MAX: Final = 100
LIFETIMES_D: Final = (7, 30, 90, 365)
"""Offered for a key."""


async def view(call: Call) -> Json:
    tenant_id = await tenant_id_of(call)
    services, project_id = call.services.tenant, call.path["project_id"]
    project = await services.projects.get(tenant_id, project_id)
    owner = await services.limits.of_project(tenant_id, project_id)
    figures = await call.services.operator.limit_states.of(owner)
    page = PageParams(KEYS_SHOWN_MAX, order="desc")
    keys = await services.keys.list(tenant_id, project_id, page)
    return {
        "tenant": call.path["name"],
        "project": project_body(project),
        "keys": list(map(project_key_body, keys.rows)),
        "has_more_keys": keys.has_more,
        "limits": limits_of(figures),
        "budgets": budgets_of(figures),
        "scopes": list(SCOPES),
        "lifetimes_d": LIFETIMES_D,
    }


async def create_key(call: Call) -> Rendered:
    tenant_id, project_id = await serving_tenant_id(call), call.path["project_id"]
    days, scope = call.form.get("days", ""), call.form.get("scope", "")
    if days and days not in map(str, LIFETIMES_D):
        raise InvalidRequest("'days' is none of the lifetimes that the form has.", param="days")
    name = call.form.get("name", "")
    body = validated(
        AccountKeyCreate,
        {
            "name": name,
            "scopes": [scope] if scope else [],
            "expires_in_seconds": int(days) * DAY_S if days else None,
        },
    )
    _, made = await call.services.tenant.keys.create_account(
        call.caller(tenant_id), project_id, name, body
    )
    assert made is not None, "a key was asked for"
    return await _shown_once(call, tenant_id, made)


async def rotate_key(call: Call) -> Rendered:
    """Replace a key; the old one works for a day more."""
    tenant_id, project_id = await serving_tenant_id(call), call.path["project_id"]
    made = await call.services.tenant.keys.rotate(
        call.caller(tenant_id), project_id, call.path["key_id"], KeyRotate()
    )
    return await _shown_once(call, tenant_id, made)


async def _shown_once(call: Call, tenant_id: TenantId, made: ShownKey) -> Rendered:
    project = await call.services.tenant.projects.get(tenant_id, call.path["project_id"])
    clients = snippets(call.api_url, made.secret or "", call.default_model)
    return new_key(call, "New key", made, project_body(project), clients)


async def end_key(call: Call) -> str:
    caller = call.caller(await tenant_id_of(call))
    await call.services.tenant.keys.end(caller, call.path["project_id"], call.path["key_id"])
    return _here(call)


async def change_limits(call: Call) -> str:
    await set_limits(call, await _owner(call))
    return _here(call)


async def change_budget(call: Call) -> str:
    await set_budget(call, await _owner(call))
    return _here(call)


async def rename(call: Call) -> str:
    caller = call.caller(await tenant_id_of(call))
    body = validated(ProjectUpdate, {"name": call.form.get("name", "")})
    await call.services.tenant.projects.rename(caller, call.path["project_id"], body)
    return _here(call)


async def archive(call: Call) -> str:
    project_id = call.confirmed("project_id")
    caller = call.caller(await tenant_id_of(call))
    await call.services.tenant.projects.archive(caller, project_id)
    return _here(call)


async def _owner(call: Call) -> LimitOwner:
    return await call.services.tenant.limits.of_project(
        await tenant_id_of(call), call.path["project_id"], is_active=True, author=call.author
    )


def _here(call: Call) -> str:
    return path_of(call.path["name"], f"/projects/{call.path['project_id']}")


PAGE: Final = Page(
    path=PATH,
    title="Project",
    template="project.html",
    permission="tenants.read",
    view=view,
    acts=(
        Act(f"{PATH}/keys/create", "tenants.write", create_key),
        Act(f"{PATH}/keys/{{key_id}}/rotate", "tenants.write", rotate_key),
        Act(f"{PATH}/keys/{{key_id}}/end", "tenants.write", end_key),
        Act(f"{PATH}/limits", "tenants.write", change_limits),
        Act(f"{PATH}/budget", "tenants.write", change_budget),
        Act(f"{PATH}/rename", "tenants.write", rename),
        Act(f"{PATH}/archive", "tenants.write", archive),
    ),
)
