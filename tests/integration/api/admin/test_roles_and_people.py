"""Roles, which are fixed, and what an organization here has none of, as OpenAI's SDK sees it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import openai
import pytest

from gateway.ids import project_id
from gateway.tenancy import ProjectId


async def every(pages: Any) -> list[Any]:
    return [one async for one in pages]


async def test_roles_are_predefined(admin: openai.AsyncOpenAI) -> None:
    organization = admin.admin.organization
    owner, reader = await every(organization.roles.list())
    assert (owner.name, reader.name) == ("owner", "reader")
    assert [one.id for one in await every(organization.roles.list(limit=1))] == [
        owner.id, reader.id,
    ]  # fmt: skip
    last = await organization.roles.list(limit=1, order="desc")
    assert [one.id for one in last.data] == [reader.id]
    assert owner.predefined_role
    assert set(reader.permissions) < set(owner.permissions)
    assert (await organization.roles.retrieve(owner.id)).name == "owner"
    project = (await organization.projects.create(name="roles")).id
    (member,) = await every(organization.projects.roles.list(project))
    assert member.resource_type == "api.project"
    with pytest.raises(openai.BadRequestError, match="predefined"):
        await organization.roles.create(role_name="mine", permissions=["projects.read"])
    with pytest.raises(openai.BadRequestError, match="predefined"):
        await organization.projects.roles.create(
            project, role_name="mine", permissions=["projects.read"]
        )
    with pytest.raises(openai.NotFoundError):
        await organization.roles.retrieve("role-nobody")


async def test_of_people_and_external_keys_there_are_none(admin: openai.AsyncOpenAI) -> None:
    organization = admin.admin.organization
    project = (await organization.projects.create(name="empty")).id
    for asked in (
        organization.users.list(),
        organization.users.retrieve("user-7"),
        organization.groups.create(name="admins"),
        organization.external_keys.list(),
        organization.projects.users.list(project),
    ):
        with pytest.raises(openai.NotFoundError, match="people sign in elsewhere") as refused:
            await asked
        assert refused.value.code == "unsupported_endpoint"


@pytest.mark.slow
async def test_another_tenant_s_project_is_not_there(
    admin: openai.AsyncOpenAI, other_admin: openai.AsyncOpenAI
) -> None:
    foreign = (await other_admin.admin.organization.projects.create(name="theirs")).id
    projects = admin.admin.organization.projects
    for unknown in (foreign, project_id(ProjectId(UUID(int=7)))):
        with pytest.raises(openai.NotFoundError, match="No project"):
            await every(projects.roles.list(unknown))
