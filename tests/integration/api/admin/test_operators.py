"""The plane of operators: tenants, backends, replicas, settings; no content, and never public."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from gateway.admin.operator_keys import OperatorCreate, Operators
from gateway.admin.resources import operator_routes
from gateway.api.openapi.endpoints import ADMIN_FILE, packaged
from gateway.app import AdminGateway
from gateway.audit import COMMAND_LINE
from gateway.store.migration.migrate import upgrade
from gateway.wiring.admin import operator_services
from gateway.wiring.databases import access, connect
from tests.fakes.admin_bodies import body_of
from tests.fakes.gateway import PEPPER, gateway_settings, new_key, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.logins import OWNER, SERVING, make_roles
from tests.fakes.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from gateway.settings import Settings
    from tests.fakes.observation import Backends
    from tests.integration.api.admin.conftest import AdminSite


@pytest.fixture
async def operator(site: AdminSite) -> AsyncIterator[httpx2.AsyncClient]:
    """A client with an operator's key, on the admin listener."""
    process = site.gateway.process
    operators = Operators(process.foundation.database, process.access.peppers)
    _, secret = await operators.create(COMMAND_LINE, OperatorCreate(name="ops"))
    headers = {"authorization": f"Bearer {secret}"}
    async with http_client(site.admin_url, headers=headers) as client:
        yield client


async def test_a_tenant_is_made_set_up_and_disabled(
    operator: httpx2.AsyncClient, site: AdminSite
) -> None:
    made = await operator.post("/admin/v1/tenants", json={"name": "initech"})
    assert made.status_code == 200, made.text
    assert made.json()["object"] == "tenant"
    again = await operator.post("/admin/v1/tenants", json={"name": "initech"})
    assert again.status_code == 400
    key = (await operator.post("/admin/v1/tenants/initech/admin_api_keys", json={})).json()
    async with site.client(key["value"]) as owner:
        (default,) = [one async for one in owner.admin.organization.projects.list()]
        assert default.name == "Default project"
    changed = await operator.post(
        "/admin/v1/tenants/initech", json={"policy": {"containers_max": 3}}
    )
    assert changed.json()["own"] == {"containers_max": 3}
    assert changed.json()["policy"]["containers_max"] == 3
    refused = await operator.post("/admin/v1/tenants/initech", json={"policy": {"nonsense": 3}})
    assert refused.status_code == 400
    assert (await operator.get("/admin/v1/tenants/initech")).json()["name"] == "initech"
    listed = (await operator.get("/admin/v1/tenants?limit=1")).json()
    assert listed["has_more"]
    rest = (await operator.get(f"/admin/v1/tenants?after={listed['last_id']}&limit=100")).json()
    assert "initech" in {one["name"] for one in (*listed["data"], *rest["data"])}
    gone = await operator.post("/admin/v1/tenants/initech/disable")
    assert gone.json()["disabled_at"] is not None
    async with http_client(
        site.admin_url, headers={"authorization": f"Bearer {key['value']}"}
    ) as owner:
        assert (await owner.get("/v1/organization/projects")).status_code == 401


async def test_a_tenant_is_held_deleted_and_restored(operator: httpx2.AsyncClient) -> None:
    await operator.post("/admin/v1/tenants", json={"name": "hooli"})
    url, marks = "/admin/v1/tenants/hooli", ("held_at", "deleted_at", "purged_at")

    async def marked() -> list[bool]:
        shown = (await operator.get(url)).json()
        return [shown[name] is not None for name in marks]

    assert await marked() == [False, False, False]
    assert (await operator.post(f"{url}/hold")).json()["held"] is True
    refused = await operator.post(f"{url}/erasure", json={"end_user": "grace"})
    assert refused.json()["error"]["code"] == "data_held"
    assert (await operator.post(f"{url}/delete")).json()["deleted"] is True
    assert await marked() == [True, True, False]
    refused = await operator.post(f"{url}/admin_api_keys", json={})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tenant")
    assert (await operator.post(f"{url}/restore")).status_code == 200
    assert (await operator.post(f"{url}/restore")).status_code == 400
    assert (await operator.post(f"{url}/hold", json={"held": False})).status_code == 200
    assert await marked() == [False, False, False]


@pytest.mark.parametrize("name", ["nobody", "%00", "%F0%9F%98%80", "a" * 300])
async def test_unknown_names_are_refused(operator: httpx2.AsyncClient, name: str) -> None:
    for path in (f"/admin/v1/tenants/{name}", f"/admin/v1/backends/{name}/drain"):
        answer = await operator.request("POST", path, json={})
        assert answer.status_code in {400, 404}, (path, answer.text)


async def test_backends_are_drained_and_used_again(operator: httpx2.AsyncClient) -> None:
    listed = (await operator.get("/admin/v1/backends")).json()["data"]
    name = listed[0]["name"]
    assert (await operator.post(f"/admin/v1/backends/{name}/drain")).status_code == 200
    found = (await operator.get("/admin/v1/backends")).json()["data"]
    assert next(one for one in found if one["name"] == name)["drained"]["by"] == "operator ops"
    assert (await operator.post(f"/admin/v1/backends/{name}/undrain")).status_code == 200
    found = (await operator.get("/admin/v1/backends")).json()["data"]
    assert next(one for one in found if one["name"] == name)["drained"] is None


async def test_the_document_of_the_admin_planes_is_read_without_a_key(site: AdminSite) -> None:
    async with http_client(site.admin_url) as nobody:
        document = await nobody.get("/openapi.json")
        shown = await nobody.get("/docs")
    assert document.content == packaged(ADMIN_FILE)
    assert "/admin/v1/tenants/{name}/export" in shown.text
    async with http_client(site.gateway.url) as nobody:
        assert (await nobody.get("/openapi.json")).content == packaged()


async def test_settings_are_shown_without_secrets(operator: httpx2.AsyncClient) -> None:
    answer = await operator.get("/admin/v1/settings")
    assert answer.json()["settings"]["admin"]["public"] is True
    assert PEPPER not in answer.text
    assert "postgresql://" not in answer.text
    replicas = (await operator.get("/admin/v1/replicas")).json()["data"]
    assert replicas[0]["id"].startswith("replica_")


async def test_an_unknown_key_is_refused_by_its_id(operator: httpx2.AsyncClient) -> None:
    for unknown in ("nonsense", "00000000-0000-7000-8000-000000000000"):
        refused = await operator.post(f"/admin/v1/operators/{unknown}/disable")
        assert (refused.status_code, refused.json()["error"]["param"]) == (404, "id")


async def test_the_public_listener_has_no_plane_of_operators(
    operator: httpx2.AsyncClient, site: AdminSite
) -> None:
    headers = {"authorization": operator.headers["authorization"]}
    async with http_client(site.gateway.url, headers=headers) as client:
        assert (await client.get("/admin/v1/tenants")).status_code == 401


async def test_a_person_is_erased_from_usage_of_what_was_not_stored(
    operator: httpx2.AsyncClient, site: AdminSite, admin_settings: Settings
) -> None:
    """By the digest that a process makes of whom requests are for."""
    key = await new_key(admin_settings, "umbrella")
    erased: dict[str, Any] = {"rows": {}}
    async with site.user(key) as user:
        asked = {"model": "gpt-oss-20b", "input": "x", "store": False, "user": "grace"}
        assert (await user.post("/v1/responses", json=asked)).status_code == 200
    # Its line is written behind the answer.
    async with asyncio.timeout(30):
        while "usage" not in erased["rows"]:
            url = "/admin/v1/tenants/umbrella/erasure"
            erased = (await operator.post(url, json={"end_user": "grace"})).json()
    assert (erased["responses"], erased["rows"]["usage"]) == (0, 1)


async def test_a_key_of_a_deleted_tenant_opens_nothing_until_it_is_restored(
    operator: httpx2.AsyncClient, site: AdminSite, admin_settings: Settings
) -> None:
    key = await new_key(admin_settings, "soylent")
    url = "/admin/v1/tenants/soylent"
    async with site.user(key) as user:
        for act, status in (("delete", 401), ("restore", 200)):
            assert (await operator.post(f"{url}/{act}")).status_code == 200
            assert (await user.get("/v1/key")).status_code == status


@pytest.mark.slow
async def test_a_process_that_owns_no_tables_has_no_error_on_any_route(
    empty_database_url: str, backends: Backends
) -> None:
    make_roles(empty_database_url)
    parts = urlsplit(empty_database_url)

    def as_user(user: str) -> str:
        return parts._replace(netloc=f"{user}:secret@{parts.netloc.rpartition('@')[2]}").geturl()

    await upgrade(as_user(OWNER))
    owner = gateway_settings(as_user(OWNER), backends.urls)
    await new_key(owner, "acme")
    database = connect(owner)
    operators = Operators(database, access(owner, database).peppers)
    _, secret = await operators.create(COMMAND_LINE, OperatorCreate(name="ops"))
    await database.close()
    settings = gateway_settings(as_user(SERVING), backends.urls, admin={"public": True})
    async with (
        running_gateway(settings) as gateway,
        serving(AdminGateway(gateway.process)) as url,
        http_client(url, headers={"authorization": f"Bearer {secret}"}) as client,
    ):
        seen = {}
        for route in operator_routes(operator_services(gateway.process)):
            path = re.sub(r"\{\w+\}", str(UUID(int=1)), route.url.replace("{name}", "acme", 1))
            answer = await client.request(route.method, path, json=body_of(route.body))
            seen[route.method, route.path] = answer.status_code
        refused = await client.get("/admin/v1/operators")
    assert {one for one, status in seen.items() if status >= 500} == set()
    assert refused.status_code == 403
    assert "command line" in refused.json()["error"]["message"]
