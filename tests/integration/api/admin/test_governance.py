"""The audit log and data retention, driven by OpenAI's SDK; what a project that keeps nothing may
ask for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import openai
import pytest

from tests.fakes.gateway import new_key
from tests.fakes.http_client import http_client

if TYPE_CHECKING:
    from gateway.settings import Settings
    from tests.integration.api.admin.conftest import AdminSite

MODEL = "gpt-oss-20b"


@pytest.mark.slow
async def test_the_sdk_reads_the_audit_log_page_by_page(admin: openai.AsyncOpenAI) -> None:
    logs = admin.admin.organization.audit_logs
    made = [await admin.admin.organization.projects.create(name=f"audited {n}") for n in range(3)]
    listed = [
        entry.project_created.id
        async for entry in logs.list(limit=1, event_types=["project.created"])
        if entry.project_created is not None
    ]
    assert listed[:3] == [project.id for project in made[::-1]]
    page = await logs.list(resource_ids=[made[0].id], event_types=["project.created"])
    (entry,) = page.data
    assert entry.type == "project.created"
    assert entry.project_created is not None
    assert entry.project_created.id == made[0].id
    assert entry.actor is not None
    assert entry.actor.type == "api_key"
    assert entry.actor.api_key is not None
    by_key = await logs.list(actor_ids=[str(entry.actor.api_key.id)], limit=100)
    assert made[0].id in str(by_key.data)
    assert entry.effective_at is not None
    around = {"gte": entry.effective_at, "lte": entry.effective_at}
    assert entry.id in [
        one.id
        for one in (await logs.list(effective_at=around, limit=100)).data  # type: ignore[arg-type]
    ]
    assert (await logs.list(project_ids=["proj_unknown"])).data == []
    before = await logs.list(before=page.data[0].id, limit=2)
    assert all(str(one.id) != entry.id for one in before.data)


@pytest.mark.slow
@pytest.mark.parametrize(
    "query",
    [
        {"limit": 101},
        {"after": "audit_log-none"},
        {"event_types": ["tenant.policy.created"]},
        {"tenant_only": True},
        {"effective_at": {"gte": 10**18}},
    ],
)
async def test_what_the_audit_log_cannot_tell_is_refused(
    admin: openai.AsyncOpenAI, query: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError):
        await admin.admin.organization.audit_logs.list(**query)


@pytest.mark.slow
async def test_another_organization_sees_nothing_of_it(
    site: AdminSite, admin: openai.AsyncOpenAI
) -> None:
    project = await admin.admin.organization.projects.create(name="ours")
    async with site.client(site.other_admin_key) as other:
        theirs = other.admin.organization
        assert (await theirs.audit_logs.list(resource_ids=[project.id])).data == []
        for act in (
            theirs.projects.data_retention.retrieve(project.id),
            theirs.projects.data_retention.update(project.id, retention_type="none"),
        ):
            with pytest.raises(openai.NotFoundError):
                await act


@pytest.mark.slow
async def test_retention_of_projects_and_organizations(
    site: AdminSite, admin: openai.AsyncOpenAI
) -> None:
    async with site.client(site.other_admin_key) as other:
        theirs = other.admin.organization
        project = await theirs.projects.create(name="quiet")
        assert (await theirs.projects.data_retention.retrieve(project.id)).type == (
            "organization_default"
        )
        default = (await theirs.projects.list(limit=1)).data[0]
        changes: Any = {
            "limit": 100,
            "event_types": ["organization.updated"],
            "resource_ids": [default.id.replace("proj_", "org-")],
        }
        earlier = (await theirs.audit_logs.list(**changes)).data
        changed = await theirs.data_retention.update(retention_type="zero_data_retention")
        assert (changed.object, changed.type) == (
            "organization.data_retention", "zero_data_retention",
        )  # fmt: skip
        assert (await theirs.data_retention.retrieve()).type == "zero_data_retention"
        back: Any = "none"
        await theirs.data_retention.update(retention_type=back)
        assert (await theirs.audit_logs.list(**changes)).data[2:] == earlier
        updated = theirs.projects.data_retention.update
        assert (await updated(project.id, retention_type="zero_data_retention")).type == (
            "zero_data_retention"
        )
        for unsupported in ("modified_abuse_monitoring", "for ever"):
            with pytest.raises(openai.BadRequestError, match="retention_type"):
                await updated(project.id, retention_type=unsupported)  # type: ignore[arg-type]
        page = await theirs.audit_logs.list(resource_ids=[project.id])
        assert [entry.type for entry in page.data] == ["project.updated", "project.created"]
        assert page.data[0].project is not None
        assert page.data[0].project.name == "quiet"


@pytest.mark.slow
async def test_a_project_that_keeps_nothing(site: AdminSite, admin: openai.AsyncOpenAI) -> None:
    ours = admin.admin.organization
    project = await ours.projects.create(name="zero")
    await ours.projects.data_retention.update(project.id, retention_type="zero_data_retention")
    account = await ours.projects.service_accounts.create(project.id, name="ci")
    assert account.api_key is not None
    async with openai.AsyncOpenAI(
        api_key=account.api_key.value, base_url=f"{site.gateway.url}/v1", max_retries=0
    ) as client:
        made = await client.responses.create(model=MODEL, input="hello", store=True)
        assert made.model_dump()["store"] is False
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
        answer = await client.chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "user", "content": "hello"}], store=True
        )
        assert "x-gateway-response-id" not in answer.headers
        refused: list[dict[str, Any]] = [
            {"background": True},
            {"previous_response_id": made.id},
            {"conversation": f"conv_{32 * '0'}"},
            {"extra_headers": {"Idempotency-Key": "once"}},
            {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]},
        ]
        for fields in refused:
            with pytest.raises(openai.BadRequestError) as error:
                await client.responses.create(model=MODEL, input="hello", **fields)
            assert error.value.code == "zero_data_retention", fields
        for act in (
            client.conversations.create(),
            client.files.create(file=("a.txt", b"a"), purpose="user_data"),
            client.containers.create(name="a"),
        ):
            with pytest.raises(openai.BadRequestError) as error:
                await act
            assert error.value.code == "zero_data_retention"


async def test_an_upload_of_which_nothing_may_be_kept_is_not_received(
    site: AdminSite, admin: openai.AsyncOpenAI
) -> None:
    """A long one is received into a file: what is no form at all shows that nobody looked at it."""
    ours = admin.admin.organization
    project = await ours.projects.create(name="zero uploads")
    account = await ours.projects.service_accounts.create(project.id, name="ci")
    assert account.api_key is not None
    headers = {
        "authorization": f"Bearer {account.api_key.value}",
        "content-type": "multipart/form-data; boundary=x",
    }
    async with http_client(f"{site.gateway.url}/v1/", headers=headers) as client:
        made = await client.post(
            "containers", json={"name": "a"}, headers={"content-type": "application/json"}
        )
        places = ("files", f"containers/{made.json()['id']}/files")
        for place in places:
            answer = await client.post(place, content=b"no form")
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_form")
        nothing: Literal["zero_data_retention"] = "zero_data_retention"
        await ours.projects.data_retention.update(project.id, retention_type=nothing)
        for place in places:
            answer = await client.post(place, content=b"no form")
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, nothing)


@pytest.mark.slow
async def test_what_was_stored_before_is_read_and_deleted_and_nothing_is_added(
    site: AdminSite, admin: openai.AsyncOpenAI
) -> None:
    ours = admin.admin.organization
    project = await ours.projects.create(name="zero from now on")
    account = await ours.projects.service_accounts.create(project.id, name="ci")
    assert account.api_key is not None
    async with openai.AsyncOpenAI(
        api_key=account.api_key.value, base_url=f"{site.gateway.url}/v1", max_retries=0
    ) as client:
        said: Any = {"type": "message", "role": "user", "content": "hello"}
        talk = await client.conversations.create(items=[said], metadata={"a": "b"})
        container = await client.containers.create(name="a")
        file = await client.files.create(file=("b.txt", b"b"), purpose="user_data")
        await ours.projects.data_retention.update(project.id, retention_type="zero_data_retention")
        upload = ("a.txt", b"a")
        for act in (
            client.conversations.update(talk.id, metadata={"a": "c"}),
            client.conversations.items.create(talk.id, items=[said]),
            client.containers.files.create(container.id, file=upload),
            client.containers.files.create(container.id, file_id=file.id),
        ):
            with pytest.raises(openai.BadRequestError) as error:
                await act
            assert error.value.code == "zero_data_retention"
        assert (await client.conversations.retrieve(talk.id)).metadata == {"a": "b"}
        assert len((await client.conversations.items.list(talk.id)).data) == 1
        assert (await client.containers.files.list(container.id)).data == []
        await client.containers.delete(container.id)
        await client.conversations.delete(talk.id)
        # Back again, and as its organization.
        await ours.projects.data_retention.update(project.id, retention_type="organization_default")
        assert (await client.conversations.create()).id.startswith("conv_")


@pytest.mark.slow
async def test_the_default_project_has_a_type_of_its_own(
    site: AdminSite, admin: openai.AsyncOpenAI
) -> None:
    async with site.client(site.other_admin_key) as other:
        projects = other.admin.organization.projects
        (default,) = [one async for one in projects.list() if one.name == "Default project"]
        for wanted in ("zero_data_retention", "none", "organization_default"):
            await projects.data_retention.update(default.id, retention_type=wanted)
            assert (await projects.data_retention.retrieve(default.id)).type == wanted


@pytest.mark.slow
async def test_what_an_organization_decides_counts_for_the_next_request_here(
    site: AdminSite, admin_settings: Settings
) -> None:
    key = await new_key(admin_settings, "globex")
    async with site.client(site.other_admin_key) as other, site.user(key) as user:
        for wanted, stored in (("none", True), ("zero_data_retention", False), ("none", True)):
            controls: Any = other.admin.organization.data_retention
            await controls.update(retention_type=wanted)
            made = await user.post("/v1/responses", json={"model": MODEL, "input": "hello"})
            assert (made.status_code, made.json()["store"]) == (200, stored)
