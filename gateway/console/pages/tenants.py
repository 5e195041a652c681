from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from gateway.admin.keys import AdminKeyCreate, ShownKey, admin_key_body
from gateway.admin.limits import LimitOwner
from gateway.admin.projects import ProjectCreate, project_body
from gateway.admin.tenants import HoldUpdate, detail_body, tenant_body
from gateway.console.page import Act, Page, Rendered
from gateway.console.spending import budgets_of, limits_of, set_budget, set_limits
from gateway.errors import InvalidRequest
from gateway.protocol.pages import PageParams
from gateway.protocol.request_errors import validated
from gateway.tenancy.policy import POLICY_VALUES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.admin.tenants import TenantDetail
    from gateway.console.page import Call
    from gateway.console.snippets import Snippet
    from gateway.protocol.admin_bodies import Json
    from gateway.tenancy import Tenant, TenantId

PATH: Final = "/tenants"
ONE: Final = f"{PATH}/{{name}}"
ROWS: Final = 50
PROJECTS_SHOWN_MAX: Final = 100
KEYS_SHOWN_MAX: Final = 100


async def list_tenants(call: Call) -> Json:
    begins, after = call.query.get("q", "").strip(), call.query.get("after", "")
    tenants = await call.services.operator.tenants.list()
    matches = [one for one in tenants if one.name.startswith(begins) and one.name > after]
    rows = [_listed(one) for one in matches[:ROWS]]
    older = ""
    if len(matches) > ROWS:
        older = f"?{urlencode({'q': begins, 'after': rows[-1]['name']})}"
    is_owner = await call.services.ownership.is_owner()
    return {"rows": rows, "begins": begins, "older": older, "is_owner": is_owner}


def _listed(tenant: Tenant) -> Json:
    return {**tenant_body(tenant), "state": _state(tenant)}


def _state(tenant: Tenant) -> str:
    for state in ("deleted", "disabled", "held"):
        if getattr(tenant, f"{state}_at") is not None:
            return state
    return "active"


async def view_tenant(call: Call) -> Json:
    detail = await call.services.operator.tenants.get(call.path["name"])
    services, tenant_id = call.services.tenant, detail.tenant.id
    projects = await services.projects.list(
        tenant_id,
        PageParams(PROJECTS_SHOWN_MAX, after=call.query.get("after")),
        include_archived=True,
    )
    shown = list(map(project_body, projects.rows))
    keys = await services.keys.list(tenant_id, None, PageParams(KEYS_SHOWN_MAX, order="desc"))
    figures = await call.services.operator.limit_states.of(LimitOwner.of_tenant(tenant_id))
    return {
        "tenant": detail_body(detail),
        "state": _state(detail.tenant),
        "projects": shown,
        "older": f"?{urlencode({'after': shown[-1]['id']})}" if projects.has_more else "",
        "keys": list(map(admin_key_body, keys.rows)),
        "has_more_keys": keys.has_more,
        "limits": limits_of(figures),
        "budgets": budgets_of(figures),
        "policy": _policy(detail),
        "is_owner": await call.services.ownership.is_owner(),
    }


def _policy(detail: TenantDetail) -> list[Json]:
    own, effective = dict(detail.own), detail.policy.shown()
    rows = [
        {
            "name": name,
            "value": effective[name],
            "is_own": name in own,
            "description": value.purpose or value.option_help,
        }
        for name, value in POLICY_VALUES.items()
    ]
    return sorted(rows, key=lambda row: not row["is_own"])


def path_of(name: str, rest: str = "") -> str:
    return f"{PATH}/{quote(name, safe='')}{rest}"


async def create(call: Call) -> str:
    tenant = await call.services.operator.tenants.create(call.author, call.form.get("name", ""))
    return path_of(tenant.name)


async def create_project(call: Call) -> str:
    tenant_id = await serving_tenant_id(call)
    body = validated(ProjectCreate, {"name": call.form.get("name", "")})
    made = await call.services.tenant.projects.create(call.caller(tenant_id), body)
    return path_of(call.path["name"], f"/projects/{project_body(made)['id']}")


async def create_key(call: Call) -> Rendered:
    tenant_id = await serving_tenant_id(call)
    body = validated(AdminKeyCreate, {"name": call.form.get("name", "")})
    made = await call.services.tenant.keys.create_admin(call.caller(tenant_id), body)
    return new_key(call, "New admin key", made)


def new_key(
    call: Call,
    title: str,
    made: ShownKey,
    project: Json | None = None,
    snippets: Sequence[Snippet] = (),
) -> Rendered:
    """Return the page of a key that is shown once; without a `project` an admin key."""
    view = {"tenant": call.path["name"], "made": made, "project": project, "snippets": snippets}
    return Rendered("new_key.html", title, view)


async def end_key(call: Call) -> str:
    caller = call.caller(await tenant_id_of(call))
    await call.services.tenant.keys.end(caller, None, call.path["key_id"])
    return path_of(call.path["name"])


async def change_limits(call: Call) -> str:
    await set_limits(call, await _owner(call))
    return path_of(call.path["name"])


async def change_budget(call: Call) -> str:
    await set_budget(call, await _owner(call))
    return path_of(call.path["name"])


async def _owner(call: Call) -> LimitOwner:
    tenant_id = await tenant_id_of(call)
    return LimitOwner(tenant_id, "tenant", tenant_id, call.author)


async def change_policy(call: Call) -> str:
    """Set one value; an empty one restores that of the settings."""
    name, text = call.form.get("value_name", ""), call.form.get("value", "")
    if name not in POLICY_VALUES:
        raise InvalidRequest("There is no such value of a policy.", param="value_name")
    value: str | int | None = text or None
    if text and POLICY_VALUES[name].column_type != "text":
        if not text.isdecimal() or not text.isascii():
            raise InvalidRequest(f"'{name}' is a number.", param="value")
        value = int(text[:20])
    await call.services.operator.tenants.set_policy(call.author, call.path["name"], {name: value})
    return path_of(call.path["name"])


async def disable(call: Call) -> str:
    await call.services.operator.tenants.disable(call.author, call.confirmed("name"))
    return path_of(call.path["name"])


async def hold(call: Call) -> str:
    body = HoldUpdate(held=call.form.get("held") == "true")
    await call.services.operator.tenants.hold(call.author, call.path["name"], body)
    return path_of(call.path["name"])


async def delete(call: Call) -> str:
    await call.services.operator.tenants.delete(call.author, call.confirmed("name"))
    return path_of(call.path["name"])


async def restore(call: Call) -> str:
    await call.services.operator.tenants.restore(call.author, call.path["name"])
    return path_of(call.path["name"])


async def tenant_id_of(call: Call) -> TenantId:
    return (await call.services.operator.tenants.get(call.path["name"])).tenant.id


async def serving_tenant_id(call: Call) -> TenantId:
    """Raise `InvalidRequest` if no key of the tenant works any more."""
    tenant = (await call.services.operator.tenants.get(call.path["name"])).tenant
    if tenant.disabled_at is not None or tenant.deleted_at is not None:
        raise InvalidRequest(f"Tenant {tenant.name!r} is {_state(tenant)}: no key of it works.")
    return tenant.id


LIST: Final = Page(
    path=PATH,
    title="Tenants",
    template="tenants.html",
    permission="tenants.read",
    view=list_tenants,
    acts=(Act(f"{PATH}/create", "tenants.write", create),),
    fragments=frozenset({"rows"}),
    icon="tenants",
    shortcut="t",
)
TENANT: Final = Page(
    path=ONE,
    title="Tenant",
    template="tenant.html",
    permission="tenants.read",
    view=view_tenant,
    fragments=frozenset({"rows"}),
    acts=(
        Act(f"{ONE}/projects/create", "tenants.write", create_project),
        Act(f"{ONE}/keys/create", "tenants.write", create_key),
        Act(f"{ONE}/keys/{{key_id}}/end", "tenants.write", end_key),
        Act(f"{ONE}/limits", "tenants.write", change_limits),
        Act(f"{ONE}/budget", "tenants.write", change_budget),
        Act(f"{ONE}/policy", "tenants.write", change_policy),
        Act(f"{ONE}/disable", "tenants.write", disable),
        Act(f"{ONE}/hold", "tenants.delete", hold),
        Act(f"{ONE}/delete", "tenants.delete", delete),
        Act(f"{ONE}/restore", "tenants.delete", restore),
    ),
)
