"""Whatever changes something writes what it did into the audit log: taken from the router."""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway.admin import roles
from gateway.admin.operator_keys import OperatorCreate, Operators
from gateway.admin.prices import PriceCreate, Prices
from gateway.admin.resources import admin_routes, operator_routes
from gateway.audit import COMMAND_LINE
from gateway.store import audit_log
from gateway.tenancy.permissions import OPERATOR_ROLES
from gateway.wiring.admin import admin_services, operator_services
from tests.fakes.gateway import new_key
from tests.fakes.http_client import http_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    import httpx2

    from gateway.admin.resources import AdminServices
    from gateway.admin.routes import AdminRoute
    from gateway.audit import AuditEntry
    from gateway.settings import Settings
    from gateway.tenancy.permissions import OperatorRole
    from tests.integration.api.admin.conftest import AdminSite

MODEL = "gpt-oss-20b"
PARAMETER = re.compile(r"\{(\w+)\}")
ALERT = {
    "threshold_amount": 100,
    "interval": "month",
    "currency": "USD",
    "notification_channel": {"type": "email", "recipients": ["a@example.com"]},
}
LIMIT = {"threshold_amount": 100, "interval": "month", "currency": "USD"}
PROJECT = "/organization/projects/{project_id}"
PROVIDERS = "/organization/workload_identity_providers"
PROVIDER = f"{PROVIDERS}/{{workload_identity_provider_id}}"
RULES = f"{PROVIDER}/federation_rules"
RULE = f"{RULES}/{{workload_identity_federation_rule_id}}"
ISSUER = {
    "name": "sso",
    "type": "oidc",
    "issuer": "https://x.example",
    "audience": "gateway",
    "harmony": {"bearer": True},
}
SHARED = {
    "name": "sso",
    "issuer": "https://y.example",
    "audience": "gateway",
    "tenants": ["*"],
    "attribute_transformations": [{"attribute": "harmony.tenant", "expression": "assertion.org"}],
}
TRUSTED = {
    "attribute_matchers": {"sub": "ci"},
    "project_id": "{project_id}",
    "service_account_id": "{service_account_id}",
}
ORDERED: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/organization/projects", {"name": "one"}),
    ("POST", PROJECT, {"name": "two"}),
    ("POST", f"{PROJECT}/model_permissions", {"mode": "allow_list", "model_ids": [MODEL]}),
    ("DELETE", f"{PROJECT}/model_permissions", {}),
    ("POST", f"{PROJECT}/hosted_tool_permissions", {"mcp": {"enabled": False}}),
    ("POST", f"{PROJECT}/service_tier_settings", {"enabled_tiers": ["flex"]}),
    ("POST", f"{PROJECT}/service_accounts", {"name": "ci"}),
    ("POST", f"{PROJECT}/service_accounts/{{service_account_id}}", {"name": "cd"}),
    ("POST", f"{PROJECT}/service_accounts/{{service_account_id}}/api_keys", {}),
    ("POST", f"{PROJECT}/api_keys/{{api_key_id}}", {"scopes": ["api.all"]}),
    ("POST", f"{PROJECT}/api_keys/{{api_key_id}}/rotate", {}),
    ("DELETE", f"{PROJECT}/api_keys/{{api_key_id}}", {}),
    ("POST", PROVIDERS, ISSUER),
    ("POST", PROVIDER, {"name": "single sign-on"}),
    ("POST", RULES, TRUSTED),
    ("POST", RULE, {"name": "ci"}),
    ("DELETE", RULE, {}),
    ("DELETE", PROVIDER, {}),
    ("POST", PROVIDERS, ISSUER),
    ("DELETE", f"{PROJECT}/service_accounts/{{service_account_id}}", {}),
    ("POST", f"{PROJECT}/rate_limits/{{id}}", {"max_requests_per_1_minute": 9}),
    ("POST", f"{PROJECT}/spend_limit", LIMIT),
    ("DELETE", f"{PROJECT}/spend_limit", {}),
    ("POST", f"{PROJECT}/spend_alerts", ALERT),
    ("POST", f"{PROJECT}/spend_alerts/{{alert_id}}", {**ALERT, "threshold_amount": 200}),
    ("DELETE", f"{PROJECT}/spend_alerts/{{alert_id}}", {}),
    ("POST", f"{PROJECT}/data_retention", {"retention_type": "organization_default"}),
    ("POST", f"{PROJECT}/archive", {}),
    ("POST", "/organization/data_retention", {"retention_type": "none"}),
    ("POST", "/organization/content_access", {"expires_in_s": 600}),
    ("POST", "/responses/{response_id}/reveal", {"reason": "ticket 7"}),
    ("POST", "/responses/{response_id}/replay", {"at": 3, "text": "No."}),
    ("POST", "/responses/{response_id}/cancel", {}),
    ("DELETE", "/organization/content_access", {}),
    ("POST", "/organization/spend_limit", LIMIT),
    ("DELETE", "/organization/spend_limit", {}),
    ("POST", "/organization/spend_alerts", ALERT),
    ("POST", "/organization/spend_alerts/{alert_id}", {**ALERT, "threshold_amount": 200}),
    ("DELETE", "/organization/spend_alerts/{alert_id}", {}),
    ("POST", "/organization/admin_api_keys", {"name": "second"}),
    ("POST", "/organization/admin_api_keys/{api_key_id}/rotate", {}),
    ("DELETE", "/organization/admin_api_keys/{api_key_id}", {}),
    ("POST", "/tenants", {"name": "audited"}),
    ("POST", "/tenants/{name}", {"policy": {"containers_max": 3}}),
    ("POST", "/tenants/{name}/admin_api_keys", {}),
    ("POST", "/tenants/{name}/erasure", {"end_user": "somebody"}),
    ("POST", "/tenants/{name}/export", {}),
    ("POST", "/tenants/{name}/hold", {}),
    ("POST", "/tenants/{name}/delete", {}),
    ("POST", "/tenants/{name}/restore", {}),
    ("POST", "/tenants/{name}/disable", {}),
    ("POST", "/backends/{name}/drain", {}),
    ("POST", "/backends/{name}/undrain", {}),
    ("POST", "/prices", {"model": "m", "tenant": "audited", "nano_per_unit": {"output": 5}}),
    ("POST", "/prices/end", {"model": "m", "tenant": "audited"}),
    ("POST", "/operators", {"name": "bo", "role": "support"}),
    ("POST", "/operators/{id}/disable", {}),
    ("POST", "/issuers", SHARED),
    ("POST", "/issuers/{issuer_id}", {"name": "single sign-on"}),
    ("DELETE", "/issuers/{issuer_id}", {}),
    ("POST", "/tenants/{name}/issuers/{workload_identity_provider_id}/confirm", {}),
    ("POST", "/tenants/{name}/issuers/{workload_identity_provider_id}/withdraw", {}),
    ("POST", "/usage/reconcile", {}),
    ("POST", "/usage/sinks/{name}/resume", {}),
]
"""Every route that changes something, in an order in which each has something to change."""


@dataclass
class Auditor:
    """Calls routes as an admin of `acme` and as an operator, and reads all chains."""

    site: AdminSite
    admin: httpx2.AsyncClient
    operator: httpx2.AsyncClient
    operator_id: str
    ids: dict[str, str] = field(default_factory=dict)

    async def entries(self) -> dict[tuple[UUID, int], AuditEntry]:
        database = self.site.gateway.process.foundation.database
        return {
            (chain, one.number): one
            for chain in await audit_log.chains(database)
            for one in await audit_log.since(database, chain, 0, rows_max=100_000)
        }

    async def call(self, route: AdminRoute, body: dict[str, Any]) -> None:
        client = self.operator if route.plane == "operator" else self.admin
        url = self.named(route.url)
        said = {
            name: self.named(one) if isinstance(one, str) else one for name, one in body.items()
        }
        answer = await client.request(
            route.method, url, json=said if route.method == "POST" else None
        )
        assert answer.status_code == 200, (route.method, url, answer.text)
        if answer.headers["content-type"] == "application/json":
            self.learn(route, answer.json())

    def named(self, text: str) -> str:
        """With the ids of what was made."""
        return PARAMETER.sub(lambda found: self.ids[found[1]], text)

    def learn(self, route: AdminRoute, made: dict[str, Any]) -> None:
        """The id of what was made, by what routes call it."""
        named = {
            "/organization/projects": "project_id",
            f"{PROJECT}/service_accounts": "service_account_id",
            f"{PROJECT}/service_accounts/{{service_account_id}}/api_keys": "api_key_id",
            f"{PROJECT}/spend_alerts": "alert_id",
            "/organization/spend_alerts": "alert_id",
            "/organization/admin_api_keys": "api_key_id",
            "/operators": "id",
            "/issuers": "issuer_id",
            PROVIDERS: "workload_identity_provider_id",
            RULES: "workload_identity_federation_rule_id",
        }
        if route.method == "POST" and route.path in named:
            self.ids[named[route.path]] = made["id"]


@pytest.fixture
async def auditor(site: AdminSite) -> AsyncIterator[Auditor]:
    process = site.gateway.process
    operators = Operators(process.foundation.database, process.access.peppers)
    key, secret = await operators.create(COMMAND_LINE, OperatorCreate(name="anna"))
    async with (
        http_client(site.admin_url, headers={"authorization": f"Bearer {site.admin_key}"}) as admin,
        http_client(site.admin_url, headers={"authorization": f"Bearer {secret}"}) as operator,
    ):
        yield Auditor(site, admin, operator, str(key.id))


def admin_services_of(site: AdminSite) -> AdminServices:
    process = site.gateway.process
    database = process.foundation.database
    return admin_services(process.foundation.settings, database, process.access)


def table(site: AdminSite) -> list[AdminRoute]:
    services = operator_services(site.gateway.process)
    return [*admin_routes(admin_services_of(site)), *operator_routes(services)]


async def test_every_route_that_changes_something_is_in_the_audit_log(
    site: AdminSite, auditor: Auditor
) -> None:
    changing = {(str(one.method), one.path): one for one in table(site) if one.method != "GET"}
    refused = roles.routes(admin_services_of(site).projects)
    for one in refused:
        changing.pop((str(one.method), one.path), None)
    assert set(changing) == {(method, path) for method, path, _ in ORDERED}, "say how to call it"
    database = site.gateway.process.foundation.database
    price = PriceCreate(model=MODEL, tenant="acme", nano_per_unit={"output": 1})
    await Prices(database).set(COMMAND_LINE, price)
    backend = (await auditor.operator.get("/admin/v1/backends")).json()["data"][0]["name"]
    for method, path, body in ORDERED:
        route = changing[method, path]
        names = {"/tenants": "audited", "/backends": backend, "/usage": "billing"}
        auditor.ids["name"] = names.get(f"/{path.split('/')[1]}", "")
        if "/issuers/" in path:
            auditor.ids["name"] = "acme"
        if path.endswith("rate_limits/{id}"):
            auditor.ids["id"] = f"rl-{MODEL}"
        if path.startswith("/responses/"):
            is_running = path.endswith("/cancel")
            auditor.ids["response_id"] = await new_response(auditor, is_running=is_running)
        if path.endswith("/replay"):
            revealing = changing["POST", "/responses/{response_id}/reveal"]
            await auditor.call(revealing, {"reason": "ticket 7"})
        if path == "/usage/sinks/{name}/resume":
            await new_sink(auditor)
        before = await auditor.entries()
        await auditor.call(route, body)
        after = await auditor.entries()
        new = [entry for key, entry in after.items() if key not in before]
        who = [auditor.operator_id, '"anna"'] if route.plane == "operator" else ['"key_']
        own = [one for one in new if all(name.encode() in one.actor for name in who)]
        assert own, (method, path, new)
        assert all(one.request_id and one.address for one in own), (method, path, own)


async def new_response(auditor: Auditor, *, is_running: bool) -> str:
    """One of `acme`, whose policy lets operators read with its consent."""
    policy = {"policy": {"operator_content_access": "consent"}}
    assert (await auditor.operator.post("/admin/v1/tenants/acme", json=policy)).is_success
    key = await new_key(auditor.site.gateway.process.foundation.settings, "acme")
    body: dict[str, object] = {"model": MODEL, "input": "hi"}
    if is_running:
        body = {**body, "input": "[[sim tokens=100000 tokens_per_s=50]]", "background": True}
    async with auditor.site.user(key) as user:
        made = await user.post("/v1/responses", json=body)
    return str(made.json()["id"])


async def new_sink(auditor: Auditor) -> None:
    """One that was begun, and is stopped."""
    from gateway.store.ledger import cursors

    database = auditor.site.gateway.process.foundation.database
    await cursors.next_batch(database, "billing", "test", lease_s=1, lines_max=1)
    await cursors.stop_sink(database, "billing", "refused")


async def test_operators_read_all_chains_and_see_who_it_was(auditor: Auditor) -> None:
    made = await auditor.operator.post("/admin/v1/tenants", json={"name": "watched"})
    assert made.status_code == 200, made.text
    listed = (await auditor.operator.get("/admin/v1/audit_log?tenant=watched")).json()
    (entry,) = listed["data"]
    assert entry["type"] == "harmony.tenant.created"
    assert entry["harmony"]["operator"] == "anna"
    assert entry["actor"]["api_key"]["id"] == auditor.operator_id
    own = (await auditor.operator.get("/admin/v1/audit_log?limit=100")).json()["data"]
    assert "harmony.operator.created" in {one["type"] for one in own}
    narrowed = await auditor.operator.get(
        f"/admin/v1/audit_log?actor_ids[]={auditor.operator_id}&event_types[]=harmony.tenant.created"
    )
    assert narrowed.json()["data"] == [], "that is in the chain of the tenant"
    assert (await auditor.operator.get("/admin/v1/audit_log?tenant=nobody")).status_code == 404
    of_tenant = (await auditor.admin.get("/v1/organization/audit_logs?limit=100")).json()["data"]
    assert not any("harmony" in one for one in of_tenant), "who of the operators is not theirs"


@pytest.mark.slow
@pytest.mark.parametrize("role", list(OPERATOR_ROLES))
async def test_each_operator_may_do_what_its_role_says(
    site: AdminSite, auditor: Auditor, role: OperatorRole
) -> None:
    made = await auditor.operator.post("/admin/v1/operators", json={"name": role, "role": role})
    headers = {"authorization": f"Bearer {made.json()['value']}"}
    async with http_client(site.admin_url, headers=headers) as client:
        for route in table(site):
            may = route.permission in OPERATOR_ROLES[role]
            if route.plane != "operator" or (may and route.method != "GET"):
                continue
            answer = await client.request(route.method, PARAMETER.sub("unknown", route.url))
            assert (answer.status_code == 403) != may, (role, route, answer.text)


@pytest.mark.slow
async def test_responses_are_found_without_what_they_say(site: AdminSite, auditor: Auditor) -> None:
    async with site.client() as admin:
        organization = admin.admin.organization.projects
        project = await organization.create(name="looked into")
        account = await organization.service_accounts.create(project.id, name="ci")
    assert account.api_key is not None
    canary = "canary-9b1d"
    async with site.user(account.api_key.value) as user:
        body = {"model": MODEL, "input": canary, "metadata": {"a": canary}}
        made = [(await user.post("/v1/responses", json=body)).json() for _ in range(3)]
    path = f"/admin/v1/responses?tenant=acme&project_id={project.id}"
    listed = await auditor.operator.get(f"{path}&limit=2&status=completed&model={MODEL}")
    assert canary not in listed.text
    page = listed.json()
    assert [one["id"] for one in page["data"]] == [made[2]["id"], made[1]["id"]]
    assert page["has_more"]
    rest = (await auditor.operator.get(f"{path}&after={page['last_id']}")).json()
    assert [one["id"] for one in rest["data"]] == [made[0]["id"]]
    (one,) = rest["data"]
    assert one["tenant"]["name"] == "acme"
    assert one["api_key_id"] == account.api_key.id
    found = (await auditor.operator.get(f"/admin/v1/responses?id={made[1]['id']}")).json()["data"]
    assert [one["id"] for one in found] == [made[1]["id"]]
    nothing = await auditor.operator.get("/admin/v1/responses?tenant=globex&status=queued")
    assert nothing.json()["data"] == []
    for wrong in ("status=done", "id=7", "limit=0", "created_at[gte]=1", "api_key_id=x"):
        refused = await auditor.operator.get(f"/admin/v1/responses?{wrong}")
        assert refused.status_code == 400, (wrong, refused.text)


async def test_what_was_changed_is_told_field_by_field(auditor: Auditor) -> None:
    base = "/v1/organization/projects"
    made = (await auditor.admin.post(base, json={"name": "told"})).json()
    project = f"{base}/{made['id']}"
    account = (await auditor.admin.post(f"{project}/service_accounts", json={"name": "ci"})).json()
    alert = (await auditor.admin.post(f"{project}/spend_alerts", json=ALERT)).json()
    channel = {"type": "email", "recipients": ["b@example.com"], "subject_prefix": None}
    key = account["api_key"]["id"]
    changes: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
        ("api_key", f"api_keys/{key}", {"expires_in_seconds": 50}, {"expires_in_seconds": 50}),
        ("service_account", f"service_accounts/{account['id']}", {"name": "cd"}, {"name": "cd"}),
        (
            "harmony.spend_alert",
            f"spend_alerts/{alert['id']}",
            ALERT | {"notification_channel": channel},
            {"threshold": 10**9, "notification_channel": {"type": "email", "recipients": 1}},
        ),
    ]
    for kind, path, body, told in changes:
        answer = await auditor.admin.post(f"{project}/{path}", json=body)
        assert answer.status_code == 200, answer.text
        type_, target = f"{kind}.updated", path.rpartition("/")[2]
        query = f"event_types[]={type_}&resource_ids[]={target}"
        found = await auditor.admin.get(f"/v1/organization/audit_logs?{query}")
        (entry,) = found.json()["data"]
        assert entry[type_]["changes_requested"] == told


@pytest.mark.slow
async def test_an_archive_has_content_for_owners_alone(
    site: AdminSite, auditor: Auditor, admin_settings: Settings
) -> None:
    canary = "canary-2c44"
    async with site.user(await new_key(admin_settings, "acme")) as user:
        asked = {"model": MODEL, "input": canary, "metadata": {"a": canary}}
        assert (await user.post("/v1/responses", json=asked)).status_code == 200
    path = "/admin/v1/tenants/acme/export"
    made = await auditor.operator.post("/admin/v1/operators", json={"name": "x", "role": "admin"})
    headers = {"authorization": f"Bearer {made.json()['value']}"}
    for body, has_content in (({}, False), ({"content": True}, True)):
        answer = await auditor.operator.post(path, json=body)
        assert answer.headers["content-type"] == "application/zip"
        with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
            manifest = orjson.loads(archive.read("manifest.json"))
            everything = b"".join(map(archive.read, archive.namelist()))
        assert manifest["content"] == has_content
        assert manifest["files"]["responses.jsonl"]["rows"] >= 1
        assert (canary.encode() in everything) == has_content
        async with http_client(site.admin_url, headers=headers) as client:
            answer = await client.post(path, json=body)
        assert answer.status_code == (403 if has_content else 200)
    told = await auditor.operator.get(
        "/admin/v1/audit_log?tenant=acme&event_types[]=harmony.export.begun&limit=3"
    )
    begun = [one["harmony.export.begun"]["data"]["content"] for one in told.json()["data"]]
    assert begun == [True, False, False], "who was refused has begun none"
    assert (await auditor.operator.post("/admin/v1/tenants/nobody/export")).status_code == 404


async def test_prices_are_made_listed_and_ended(auditor: Auditor) -> None:
    asked = {"model": "priced", "nano_per_unit": {"input": 50, "output": 200}}
    made = (await auditor.operator.post("/admin/v1/prices", json=asked)).json()
    assert made["nano_per_unit"] == asked["nano_per_unit"]
    assert made["tenant_id"] is None
    listed = (await auditor.operator.get("/admin/v1/prices")).json()["data"]
    assert made["id"] in {one["id"] for one in listed}
    ended = await auditor.operator.post("/admin/v1/prices/end", json={"model": "priced"})
    assert ended.status_code == 200, ended.text
    again = await auditor.operator.post("/admin/v1/prices/end", json={"model": "priced"})
    assert again.status_code == 404
    for wrong in (
        {"model": "priced", "nano_per_unit": {"gold": 1}},
        {"model": "priced", "nano_per_unit": {}},
        {"model": "priced", "nano_per_unit": {"input": -1}},
        {"model": "priced", "nano_per_unit": {"input": 1}, "tenant": "nobody"},
    ):
        refused = await auditor.operator.post("/admin/v1/prices", json=wrong)
        assert refused.status_code in {400, 404}, refused.text
