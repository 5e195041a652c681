"""OpenAI's SDK drives the admin API: `client.admin`, whose types are what it is held against."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import openai
import pytest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.api.admin.conftest import AdminSite

    Ask = Callable[[Any, str, str, str], Awaitable[object]]


def extra(shown: Any) -> Any:
    """The fields that the SDK does not know: it keeps them."""
    return shown.model_extra


@pytest.mark.slow
async def test_projects_are_made_listed_renamed_and_archived(admin: openai.AsyncOpenAI) -> None:
    projects = admin.admin.organization.projects
    made = await projects.create(name="Support bot")
    assert (made.object, made.name, made.status) == (
        "organization.project", "Support bot", "active",
    )  # fmt: skip
    assert made.id.startswith("proj_")
    assert (await projects.retrieve(made.id)).id == made.id
    assert (await projects.update(made.id, name="Help bot")).name == "Help bot"
    assert made.id in [one.id async for one in projects.list(limit=2)]
    archived = await projects.archive(made.id)
    assert archived.status == "archived"
    assert archived.archived_at is not None
    assert made.id not in [one.id async for one in projects.list(limit=100)]
    assert made.id in [one.id async for one in projects.list(limit=2, include_archived=True)]


async def test_every_tenant_has_a_default_project(admin: openai.AsyncOpenAI) -> None:
    projects = admin.admin.organization.projects
    found = [one async for one in projects.list() if extra(one)["harmony"]["is_default"]]
    (default,) = found
    assert default.name == "Default project"
    with pytest.raises(openai.BadRequestError, match="cannot be archived"):
        await projects.archive(default.id)


@pytest.mark.slow
async def test_a_list_goes_on_until_its_end(admin: openai.AsyncOpenAI) -> None:
    projects = admin.admin.organization.projects
    made = [(await projects.create(name=f"page {at}")).id for at in range(5)]
    page = await projects.list(limit=2)
    assert page.has_more
    assert extra(page)["first_id"] == page.data[0].id
    assert page.last_id == page.data[-1].id
    listed = [one.id async for one in projects.list(limit=2)]
    assert len(set(listed)) == len(listed)
    assert [one for one in listed if one in made] == made


async def test_a_list_goes_on_behind_what_was_deleted_meanwhile(admin: openai.AsyncOpenAI) -> None:
    projects = admin.admin.organization.projects
    project = await projects.create(name="To be emptied")
    accounts, keys = projects.service_accounts, projects.api_keys
    for at in range(3):
        await accounts.create(project.id, name=f"machine {at}")
    async for key in keys.list(project.id, limit=1):
        await keys.delete(key.id, project_id=project.id)
    async for account in accounts.list(project.id, limit=1):
        await accounts.delete(account.id, project_id=project.id)
    assert [one async for one in keys.list(project.id)] == []
    assert [one async for one in accounts.list(project.id)] == []


async def test_a_service_account_comes_with_a_key_that_works(
    admin: openai.AsyncOpenAI, site: AdminSite
) -> None:
    projects = admin.admin.organization.projects
    project = await projects.create(name="With a machine")
    accounts = projects.service_accounts
    made = await accounts.create(project.id, name="ci")
    assert (made.object, made.name, made.role) == (
        "organization.project.service_account", "ci", "member",
    )  # fmt: skip
    assert made.api_key is not None
    assert made.api_key.object == "organization.project.service_account.api_key"
    assert made.api_key.value.startswith("sk-proj-")
    async with site.user(made.api_key.value) as user:
        assert (await user.get("/v1/models")).status_code == 200
    bare = await accounts.create(project.id, name="bare", create_service_account_only=True)
    assert (bare.role, bare.api_key) == ("none", None)
    changed = await accounts.update(bare.id, project_id=project.id, name="dressed", role="owner")
    assert (changed.name, changed.role) == ("dressed", "owner")
    found = await accounts.retrieve(made.id, project_id=project.id)
    assert (found.id, found.role) == (made.id, "member")
    assert [one.id async for one in accounts.list(project.id, limit=1)] == [made.id, bare.id]
    gone = await accounts.delete(made.id, project_id=project.id)
    assert (gone.id, gone.deleted) == (made.id, True)
    async with site.user(made.api_key.value) as user:
        assert (await user.get("/v1/models")).status_code == 401


@pytest.mark.slow
async def test_keys_of_a_project_are_listed_narrowed_and_deleted(
    admin: openai.AsyncOpenAI, site: AdminSite
) -> None:
    projects = admin.admin.organization.projects
    project = await projects.create(name="With keys")
    account = await projects.service_accounts.create(project.id, name="ci")
    assert account.api_key is not None
    made = await projects.service_accounts.api_keys.create(
        account.id, project_id=project.id, name="reader", scopes=["api.all.read"],
        expires_in_seconds=3600,
    )  # fmt: skip
    assert made.expires_at is not None
    assert 3500 < made.expires_at - time.time() < 3700
    keys = projects.api_keys
    listed = [one async for one in keys.list(project.id, limit=1)]
    assert [one.id for one in listed] == [account.api_key.id, made.id]
    assert listed[1].redacted_value == f"sk-proj-***{made.value[-4:]}"
    assert listed[1].owner.type == "service_account"
    assert listed[1].owner.service_account is not None
    assert listed[1].owner.service_account.id == account.id
    assert [one async for one in keys.list(project.id, owner_project_access="inactive")] == []
    async with site.user(made.value) as user:
        assert (await user.get("/v1/models")).status_code == 200
        refused = await user.post("/v1/responses", json={"model": "gpt-oss-20b", "input": "hi"})
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "insufficient_permissions"
        changed = await keys.update(made.id, project_id=project.id, scopes=[])
        assert extra(changed)["harmony"]["scopes"] == []
        answered = await user.post("/v1/responses", json={"model": "gpt-oss-20b", "input": "hi"})
        assert answered.status_code == 200
        gone = await keys.delete(made.id, project_id=project.id)
        assert (gone.object, gone.deleted) == ("organization.project.api_key.deleted", True)
        assert (await user.get("/v1/models")).status_code == 401
    with pytest.raises(openai.NotFoundError):
        await keys.retrieve(made.id, project_id=project.id)


@pytest.mark.slow
async def test_admin_keys_are_made_used_and_deleted(
    admin: openai.AsyncOpenAI, site: AdminSite
) -> None:
    keys = admin.admin.organization.admin_api_keys
    made = await keys.create(name="second", expires_in_seconds=3600)
    assert (made.object, made.name) == ("organization.admin_api_key", "second")
    assert made.owner.role == "owner"
    async with site.client(made.value) as second:
        project = await second.admin.organization.projects.create(name="by the second")
        assert project.status == "active"
    assert made.id in [one.id async for one in keys.list(limit=1)]
    newest = await keys.list(limit=1, order="desc")
    assert [one.id for one in newest.data] == [made.id]
    assert (await keys.retrieve(made.id)).redacted_value == f"sk-admin-***{made.value[-4:]}"
    gone = await keys.delete(made.id)
    assert (gone.object, gone.deleted) == ("organization.admin_api_key.deleted", True)
    async with site.client(made.value) as second:
        with pytest.raises(openai.AuthenticationError):
            await second.admin.organization.admin_api_keys.list()


@pytest.mark.slow
async def test_a_project_s_models_are_all_that_its_keys_see(
    admin: openai.AsyncOpenAI, site: AdminSite
) -> None:
    projects = admin.admin.organization.projects
    project = await projects.create(name="Other models")
    account = await projects.service_accounts.create(project.id, name="ci")
    assert account.api_key is not None
    permissions = projects.model_permissions
    free = await permissions.retrieve(project.id)
    assert (free.mode, free.api_model_ids) == ("deny_list", [])
    async with site.user(account.api_key.value) as user:
        for mode, models, is_allowed in (
            ("deny_list", ["gpt-oss-20b"], False),
            ("allow_list", ["gpt-oss-*"], True),
            ("allow_list", ["other"], False),
        ):
            told = await permissions.update(project.id, mode=mode, model_ids=models)  # type: ignore[arg-type]
            assert (told.mode, told.api_model_ids) == (mode, models)
            listed = (await user.get("/v1/models")).json()["data"]
            assert ("gpt-oss-20b" in {one["id"] for one in listed}) == is_allowed
            asked = {"model": "gpt-oss-20b", "input": "hi"}
            answer = await user.post("/v1/responses", json=asked)
            assert answer.status_code == (200 if is_allowed else 404)
            if not is_allowed:
                assert answer.json()["error"]["code"] == "model_not_found"
        gone = await permissions.delete(project.id)
        assert (gone.object, gone.deleted) == ("project.model_permissions.deleted", True)
        assert (await user.get("/v1/models")).json()["data"]


ASKED: dict[str, Ask] = {
    "projects.retrieve": lambda of, project, account, key: of.projects.retrieve(project),
    "projects.update": lambda of, project, account, key: of.projects.update(project, name="x"),
    "projects.archive": lambda of, project, account, key: of.projects.archive(project),
    "accounts.create": lambda of, project, account, key: of.projects.service_accounts.create(
        project, name="x"
    ),
    "accounts.list": lambda of, project, account, key: of.projects.service_accounts.list(project),
    "accounts.retrieve": lambda of, project, account, key: of.projects.service_accounts.retrieve(
        account, project_id=project
    ),
    "accounts.update": lambda of, project, account, key: of.projects.service_accounts.update(
        account, project_id=project, name="x"
    ),
    "accounts.delete": lambda of, project, account, key: of.projects.service_accounts.delete(
        account, project_id=project
    ),
    "accounts.keys": lambda of, project, account, key: of.projects.service_accounts.api_keys.create(
        account, project_id=project
    ),
    "keys.list": lambda of, project, account, key: of.projects.api_keys.list(project),
    "keys.retrieve": lambda of, project, account, key: of.projects.api_keys.retrieve(
        key, project_id=project
    ),
    "keys.update": lambda of, project, account, key: of.projects.api_keys.update(
        key, project_id=project, scopes=[]
    ),
    "keys.delete": lambda of, project, account, key: of.projects.api_keys.delete(
        key, project_id=project
    ),
    "models.retrieve": lambda of, project, account, key: of.projects.model_permissions.retrieve(
        project
    ),
    "models.update": lambda of, project, account, key: of.projects.model_permissions.update(
        project, mode="allow_list", model_ids=["x"]
    ),
    "models.delete": lambda of, project, account, key: of.projects.model_permissions.delete(
        project
    ),
    "admin_keys.retrieve": lambda of, project, account, key: of.admin_api_keys.retrieve(key),
    "admin_keys.delete": lambda of, project, account, key: of.admin_api_keys.delete(key),
}


@pytest.mark.slow
@pytest.mark.parametrize("operation", sorted(ASKED))
async def test_a_foreign_id_is_answered_as_an_unknown_one(
    admin: openai.AsyncOpenAI, other_admin: openai.AsyncOpenAI, operation: str
) -> None:
    projects = admin.admin.organization.projects
    project = await projects.create(name="Mine")
    account = await projects.service_accounts.create(project.id, name="mine")
    assert account.api_key is not None
    key = account.api_key.id
    own = [project.id, account.id, key]
    unknown = [f"{one[:-32]}{'0' * 32}" for one in own]
    malformed = ["proj_nonsense", "%2e%2e", "\U0001f600"]
    told = []
    for given in (own, unknown, malformed):
        with pytest.raises(openai.NotFoundError) as caught:
            await ASKED[operation](other_admin.admin.organization, *given)
        body: Any = caught.value.body
        told.append((body["code"], body["type"], body["param"]))
    assert told[0] == told[1]
    assert (await projects.retrieve(project.id)).status == "active"
    assert [one.id async for one in projects.api_keys.list(project.id)] == [key]
