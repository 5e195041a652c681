"""Administrators who change the same things at once: one after the other, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from gateway.admin.limits import Limits
from gateway.admin.spend_limits import ALERTS_MAX, SpendLimits
from tests.fakes.http_client import http_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from tests.integration.api.admin.conftest import AdminSite

PROJECTS = "/v1/organization/projects"
PROVIDERS = "/v1/organization/workload_identity_providers"
AT_ONCE = 5
ALERT: dict[str, Any] = {
    "currency": "USD",
    "interval": "month",
    "threshold_amount": 5,
    "notification_channel": {"type": "email", "recipients": ["a@example.com"]},
}


@pytest.fixture
async def owner(site: AdminSite) -> AsyncIterator[httpx2.AsyncClient]:
    """A client with an admin key, without the SDK's own retries."""
    headers = {"authorization": f"Bearer {site.admin_key}"}
    async with http_client(site.admin_url, headers=headers, timeout=60) as client:
        yield client


async def ok(asked: Any) -> Any:
    answer = await asked
    assert answer.status_code == 200, answer.text
    return answer.json()


async def statuses(*asked: Any) -> dict[int, int]:
    return Counter(answer.status_code for answer in await asyncio.gather(*asked))


async def new_project(owner: httpx2.AsyncClient) -> str:
    made = await ok(owner.post(PROJECTS, json={"name": "Raced"}))
    return f"{PROJECTS}/{made['id']}"


async def told(owner: httpx2.AsyncClient, type_: str, target: str) -> int:
    """How often the audit log says it of this target."""
    query = f"event_types[]={type_}&resource_ids[]={target}"
    return len((await ok(owner.get(f"/v1/organization/audit_logs?{query}")))["data"])


@pytest.mark.slow
async def test_changes_of_one_project_wait_for_each_other(owner: httpx2.AsyncClient) -> None:
    project = await new_project(owner)
    changes: list[tuple[str, dict[str, Any]]] = [
        ("", {"name": "Renamed"}),
        ("/model_permissions", {"mode": "deny_list", "model_ids": ["other"]}),
        ("/hosted_tool_permissions", {"mcp": {"enabled": False}}),
        ("/service_tier_settings", {"enabled_tiers": "all"}),
        ("/data_retention", {"retention_type": "none"}),
    ]
    asked = [owner.post(project + path, json=body) for path, body in changes * AT_ONCE]
    assert await statuses(*asked) == {200: len(asked)}


async def test_two_who_switch_tools_off_at_once_switch_both_off(owner: httpx2.AsyncClient) -> None:
    project = await new_project(owner)
    url = f"{project}/hosted_tool_permissions"
    on, off = {"enabled": True}, {"enabled": False}
    for _ in range(AT_ONCE):
        await ok(owner.post(url, json={"mcp": on, "web_search": on}))
        one, other = ({name: off} for name in ("mcp", "web_search"))
        await asyncio.gather(ok(owner.post(url, json=one)), ok(owner.post(url, json=other)))
        found = await ok(owner.get(url))
        assert (found["mcp"], found["web_search"]) == (off, off)


@pytest.mark.slow
async def test_an_issuer_that_is_disabled_is_not_enabled_by_who_renames_it(
    owner: httpx2.AsyncClient,
) -> None:
    body = {"name": "sso", "type": "oidc", "issuer": "https://raced.example", "audience": "a"}
    made = await ok(owner.post(PROVIDERS, json=body))
    url = f"{PROVIDERS}/{made['id']}"
    for number in range(AT_ONCE):
        await ok(owner.post(url, json={"enabled": True}))
        renamed = {"name": f"sso {number}"}
        await asyncio.gather(
            ok(owner.post(url, json=renamed)), ok(owner.post(url, json={"enabled": False}))
        )
        found = await ok(owner.get(url))
        assert (found["name"], found["enabled"]) == (renamed["name"], False)
    assert await statuses(*(owner.delete(url) for _ in range(AT_ONCE))) == {200: 1, 404: 4}


async def test_what_is_ended_several_times_at_once_has_ended_once(
    owner: httpx2.AsyncClient,
) -> None:
    project = await new_project(owner)
    account = await ok(owner.post(f"{project}/service_accounts", json={"name": "ci"}))
    key = account["api_key"]["id"]
    found = await statuses(*(owner.delete(f"{project}/api_keys/{key}") for _ in range(AT_ONCE)))
    assert found == {200: 1, 404: AT_ONCE - 1}
    url = f"{project}/service_accounts/{account['id']}"
    assert await statuses(*(owner.delete(url) for _ in range(AT_ONCE))) == {200: 1, 404: 4}
    archived = await statuses(*(owner.post(f"{project}/archive") for _ in range(AT_ONCE)))
    assert archived == {200: AT_ONCE}
    assert await told(owner, "api_key.deleted", key) == 1
    assert await told(owner, "service_account.deleted", account["id"]) == 1
    assert await told(owner, "project.archived", project.rpartition("/")[2]) == 1


async def test_nothing_of_an_archived_project_is_changed_any_more(
    owner: httpx2.AsyncClient,
) -> None:
    project = await new_project(owner)
    account = await ok(owner.post(f"{project}/service_accounts", json={"name": "ci"}))
    alert = await ok(owner.post(f"{project}/spend_alerts", json=ALERT))
    await ok(owner.post(f"{project}/archive"))
    month = {"currency": "USD", "interval": "month", "threshold_amount": 5}
    for path, body in (
        (f"/api_keys/{account['api_key']['id']}", {"scopes": ["models.read"]}),
        ("/rate_limits/rl-gpt-oss-20b", {"max_requests_per_1_minute": 5}),
        ("/spend_limit", month),
        ("/spend_alerts", ALERT),
        ("/spend_limit", None),
        (f"/spend_alerts/{alert['id']}", None),
    ):
        asked = (
            owner.delete(project + path) if body is None else owner.post(project + path, json=body)
        )
        answer = await asked
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "project_archived")


@pytest.mark.slow
async def test_no_more_alerts_are_made_at_once_than_there_may_be(
    owner: httpx2.AsyncClient, site: AdminSite
) -> None:
    project = await new_project(owner)
    database = site.gateway.process.foundation.database
    service, budgets = Limits(database), SpendLimits(database)
    place = await service.of_project(await service.tenant("acme"), project.rpartition("/")[2])
    for _ in range(ALERTS_MAX - 2):
        await budgets.add_alert(place, 1, ALERT["notification_channel"])
    url = f"{project}/spend_alerts"
    found = await statuses(*(owner.post(url, json=ALERT) for _ in range(AT_ONCE)))
    assert found == {200: 2, 400: AT_ONCE - 2}


async def test_an_alert_that_is_deleted_meanwhile_is_not_changed(owner: httpx2.AsyncClient) -> None:
    project = await new_project(owner)
    for _ in range(AT_ONCE):
        made = await ok(owner.post(f"{project}/spend_alerts", json=ALERT))
        url = f"{project}/spend_alerts/{made['id']}"
        changed, deleted = await asyncio.gather(owner.post(url, json=ALERT), owner.delete(url))
        assert deleted.status_code == 200
        if changed.status_code != 200:
            assert changed.status_code == 404
            assert changed.json()["error"]["code"] == "spend_alert_not_found"
        assert (await ok(owner.get(f"{project}/spend_alerts")))["data"] == []


async def test_the_value_and_the_mode_of_a_limit_are_changed_at_once(
    owner: httpx2.AsyncClient,
) -> None:
    project = await new_project(owner)
    url = f"{project}/rate_limits/rl-gpt-oss-20b"
    for at in range(AT_ONCE):
        await ok(
            owner.post(url, json={"max_requests_per_1_day": 1, "harmony": {"mode": "enforce"}})
        )
        value, mode = {"max_requests_per_1_day": 2 + at}, {"harmony": {"mode": "observe"}}
        assert await statuses(owner.post(url, json=value), owner.post(url, json=mode)) == {200: 2}
        listed = (await ok(owner.get(f"{project}/rate_limits")))["data"]
        (limit,) = (one for one in listed if one["model"] == "gpt-oss-20b")
        assert (limit["max_requests_per_1_day"], limit["harmony"]["mode"]) == (2 + at, "observe")


async def test_a_key_that_is_rotated_several_times_at_once_has_one_successor(
    owner: httpx2.AsyncClient,
) -> None:
    project = await new_project(owner)
    account = await ok(owner.post(f"{project}/service_accounts", json={"name": "ci"}))
    url = f"{project}/api_keys/{account['api_key']['id']}/rotate"
    assert await statuses(*(owner.post(url, json={}) for _ in range(AT_ONCE))) == {200: 1, 400: 4}
    assert len((await ok(owner.get(f"{project}/api_keys")))["data"]) == 2


@pytest.mark.slow
async def test_a_key_that_is_made_while_its_account_is_deleted_does_not_work(
    owner: httpx2.AsyncClient, site: AdminSite
) -> None:
    project = await new_project(owner)
    for _ in range(AT_ONCE):
        account = await ok(owner.post(f"{project}/service_accounts", json={"name": "ci"}))
        url = f"{project}/service_accounts/{account['id']}"
        answers = await asyncio.gather(
            *(owner.post(f"{url}/api_keys", json={}) for _ in range(AT_ONCE)), owner.delete(url)
        )
        for answer in answers[:-1]:
            assert answer.status_code in {200, 404}, answer.text
            if answer.status_code == 200:
                async with site.user(answer.json()["value"]) as user:
                    assert (await user.get("/v1/models")).status_code == 401
