"""All routes by all callers by all ids, made from the router: no way leads to what is another's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from starlette.routing import Route

from gateway import ids
from gateway.admin.issuers import OperatorIssuerCreate, OperatorIssuers
from gateway.admin.resources import admin_routes
from gateway.api.access.authentication import NEEDS, PUBLIC_PATHS
from gateway.app import routes
from gateway.audit import COMMAND_LINE
from gateway.tenancy.permissions import ROLES
from gateway.wiring.admin import admin_services
from tests.fakes.gateway import new_key
from tests.fakes.http_client import http_client
from tests.fakes.issuer import running_issuer
from tests.integration.api.admin.test_federation import exchanged, trusted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2
    import openai

    from gateway.admin.routes import AdminRoute
    from gateway.settings import Settings
    from tests.fakes.issuer import Issuer
    from tests.integration.api.admin.conftest import AdminSite

CANARY = "canary-7f3a"
PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")
UNKNOWN = {
    "response_id": ids.response_id(UUID(int=7)),
    "conversation_id": ids.conversation_id(UUID(int=7)),
    "container_id": ids.container_id(UUID(int=7)),
    "file_id": ids.file_id(UUID(int=7)),
    "container_file_id": ids.container_file_id(UUID(int=7)),
    "item_id": "msg_7",
}
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/v1/conversations/{conversation_id}"): {"metadata": {"a": "b"}},
    ("POST", "/v1/conversations/{conversation_id}/items"): {
        "items": [{"role": "user", "content": "planted"}]
    },
    ("POST", "/v1/containers/{container_id}/files"): {"file_id": "file_id"},
}


@dataclass(frozen=True)
class Victim:
    """What there is of one project, by the parameters of routes."""

    key: str
    given: dict[str, str]


def served(site: AdminSite) -> list[Route]:
    """Every route of the data plane that takes a key."""
    process = site.gateway.process
    found = routes(process)
    return [one for one in found if isinstance(one, Route) and one.path not in PUBLIC_PATHS]


def by_method(site: AdminSite) -> list[tuple[str, str]]:
    return [
        (method, route.path)
        for route in served(site)
        for method in sorted(route.methods or ())
        if method != "HEAD"
    ]


async def new_project(admin: openai.AsyncOpenAI, name: str) -> str:
    """A key of a new project."""
    projects = admin.admin.organization.projects
    project = await projects.create(name=name)
    account = await projects.service_accounts.create(project.id, name="ci")
    assert account.api_key is not None
    return account.api_key.value


async def ok(answer: httpx2.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


async def filled(site: AdminSite, key: str) -> Victim:
    """One of everything that has an id, with the canary in it."""
    async with site.user(key) as user:
        asked: dict[str, Any] = {"model": "gpt-oss-20b", "input": CANARY}
        response = await ok(await user.post("/v1/responses", json=asked))
        asked = {"items": [{"role": "user", "content": CANARY}], "metadata": {"a": CANARY}}
        conversation = await ok(await user.post("/v1/conversations", json=asked))
        items = await ok(await user.get(f"/v1/conversations/{conversation['id']}/items"))
        file = await ok(
            await user.post(
                "/v1/files",
                data={"purpose": "user_data"},
                files={"file": (f"{CANARY}.txt", CANARY.encode())},
            )
        )
        container = await ok(await user.post("/v1/containers", json={"name": CANARY}))
        copied = await ok(
            await user.post(f"/v1/containers/{container['id']}/files", json={"file_id": file["id"]})
        )
    return Victim(
        key,
        {
            "response_id": response["id"],
            "conversation_id": conversation["id"],
            "item_id": items["data"][0]["id"],
            "file_id": file["id"],
            "container_id": container["id"],
            "container_file_id": copied["id"],
        },
    )


@pytest.fixture(scope="module")
async def victim(site: AdminSite) -> AsyncIterator[Victim]:
    async with site.client() as admin:
        yield await filled(site, await new_project(admin, "Victim"))


@pytest.fixture(scope="module")
async def intruders(site: AdminSite, admin_settings: Settings) -> AsyncIterator[list[str]]:
    """A key of another project, one of the default project, and one of another tenant; tokens of an
    issuer of another project, and of another tenant, and what they are exchanged for; and tokens of
    an operator's issuer for the default project and for another tenant.
    """
    async with site.client() as admin:
        other = await new_project(admin, "Intruder")
    found = [other, await new_key(admin_settings, "acme"), await new_key(admin_settings, "globex")]
    async with running_issuer() as issuer, running_issuer() as another:
        for of, key in ((issuer, site.admin_key), (another, site.other_admin_key)):
            async with site.client(key) as admin, trusted(admin, of) as trust:
                found += [of.token(), await exchanged(site, trust, of.token())]
        async with running_issuer() as shared:
            await trust_of_operators(site, shared)
            found += [shared.token(org="acme"), shared.token(org="globex")]
            yield found


async def trust_of_operators(site: AdminSite, issuer: Issuer) -> None:
    """Trust an issuer whose tokens name their tenant, whichever it is."""
    process = site.gateway.process
    database = process.foundation.database
    named = {"attribute": "harmony.tenant", "expression": "assertion.org"}
    body = {
        "name": "sso", "issuer": issuer.url, "audience": issuer.audience, "tenants": ["*"],
        "attribute_transformations": [named],
    }  # fmt: skip
    asked = OperatorIssuerCreate.model_validate(body)
    await OperatorIssuers(database, process.access.forget).create(COMMAND_LINE, asked)


def url_of(path: str, given: dict[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        is_inside = found[1] == "file_id" and path.startswith("/v1/containers")
        return given["container_file_id" if is_inside else found[1]]

    return PARAMETER.sub(value, path)


def without_ids(text: str, given: dict[str, str]) -> str:
    for value in sorted(given.values(), key=len, reverse=True):
        text = text.replace(value, "ID")
    return text


def with_ids(part: Any, given: dict[str, str]) -> Any:
    """A body in which ids stand for their names."""
    if isinstance(part, dict):
        return {name: with_ids(value, given) for name, value in part.items()}
    if isinstance(part, list):
        return [with_ids(value, given) for value in part]
    return given.get(part, part)


async def told(
    user: httpx2.AsyncClient, method: str, path: str, given: dict[str, str]
) -> tuple[int, str]:
    """Status and body, without what differs between any two requests."""
    content = BODIES.get((method, path))
    asked = None if content is None else with_ids(content, given)
    answer = await user.request(method, url_of(path, given), json=asked)
    assert CANARY not in answer.text
    return answer.status_code, without_ids(answer.text, given)


@pytest.mark.slow
async def test_what_is_another_s_is_answered_as_what_is_not_there(
    site: AdminSite, victim: Victim, intruders: list[str]
) -> None:
    wanted = [(method, path) for method, path in by_method(site) if PARAMETER.search(path)]
    named = {name for _, path in wanted for name in PARAMETER.findall(path)}
    assert named - {"model_id"} <= set(UNKNOWN), "a new kind of id: give the victim one"
    wanted = [(method, path) for method, path in wanted if "{model_id" not in path]
    assert len(wanted) >= 20
    for key in intruders:
        async with site.user(key) as user:
            for method, path in wanted:
                foreign = await told(user, method, path, victim.given)
                assert foreign == await told(user, method, path, UNKNOWN), (method, path)
                assert foreign[0] in {400, 404}, (method, path)
    async with site.user(victim.key) as user:
        for method, path in wanted:
            if method == "GET":
                answer = await user.get(url_of(path, victim.given))
                assert answer.status_code == 200, (path, answer.text)


@pytest.mark.slow
async def test_lists_have_what_is_the_project_s_own(
    site: AdminSite, victim: Victim, intruders: list[str]
) -> None:
    lists = [
        path
        for method, path in by_method(site)
        if method == "GET" and not PARAMETER.search(path) and path != "/v1/key"
    ]
    for key in intruders:
        async with site.user(key) as user:
            for path in lists:
                answer = await user.get(path)
                assert answer.status_code == 200, path
                assert CANARY not in answer.text
                assert not any(given in answer.text for given in victim.given.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        {"previous_response_id": "response_id"},
        {"conversation": "conversation_id"},
        {"input": [{"type": "item_reference", "id": "item_id"}]},
        {"tools": [{"type": "code_interpreter", "container": "container_id"}]},
        {
            "tools": [
                {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file_id"]}}
            ]
        },
    ],
    ids=lambda body: next(iter(body)),
)
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens"])
async def test_a_request_cannot_name_what_is_another_s(
    site: AdminSite, victim: Victim, intruders: list[str], body: Any, path: str
) -> None:
    for key in intruders:
        answers = []
        async with site.user(key) as user:
            for given in (victim.given, UNKNOWN):
                asked = {"model": "gpt-oss-20b", "input": "hi", **with_ids(body, given)}
                answer = await user.post(path, json=asked)
                assert CANARY not in answer.text
                answers.append((answer.status_code, without_ids(answer.text, given)))
        assert answers[0] == answers[1]
        assert answers[0][0] in {400, 404}


@pytest.mark.slow
async def test_an_idempotency_key_is_the_project_s_own(
    site: AdminSite, victim: Victim, intruders: list[str]
) -> None:
    asked = {"model": "gpt-oss-20b", "input": "hi"}
    headers = {"idempotency-key": "the-same-for-all"}
    made = set()
    for key in (victim.key, *intruders):
        async with site.user(key) as user:
            answer = await ok(await user.post("/v1/responses", json=asked, headers=headers))
            again = await ok(await user.post("/v1/responses", json=asked, headers=headers))
        assert again["id"] == answer["id"]
        made.add(answer["id"])
    assert len(made) == 1 + len(intruders)


def test_every_route_that_takes_a_key_says_what_scope_it_takes(site: AdminSite) -> None:
    wanted = {*by_method(site), ("WEBSOCKET", "/v1/responses")}
    assert wanted == set(NEEDS)


def admin_table(site: AdminSite) -> list[AdminRoute]:
    process = site.gateway.process
    settings, database = process.foundation.settings, process.foundation.database
    return admin_routes(admin_services(settings, database, process.access))


def test_every_admin_route_takes_a_permission_that_an_owner_has(site: AdminSite) -> None:
    for route in admin_table(site):
        assert route.permission in ROLES["owner"], route
        assert (route.permission in ROLES["reader"]) == (route.method == "GET"), route


async def test_each_role_may_do_what_the_table_says(
    site: AdminSite, admin: openai.AsyncOpenAI, victim: Victim
) -> None:
    keys = admin.admin.organization.admin_api_keys
    made = await keys.create(name="reader", extra_body={"scopes": ["api.all.read"]})
    callers = {"reader": made.value, "owner": site.other_admin_key, "project": victim.key}
    for url in (site.gateway.url, site.admin_url):
        for name, key in callers.items():
            async with http_client(url, headers={"authorization": f"Bearer {key}"}) as client:
                await try_all(client, name, admin_table(site))


async def try_all(client: httpx2.AsyncClient, role: str, table: list[AdminRoute]) -> None:
    """Refused is what the role may not do, and nothing else."""
    granted = {str(name): permissions for name, permissions in ROLES.items()}
    for route in table:
        if route.plane != "tenant" or (role == "owner" and route.method != "GET"):
            continue
        answer = await client.request(route.method, PARAMETER.sub("unknown", route.url))
        may = route.permission in granted.get(role, frozenset())
        assert (answer.status_code == 403) != may, (role, route, answer.text)
        if not may:
            assert answer.json()["error"]["code"] == "insufficient_permissions"


async def test_keys_of_the_wrong_plane_are_refused(site: AdminSite, victim: Victim) -> None:
    async with site.user(site.other_admin_key) as user:
        for path in ("/v1/models", "/v1/files", "/v1/key"):
            assert (await user.get(path)).status_code == 401, path
    for key in (victim.key, site.other_admin_key, "sk-op-nonsense"):
        headers = {"authorization": f"Bearer {key}"}
        async with http_client(site.admin_url, headers=headers) as client:
            assert (await client.get("/admin/v1/tenants")).status_code == 401
            assert (await client.get("/v1/responses")).status_code in {401, 404}
    async with http_client(site.admin_url) as nobody:
        assert (await nobody.get("/v1/organization/projects")).status_code == 401
        assert (await nobody.get("/admin/v1/tenants")).status_code == 401
        assert (await nobody.get("/healthz")).status_code == 200
