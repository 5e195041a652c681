"""A tenant may let its projects see what others of them stored: one wall around all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gateway.audit import COMMAND_LINE
from tests.fakes.gateway import new_key
from tests.integration.api.admin.test_matrix import new_project, ok

if TYPE_CHECKING:
    from gateway.settings import Settings
    from tests.integration.api.admin.conftest import AdminSite

MODEL = "gpt-oss-20b"


@pytest.mark.slow
async def test_projects_that_share_responses_have_one_wall(
    site: AdminSite, admin_settings: Settings
) -> None:
    tenants = site.gateway.tenants
    admin_key = await new_key(admin_settings, "sharing", kind="admin")
    async with site.client(admin_key) as admin:
        first, second = [await new_project(admin, name) for name in ("first", "second")]
        projects = [one.id async for one in admin.admin.organization.projects.list()]
    assert len(projects) == 3
    other = await new_key(admin_settings, "globex")
    async with site.user(first) as owner, site.user(second) as peer, site.user(other) as stranger:
        asked: dict[str, Any] = {"model": MODEL, "input": "x"}
        made = await ok(await owner.post("/v1/responses", json=asked))
        talk = await ok(await owner.post("/v1/conversations", json={}))
        file = await ok(
            await owner.post(
                "/v1/files", data={"purpose": "user_data"}, files={"file": ("a.txt", b"x")}
            )
        )
        response = f"/v1/responses/{made['id']}"
        conversation = f"/v1/conversations/{talk['id']}"
        followed = {**asked, "previous_response_id": made["id"]}
        spoken = {**asked, "conversation": talk["id"]}

        async def sees(user: Any) -> list[int]:
            answers = [
                await user.get(response),
                await user.get(f"{response}/input_items"),
                await user.get(f"{response}?stream=true"),
                await user.get(conversation),
                await user.post("/v1/responses", json=followed),
                await user.post("/v1/responses", json=spoken),
            ]
            return [answer.status_code for answer in answers]

        apart = [404, 404, 404, 404, 400, 404]
        assert await sees(peer) == apart
        await tenants.set_policy(COMMAND_LINE, "sharing", {"projects_share_responses": "allowed"})
        # A response that was not made in the background has no log to be streamed from.
        together = [200, 200, 400, 200, 200, 200]
        assert await sees(peer) == together
        assert await sees(owner) == together
        assert await sees(stranger) == apart
        assert (await peer.get(f"/v1/files/{file['id']}")).status_code == 404
        # Both have said something in the conversation, which one of them made.
        items = (await ok(await owner.get(f"{conversation}/items")))["data"]
        assert [one["role"] for one in items if one.get("role") == "user"] == ["user"] * 2
        mine = await ok(await peer.post("/v1/responses", json=followed))
        await tenants.set_policy(COMMAND_LINE, "sharing", {"projects_share_responses": None})
        assert (await owner.get(f"/v1/responses/{mine['id']}")).status_code == 404
        assert (await peer.get(f"/v1/responses/{mine['id']}")).status_code == 200
        assert await sees(peer) == apart
        await tenants.set_policy(COMMAND_LINE, "sharing", {"projects_share_responses": "allowed"})
        assert (await peer.delete(response)).status_code == 200
        assert (await owner.get(response)).status_code == 404
