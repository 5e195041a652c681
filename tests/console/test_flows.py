"""Ways of an operator through the console in a browser, each from its first page to its last."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from playwright.async_api import expect

from tests.console.chromium import NEEDS_CHROMIUM, sign_in, visit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2
    from playwright.async_api import Browser, Page

    from tests.console.chromium import Visit
    from tests.console.showcase import Showcase

pytestmark = NEEDS_CHROMIUM
MODEL: Final = "gpt-oss-20b"
SLOW: Final = "[[sim think=none tokens=4000 tokens_per_s=20]] Count the waves."
MALFORMED: Final = "[[sim think=none attack=header times=1 say=Hello!]] Hi"
NONSENSE: Final = "<|channel|>commentary to=functions.to=functions json code"
RULE: Final = "header_not_understood"
"""The model's first header is nonsense; asked again, it answers as it should."""


@pytest.fixture
async def tab(browser: Browser, shown: Showcase) -> AsyncIterator[Visit]:
    async with visit(browser) as visited:
        await sign_in(visited, await shown.login_url())
        yield visited
        await visited.check()


async def create_tenant(page: Page, name: str, project: str) -> str:
    """Create a tenant with a project; returns the secret of a new key."""
    await page.get_by_role("link", name="Tenants").click()
    await page.get_by_role("textbox", name="New tenant").fill(name)
    await page.get_by_role("button", name="Create").click()
    # Its answers may be read by operators.
    await page.get_by_label("Value").select_option("operator_content_access")
    await page.get_by_role("textbox", name="Set to").fill("always")
    await page.get_by_role("button", name="Set", exact=True).click()
    await page.get_by_role("textbox", name="New project").fill(project)
    await page.get_by_role("form", name="New project").get_by_role("button").click()
    await page.get_by_role("textbox", name="New key for").fill("deep-diver")
    await page.get_by_role("button", name="Create key").click()
    return await page.locator("#secret").inner_text()


@asynccontextmanager
async def streaming(client: httpx2.AsyncClient, **fields: Any) -> AsyncIterator[None]:
    """A stream that is read as long as this is open."""

    async def read() -> None:
        body = {"model": MODEL, "stream": True, **fields}
        async with client.stream("POST", "/v1/responses", json=body) as answer:
            assert answer.status_code == 200
            async for _ in answer.aiter_raw():
                pass

    reading = asyncio.create_task(read())
    try:
        yield
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_from_a_login_link_to_the_audit_log(tab: Visit, shown: Showcase) -> None:
    page = tab.page
    secret = await create_tenant(page, "nautilus", "Sea charts")
    async with shown.client(secret) as client:
        await page.get_by_role("link", name="Now").click()
        async with streaming(client, input=SLOW):
            row = page.locator("#live tbody tr", has_text="nautilus")
            await row.filter(has_text="answering").wait_for()
            tokens = row.locator("td.number").first
            await expect(tokens).not_to_have_text(await tokens.inner_text())
            await page.get_by_role("link", name="Responses").click()
            await page.get_by_role("textbox", name="Tenant").fill("nautilus")
            await page.get_by_role("button", name="Filter").click()
            await expect(page.locator("tbody tr .status")).to_have_text(["in progress"])
        await see_what_was_repaired(page, shown, client)
        body = {"model": MODEL, "input": SLOW, "background": True}
        running = (await client.post("/v1/responses", json=body)).json()["id"]
    await page.locator("#search").fill(running)
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Cancel the response").click()
    await page.get_by_text("cancelled", exact=True).first.wait_for()

    await page.get_by_role("link", name="Audit").click()
    await expect(page.locator("tbody th", has_text="login.succeeded").first).to_be_visible()
    await page.get_by_role("textbox", name="Tenant").fill("nautilus")
    await page.get_by_role("button", name="Filter").click()
    await page.wait_for_url("**tenant=nautilus**")
    assert set(await page.locator("tbody th").all_inner_texts()) == {
        *("project.created", "api_key.created", "service_account.created"),
        *("harmony.tenant.created", "harmony.tenant.updated"),
        *("harmony.content.revealed", "harmony.response.cancelled_by_operator"),
    }
    assert set(await page.locator("tbody td:nth-child(3)").all_inner_texts()) == {"Ada Lovelace"}


async def see_what_was_repaired(page: Page, shown: Showcase, client: httpx2.AsyncClient) -> None:
    """What the model wrote stands struck through, with the rule; its client was answered well."""
    body = {"model": MODEL, "input": MALFORMED, "background": True}
    made = (await client.post("/v1/responses", json=body)).json()
    while made["status"] in {"queued", "in_progress"}:
        made = (await client.get(f"/v1/responses/{made['id']}")).json()
    assert made["output"][-1]["content"][0]["text"] == "Hello!"
    await page.locator("#search").fill(made["id"])
    await page.keyboard.press("Enter")
    await page.get_by_role("link", name="Tokens").click()
    await page.get_by_label("Reason").fill("Ticket 20000: leagues of nonsense")
    await page.get_by_role("button", name="Reveal").click()
    voided = page.locator("#tokens .run.voided")
    await voided.first.wait_for()
    assert "".join(await voided.all_inner_texts()).startswith(NONSENSE)
    assert await voided.first.get_attribute("title") == f"Taken back: {RULE}"
    kept = page.locator("#tokens .run.p-body:not(.voided)")
    await expect(kept).to_have_text(["Hello!"])
    await voided.first.locator("i").first.hover()
    await expect(page.locator("#token-facts")).to_contain_text(RULE)
