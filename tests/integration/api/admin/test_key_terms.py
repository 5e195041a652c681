"""What a key may do: until when, from where, for which models, of which project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai
import pytest

from gateway import ids
from gateway.admin.limits import LimitOwner, Limits
from gateway.admin.spend_limits import SpendLimits
from gateway.audit import COMMAND_LINE
from gateway.services.access import Access
from gateway.store import tenants
from gateway.store.postgres.database import Database
from gateway.store.postgres.statements import Statement
from tests.fakes.gateway import PEPPER, tenants_of
from tests.fakes.http_client import http_client

if TYPE_CHECKING:
    from tests.integration.api.admin.conftest import AdminSite


async def made(admin: openai.AsyncOpenAI, name: str, **harmony: Any) -> Any:
    """A service account of a new project, with a key of these terms."""
    projects = admin.admin.organization.projects
    project = await projects.create(name=name)
    account = await projects.service_accounts.create(
        project.id, name="ci", extra_body={"harmony": harmony}
    )
    assert account.api_key is not None
    return project, account.api_key


async def test_a_key_is_refused_from_elsewhere(admin: openai.AsyncOpenAI, site: AdminSite) -> None:
    _, key = await made(admin, "With networks", allowed_cidrs=["198.51.100.0/24"])
    async with site.user(key.value) as user:
        for forwarded, status in (
            ("198.51.100.7", 200),
            ("203.0.113.9, 198.51.100.7", 200),
            ("198.51.100.7, 203.0.113.9", 401),
            ("nonsense", 401),
            (None, 401),
        ):
            headers = {} if forwarded is None else {"x-forwarded-for": forwarded}
            answer = await user.get("/v1/models", headers=headers)
            assert answer.status_code == status, forwarded
            if status == 401:
                assert answer.json()["error"]["code"] == "ip_not_authorized"


async def test_a_key_asks_for_its_own_models_alone(
    admin: openai.AsyncOpenAI, site: AdminSite
) -> None:
    _, key = await made(admin, "One model", allowed_models=["gpt-oss-120b"])
    async with site.user(key.value) as user:
        assert (await user.get("/v1/models")).json()["data"] == []
        answer = await user.post("/v1/responses", json={"model": "gpt-oss-20b", "input": "hi"})
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
        told = (await user.get("/v1/key")).json()["data"]["harmony"]
        assert told["allowed_models"] == ["gpt-oss-120b"]


@pytest.mark.slow
async def test_a_key_is_made_with_its_limits(admin: openai.AsyncOpenAI, site: AdminSite) -> None:
    limits = {"max_requests_per_1_minute": 2, "max_concurrent_responses": 3}
    project, key = await made(admin, "Limited", limits=limits)
    body = {"model": "gpt-oss-20b", "input": "[[sim say=ok]]", "store": False}
    async with site.user(key.value) as user:
        told = (await user.get("/v1/key")).json()["data"]["harmony"]["limits"]
        answers = [await user.post("/v1/responses", json=body) for _ in range(3)]
    assert {(one["what"], one["limit"]) for one in told} == {("requests", 2), ("responses", 3)}
    assert [one.status_code for one in answers] == [200, 200, 429]
    accounts = admin.admin.organization.projects.service_accounts
    account = (await accounts.list(project.id)).data[0]
    seen = {"harmony": {"limits": {"max_requests_per_1_minute": 0, "mode": "observe"}}}
    watched = await accounts.api_keys.create(account.id, project_id=project.id, extra_body=seen)
    async with site.user(watched.value) as user:
        assert (await user.post("/v1/responses", json=body)).status_code == 200


async def test_limits_of_a_key_are_within_those_of_its_project_or_it_is_not_made(
    admin: openai.AsyncOpenAI, site: AdminSite
) -> None:
    project, _ = await made(admin, "Around")
    projects = admin.admin.organization.projects
    await projects.rate_limits.update_rate_limit(
        "rl-*", project_id=project.id, max_requests_per_1_minute=5
    )
    for limits, param in (
        ({"max_requests_per_1_minute": 6}, "requests"),
        ({"max_stored_bytes": 1}, "stored_bytes"),
        ({"max_images": 1}, "harmony.limits.max_images"),  # nothing that restricts is ignored
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await projects.service_accounts.create(
                project.id, name="more", extra_body={"harmony": {"limits": limits}}
            )
        assert refused.value.param == param
    names = [one.name async for one in projects.service_accounts.list(project.id)]
    assert names == ["ci"]


async def test_a_key_is_told_what_it_is(admin: openai.AsyncOpenAI, site: AdminSite) -> None:
    project, key = await made(admin, "Told")
    async with site.user(key.value) as user:
        told = (await user.get("/v1/key")).json()["data"]
    assert told["label"] == key.id
    assert not told["is_management_key"]
    assert told["harmony"]["project_id"] == project.id
    assert told["harmony"]["project_name"] == "Told"


@pytest.mark.parametrize(
    ("header", "code"),
    [("OpenAI-Project", "mismatched_project"), ("OpenAI-Organization", "mismatched_organization")],
)
async def test_headers_that_name_another_are_refused(
    admin: openai.AsyncOpenAI, site: AdminSite, header: str, code: str
) -> None:
    project, key = await made(admin, "Named")
    async with site.user(key.value) as user:
        harmony = (await user.get("/v1/key")).json()["data"]["harmony"]
        own = project.id if header == "OpenAI-Project" else harmony["organization_id"]
        assert (await user.get("/v1/models", headers={header: own})).status_code == 200
        answer = await user.get("/v1/models", headers={header: "proj_other"})
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == code


async def test_a_rotated_key_goes_on_beside_the_new_one(
    admin: openai.AsyncOpenAI, site: AdminSite
) -> None:
    project, key = await made(admin, "Rotated", allowed_models=["gpt-oss-*"])
    answer = await rotated(site, project.id, key.id, overlap_seconds=3600)
    for secret in (key.value, answer["value"]):
        async with site.user(secret) as user:
            assert (await user.get("/v1/models")).status_code == 200
    assert answer["harmony"]["allowed_models"] == ["gpt-oss-*"]
    keys = admin.admin.organization.projects.api_keys
    old: Any = await keys.retrieve(key.id, project_id=project.id)
    assert old.model_extra["harmony"]["replaced_by"] == answer["id"]
    assert old.expires_at is not None
    again = await rotated(site, project.id, answer["id"], overlap_seconds=0)
    async with site.user(answer["value"]) as user:
        assert (await user.get("/v1/models")).status_code == 401
    async with site.user(again["value"]) as user:
        assert (await user.get("/v1/models")).status_code == 200


@pytest.mark.slow
async def test_a_rotated_key_has_the_lifetime_and_the_limits_of_the_one_before(
    admin: openai.AsyncOpenAI, site: AdminSite
) -> None:
    project, key = await made(admin, "Kept")
    keys = admin.admin.organization.projects.api_keys
    short = await keys.update(key.id, project_id=project.id, expires_in_seconds=3600)
    assert short.expires_at is not None
    database = site.gateway.process.foundation.database
    owner = await tenants.tenant_named(database, "acme")
    uuid = ids.parse_api_key_id(key.id)
    assert uuid is not None
    place = LimitOwner(owner.id, "key", uuid)
    await Limits(database).set_limits(place, {("requests", 60): 2})
    first = await rotated(site, project.id, key.id, overlap_seconds=3600)
    second = await rotated(site, project.id, first["id"], overlap_seconds=0)
    assert abs(second["expires_at"] - short.expires_at) < 60
    body = {"model": "gpt-oss-20b", "input": "[[sim say=ok]]", "store": False}
    statuses = []
    for secret in (key.value, second["value"], second["value"]):
        async with site.user(secret) as user:
            statuses.append((await user.post("/v1/responses", json=body)).status_code)
    assert statuses == [200, 200, 429]
    with pytest.raises(openai.BadRequestError, match="has been replaced"):
        await keys.update(key.id, project_id=project.id, expires_in_seconds=7200)
    await admin.admin.organization.projects.archive(project.id)
    headers = {"authorization": f"Bearer {site.admin_key}"}
    async with http_client(site.admin_url, headers=headers) as client:
        path = f"/v1/organization/projects/{project.id}/api_keys/{second['id']}/rotate"
        assert (await client.post(path, json={})).status_code == 400


@pytest.mark.slow
async def test_what_is_set_for_a_rotated_key_takes_the_place_of_what_it_had(
    admin: openai.AsyncOpenAI, site: AdminSite
) -> None:
    project, key = await made(admin, "Raised")
    database = site.gateway.process.foundation.database
    service, budgets = Limits(database), SpendLimits(database)
    tenant = await service.tenant("acme")

    async def place_of(key_id: str) -> LimitOwner:
        uuid = ids.parse_api_key_id(key_id)
        assert uuid is not None
        return await service.key(tenant, uuid)

    async def bound(secret: str) -> tuple[list[int], list[int]]:
        site.gateway.process.access.forget()
        async with site.user(secret) as user:
            told = (await user.get("/v1/key")).json()["data"]["harmony"]
        limits, budgets = told["limits"], told["budgets"]
        return [one["limit"] for one in limits], [one["limit"] for one in budgets]

    place = await place_of(key.id)
    await service.set_limits(place, {("requests", 60): 10})
    await budgets.set_budget(place, 100, unit="tokens")
    first = await rotated(site, project.id, key.id, overlap_seconds=3600)
    second = await rotated(site, project.id, first["id"], overlap_seconds=3600)
    place = await place_of(second["id"])
    await service.set_limits(place, {("requests", 60): 100})
    await budgets.set_budget(place, 1000, unit="tokens")
    for secret in (key.value, first["value"], second["value"]):
        assert await bound(secret) == ([100], [1000])
    await service.set_limits(place, {("requests", 60): None})
    assert await budgets.remove_budget(place, "tokens", "month")
    assert await bound(second["value"]) == ([], [])


async def rotated(site: AdminSite, project: str, key: str, **body: int) -> Any:
    """What OpenAI's SDK has no method for."""
    headers = {"authorization": f"Bearer {site.admin_key}"}
    async with http_client(site.admin_url, headers=headers) as client:
        path = f"/v1/organization/projects/{project}/api_keys/{key}/rotate"
        answer = await client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


async def test_a_key_that_has_expired_is_as_good_as_none(
    admin: openai.AsyncOpenAI, site: AdminSite
) -> None:
    _, key = await made(admin, "Expired")
    async with site.user(key.value) as user:
        assert (await user.get("/v1/models")).status_code == 200
        database = site.gateway.process.foundation.database
        async with database.owner_transaction() as connection:
            uuid = ids.parse_api_key_id(key.id)
            await connection.execute(
                Statement("UPDATE api_keys SET expires_at = now() WHERE id = :id"), {"id": uuid}
            )
        site.gateway.process.access.forget()
        expired = await user.get("/v1/models")
    async with site.user("sk-proj-nonsense") as user:
        mistyped = await user.get("/v1/models")
    codes = {answer.json()["error"]["code"] for answer in (expired, mistyped)}
    assert (expired.status_code, mistyped.status_code, codes) == (401, 401, {"invalid_api_key"})


async def test_when_a_key_was_used_is_written_down(
    admin: openai.AsyncOpenAI, site: AdminSite
) -> None:
    project, key = await made(admin, "Used")
    keys = admin.admin.organization.projects.api_keys
    assert (await keys.retrieve(key.id, project_id=project.id)).last_used_at is None
    async with site.user(key.value) as user:
        await user.get("/v1/models")
    await site.gateway.process.access.uses.flush()
    used = (await keys.retrieve(key.id, project_id=project.id)).last_used_at
    assert used is not None


async def test_keys_outlive_their_pepper_and_are_hashed_again(database_url: str) -> None:
    database = Database(database_url, pool_size_max=2, command_timeout_s=30, connect_timeout_s=30)

    def known(pepper: str, previous: str | None = None) -> Access:
        before = None if previous is None else previous.encode()
        return Access(database, pepper.encode(), 5, 100, previous_pepper=before)

    old = tenants_of(database, known(PEPPER))
    await old.create(COMMAND_LINE, "acme")
    key, secret = await old.create_key(COMMAND_LINE, "acme", "laptop")
    between = known("another pepper", PEPPER)
    assert (await between.authenticate(secret)).key_id == key.id
    await between.uses.flush()
    after = known("another pepper")
    assert (await after.authenticate(secret)).key_id == key.id
    await database.close()


async def test_what_was_changed_is_in_the_audit_log(
    admin: openai.AsyncOpenAI, site: AdminSite
) -> None:
    project, key = await made(admin, "Audited")
    projects = admin.admin.organization.projects
    await projects.update(project.id, name="Audited again")
    await projects.api_keys.delete(key.id, project_id=project.id)
    await projects.archive(project.id)
    database = site.gateway.process.foundation.database
    found = Statement(
        "SELECT type, target, actor, request_id FROM audit_log"
        " WHERE project_id = :id ORDER BY number"
    )
    async with database.owner_transaction() as connection:
        rows = await connection.execute(found, {"id": ids.parse_project_id(project.id)})
    assert [row.type for row in rows] == [
        *("project.created", "service_account.created", "api_key.created", "project.updated"),
        *("api_key.deleted", "project.archived"),
    ]
    assert {rows[2].target, rows[4].target} == {key.id}
    assert b'"kind":"api_key"' in rows[0].actor
    assert all(row.request_id.startswith("req_") for row in rows)
    assert not any(key.value in str(tuple(row)) for row in rows)
