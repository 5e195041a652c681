from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import orjson
from starlette.datastructures import QueryParams

from gateway.admin.audit_log import audit_query
from gateway.admin.transactions import owned
from gateway.audit import OPENAI_TYPES, OWN_TYPES
from gateway.console.page import Act, Page, Rendered
from gateway.store.schema import EVERYONE

if TYPE_CHECKING:
    from gateway.console.page import Call
    from gateway.protocol.admin_bodies import Json

PATH: Final = "/audit"
ROWS: Final = 50


async def view(call: Call) -> Json:
    tenant, type_ = (call.query.get(name, "").strip() for name in ("tenant", "type"))
    params = {"limit": str(ROWS), "event_types": type_, "after": call.query.get("after", "")}
    query = audit_query(QueryParams({name: value for name, value in params.items() if value}))
    page = await call.services.operator.audit.list_entries(
        await _chain(call, tenant), query, names_operators=True
    )
    older = ""
    if page["has_more"]:
        older = f"?{urlencode({'tenant': tenant, 'type': type_, 'after': page['last_id']})}"
    return {
        "entries": [_entry(one) for one in page["data"]],
        "tenant": tenant,
        "type": type_,
        "types": sorted(OPENAI_TYPES | OWN_TYPES),
        "older": older,
    }


async def _chain(call: Call, tenant: str) -> Any:
    if not tenant:
        return None
    return (await call.services.operator.tenants.get(tenant)).tenant.id


def _entry(body: Json) -> Json:
    details = body.get(body["type"], {})
    actor, address = _actor(body)
    return {
        "at": body["effective_at"],
        "type": body["type"],
        "actor": actor,
        "target": str(details.get("id", "")),
        "address": address,
        "details": orjson.dumps(details, option=orjson.OPT_INDENT_2).decode(),
    }


def _actor(body: Json) -> tuple[str, str]:
    # Operators stand beside the object that OpenAI's audit log has.
    operator = body.get("harmony")
    if operator is not None:
        return str(operator["operator"]), operator["address"] or ""
    actor = body["actor"]
    if actor["type"] == "session":
        user = actor["session"]["user"]
        return str(user["email"] or user["id"]), actor["session"]["ip_address"] or ""
    return str(actor["api_key"]["id"]), ""


async def verify(call: Call) -> Rendered:
    """Raise `PermissionDenied` where this process may not read all of the chain."""
    tenant = call.form.get("tenant", "")
    chain = await _chain(call, tenant)
    with owned("Run 'harmony-gateway audit verify' with the owner's URL."):
        states = await call.services.operator.audit.verify(chain or EVERYONE)
    return Rendered("verified.html", "Audit log", {"tenant": tenant, "state": states[0]})


PAGE: Final = Page(
    path=PATH,
    title="Audit",
    template="audit.html",
    permission="operator_audit_log.read",
    view=view,
    acts=(Act(f"{PATH}/verify", "operator_audit_log.read", verify),),
    fragments=frozenset({"rows"}),
    icon="audit",
    shortcut="a",
)
