"""What was generated through the data plane is in the reports of the admin plane at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import openai
import pytest

from tests.fakes.gateway import new_key

if TYPE_CHECKING:
    from gateway.settings import Settings
    from tests.integration.api.admin.conftest import AdminSite


@pytest.mark.slow
async def test_a_response_is_in_the_report_of_its_tenant_alone(
    site: AdminSite, admin_settings: Settings
) -> None:
    key = await new_key(admin_settings, "acme")
    start = int(time.time()) - 60
    async with openai.AsyncOpenAI(api_key=key, base_url=f"{site.gateway.url}/v1") as client:
        said = await client.responses.create(
            model="gpt-oss-20b", input="Say hello", service_tier="flex"
        )
    assert said.usage is not None
    told: dict[str, set[tuple[int, int]]] = {}
    for admin_key in (site.admin_key, site.other_admin_key):
        async with site.client(admin_key) as admin:
            page = await admin.admin.organization.usage.completions(
                start_time=start, group_by=["api_key_id", "service_tier"]
            )
        results = [result.model_dump() for bucket in page.data for result in bucket.results]
        told[admin_key] = {
            (result["input_tokens"], result["output_tokens"])
            for result in results
            if result["service_tier"] == "flex"
        }
    used = (said.usage.input_tokens, said.usage.output_tokens)
    assert used in told[site.admin_key]
    assert told[site.other_admin_key] == set()


@pytest.mark.slow
async def test_a_project_key_may_not_ask(site: AdminSite, admin_settings: Settings) -> None:
    async with site.client(await new_key(admin_settings, "acme")) as client:
        with pytest.raises((openai.PermissionDeniedError, openai.AuthenticationError)):
            await client.admin.organization.usage.completions(start_time=0)
