"""All routes of the tenants' plane by who may not see what is asked for: made from its table."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from gateway.admin.prices import PriceCreate, Prices
from gateway.admin.resources import admin_routes
from gateway.audit import COMMAND_LINE
from gateway.wiring.admin import admin_services
from tests.fakes.admin_bodies import GOOD, body_of
from tests.fakes.http_client import http_client

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import httpx2

    from gateway.admin.routes import AdminRoute
    from tests.integration.api.admin.conftest import AdminSite

CANARY: Final = "canary-51d0"
PARAMETER: Final = re.compile(r"\{(\w+)\}")
ADMIN_KEYS: Final = "/organization/admin_api_keys/"
SEVERAL_KINDS: Final = {"api_key_id", "alert_id"}
"""Of the project, or of the organization: by the path."""
NOBODY_S: Final = {"rest", "role_id", "id"}
"""Ids of what no tenant has, of what all have, and names of models."""


@dataclass(frozen=True)
class Belongings:
    """One of everything that a tenant has, by the parameters of routes."""

    given: dict[str, str]

    def of(self, route: AdminRoute) -> dict[str, str]:
        """The ids in the path of a route."""
        found = {}
        for name in PARAMETER.findall(route.path):
            is_of_all = name in SEVERAL_KINDS and "{project_id}" not in route.path
            found[name] = self.given.get(f"organization_{name}" if is_of_all else name, "nothing")
        return found

    @property
    def unknown(self) -> Belongings:
        """Ids of the same form that nothing has."""
        return Belongings(
            {name: re.sub(r"[0-9a-f]{32}$", "0" * 32, value) for name, value in self.given.items()}
        )


async def ok(asked: Any) -> Any:
    answer = await asked
    assert answer.status_code == 200, answer.text
    return answer.json()


def client(site: AdminSite, key: str) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {key}"}
    return http_client(f"{site.admin_url}/v1", headers=headers, timeout=60)


async def filled(owner: httpx2.AsyncClient, name: str) -> Belongings:
    """A project with all that a project can have, and what is of the organization."""
    organization = "/organization"

    async def made(path: str, **body: Any) -> Any:
        return await ok(owner.post(f"{organization}{path}", json=body))

    project = (await made("/projects", name=name))["id"]
    below = f"/projects/{project}"
    account = await made(f"{below}/service_accounts", name=name)
    issuer = {"type": "oidc", "issuer": f"https://{name}.example", "audience": name}
    provider = (await made("/workload_identity_providers", name=name, **issuer))["id"]
    rule = await made(
        f"/workload_identity_providers/{provider}/federation_rules",
        attribute_matchers={"sub": name}, project_id=project, service_account_id=account["id"],
    )  # fmt: skip
    alert = GOOD_ALERT | {"notification_channel": {"type": "email", "recipients": [MAIL]}}
    await made(f"{below}/rate_limits/rl-gpt-oss-20b", max_requests_per_1_minute=7)
    await made(f"{below}/spend_limit", currency="USD", interval="month", threshold_amount=7)
    return Belongings(
        {
            "project_id": project,
            "service_account_id": account["id"],
            "api_key_id": account["api_key"]["id"],
            "organization_api_key_id": (await made("/admin_api_keys", name=name))["id"],
            "workload_identity_provider_id": provider,
            "workload_identity_federation_rule_id": rule["id"],
            "alert_id": (await made(f"{below}/spend_alerts", **alert))["id"],
            "organization_alert_id": (await made("/spend_alerts", **alert))["id"],
            "id": "rl-gpt-oss-20b",
        }
    )


MAIL: Final = f"{CANARY}@example.com"
GOOD_ALERT: Final[dict[str, Any]] = next(
    body for model, body in GOOD.items() if model.__name__ == "SpendAlertUpdate"
)


@pytest.fixture(scope="module")
async def victim(site: AdminSite) -> Belongings:
    prices = Prices(site.gateway.process.foundation.database)
    for tenant in ("acme", "globex"):
        await prices.set(
            COMMAND_LINE,
            PriceCreate(model="gpt-oss-20b", tenant=tenant, nano_per_unit={"output": 1}),
        )
    async with client(site, site.admin_key) as owner:
        return await filled(owner, CANARY)


def table(site: AdminSite) -> list[AdminRoute]:
    process = site.gateway.process
    settings, database = process.foundation.settings, process.foundation.database
    return admin_routes(admin_services(settings, database, process.access))


def with_ids(site: AdminSite) -> Iterator[AdminRoute]:
    for route in table(site):
        if PARAMETER.search(route.path):
            yield route


async def told(
    user: httpx2.AsyncClient, route: AdminRoute, given: Belongings, ids: Mapping[str, str]
) -> tuple[int, str]:
    """Status and body, without the ids that were asked for."""
    body = body_of(
        route.body, PROJECT=given.given["project_id"], ACCOUNT=given.given["service_account_id"]
    )
    path = PARAMETER.sub(lambda found: ids[found[1]], route.path)
    answer = await user.request(route.method, path, json=body)
    text = answer.text
    for value in sorted({*ids.values(), *given.given.values()}, key=len, reverse=True):
        text = text.replace(value, "ID")
    return answer.status_code, text


async def everything(owner: httpx2.AsyncClient, site: AdminSite, given: Belongings) -> list[Any]:
    """What the owner is shown of all of it."""
    return [
        await told(owner, route, given, given.of(route))
        for route in with_ids(site)
        if route.method == "GET"
    ]


@pytest.mark.slow
async def test_what_is_another_tenant_s_is_answered_as_what_is_not_there(
    site: AdminSite, victim: Belongings
) -> None:
    routes = list(with_ids(site))
    named = {name for route in routes for name in PARAMETER.findall(route.path)}
    assert named <= victim.given.keys() | NOBODY_S, "a new kind of id: give the victim one"
    async with client(site, site.admin_key) as owner, client(site, site.other_admin_key) as other:
        before = await everything(owner, site, victim)
        assert sum(status == 200 for status, _ in before) >= 19
        for route in routes:
            foreign = await told(other, route, victim, victim.of(route))
            unknown = await told(other, route, victim.unknown, victim.unknown.of(route))
            assert foreign == unknown, route
            is_the_caller_s = set(PARAMETER.findall(route.path)) <= NOBODY_S
            assert foreign[0] in {400, 404} or is_the_caller_s, (route, foreign)
            assert CANARY not in foreign[1]
        assert await everything(owner, site, victim) == before


@pytest.mark.slow
async def test_what_is_another_project_s_is_answered_as_what_is_not_there(
    site: AdminSite, victim: Belongings
) -> None:
    """Behind the id of a project, or of an issuer, that the caller does have."""
    async with client(site, site.admin_key) as owner:
        own = await filled(owner, "own-0b1c")
        before = await everything(owner, site, victim)
        for route in with_ids(site):
            first, *others = PARAMETER.findall(route.path)
            if not others or set(others) <= NOBODY_S:
                continue
            outer = {first: own.given.get(first, "nothing")}
            foreign = await told(owner, route, own, victim.of(route) | outer)
            unknown = await told(owner, route, own, victim.unknown.of(route) | outer)
            assert foreign == unknown, route
            assert foreign[0] == 404, (route, foreign)
        assert await everything(owner, site, victim) == before


@pytest.mark.slow
async def test_lists_have_what_is_the_tenant_s_own(site: AdminSite, victim: Belongings) -> None:
    lists = [
        route for route in table(site) if route.method == "GET" and not PARAMETER.search(route.path)
    ]
    ids = [value for name, value in victim.given.items() if name not in NOBODY_S]
    found = set()
    for key in (site.admin_key, site.other_admin_key):
        async with client(site, key) as user:
            for route in lists:
                path, good = route.path, {"start_time": int(time.time()) - 60, "limit": 100}
                if "start_time" in route.query:
                    del good["limit"]  # as many buckets as may be differs
                query = {name: value for name, value in good.items() if name in route.query}
                answer = await user.get(path, params=query)
                assert answer.status_code in {200, 404}, (path, answer.text)
                if any(one in answer.text for one in (CANARY, *ids)):
                    found.add((key, path))
    assert {key for key, _ in found} == {site.admin_key}
    assert len(found) >= 5


@pytest.mark.slow
async def test_what_a_route_does_not_take_is_refused_before_anything_is_done(
    site: AdminSite, victim: Belongings
) -> None:
    """A filter that is misspelt, or that a list does not have, would have everything pass."""
    async with client(site, site.admin_key) as owner:
        before = await everything(owner, site, victim)
        for route in table(site):
            path = PARAMETER.sub(lambda found: victim.of(route)[found[1]], route.path)  # noqa: B023
            answer = await owner.request(route.method, path, params={"project": "x"})
            if not route.refuses:
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (400, "unknown_parameter"), route
                assert error["param"] == "project"
        assert await everything(owner, site, victim) == before


@pytest.mark.parametrize("name", ["before", "order"])
@pytest.mark.parametrize("path", ["/projects", "/projects/{project_id}/service_accounts"])
async def test_a_list_has_the_order_that_openai_s_has(
    site: AdminSite, victim: Belongings, path: str, name: str
) -> None:
    async with client(site, site.admin_key) as owner:
        asked = {"before": victim.given["project_id"], "order": "desc"}[name]
        url = f"/organization{path.format(**victim.given)}"
        answer = await owner.get(url, params={name: asked})
    assert answer.json()["error"]["message"] == f"Unknown parameter: '{name}'."
