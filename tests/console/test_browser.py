"""The console in a browser: every page, and the way from a login link to the audit log."""

from __future__ import annotations

import asyncio
import json
from importlib.resources import files
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Final

import pytest
from playwright.async_api import expect

from gateway.console.pages import PAGES
from tests.console.chromium import DESKTOP, NEEDS_CHROMIUM, PHONE, sign_in, visit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page

    from tests.console.chromium import Visit
    from tests.console.showcase import Showcase

pytestmark = NEEDS_CHROMIUM
AXE: Final = files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
AXE_RUN: Final = """
axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] })
  .then((found) => found.violations.map((one) =>
    [one.id, one.help, ...one.nodes.slice(0, 3).map((node) => node.html.slice(0, 200))]))
"""
OVERFLOW: Final = "document.documentElement.scrollWidth - window.innerWidth"
FRESH_VISITS: Final = 16
"""Visits with a cold cache that must all be connected."""
LIVE_PAGES: Final = [page.path for page in PAGES if page.live]
MARK_MESSAGES: Final = """
document.addEventListener("htmx:sse:after:message", () => {
  document.body.dataset.renewed = "yes";
});
"""


@pytest.fixture
async def tab(browser: Browser, shown: Showcase) -> AsyncIterator[Visit]:
    """Signed in as an owner. What it complains of fails the test."""
    async with visit(browser, viewport=DESKTOP) as visited:
        await sign_in(visited, await shown.login_url())
        yield visited
        await visited.check()


async def faults_of(page: Page) -> list[Any]:
    await page.evaluate(AXE)
    found: list[Any] = await page.evaluate(AXE_RUN)
    return found


@pytest.mark.parametrize("look", ["light", "dark", "390px"])
async def test_every_page_is_accessible_and_keeps_to_its_policy(
    browser: Browser, shown: Showcase, look: str
) -> None:
    options: dict[str, Any] = {"viewport": PHONE if look == "390px" else DESKTOP}
    options["color_scheme"] = "dark" if look == "dark" else "light"
    async with visit(browser, **options) as visited:
        await visited.page.goto(f"{shown.admin_url}/console/login")
        assert await faults_of(visited.page) == []
        await sign_in(visited, await shown.login_url())
        for name, path in shown.paths().items():
            await visited.page.goto(f"{shown.admin_url}/console{path}")
            faults = await faults_of(visited.page)
            assert faults == [], (name, json.dumps(faults, indent=1))
            assert await visited.page.evaluate(OVERFLOW) <= 0, name
            assert await visited.violations() == [], name
            assert visited.complaints == [], name


async def test_a_live_page_is_connected_at_every_first_visit(
    browser: Browser, shown: Showcase
) -> None:
    async with visit(browser) as visited:
        await sign_in(visited, await shown.login_url())
        signed_in = await visited.page.context.storage_state()
    for path in islice(cycle(LIVE_PAGES), FRESH_VISITS):
        # A context of its own has nothing in its cache.
        async with visit(browser, storage_state=signed_in) as visited:
            await visited.page.add_init_script(MARK_MESSAGES)
            await visited.page.goto(f"{shown.admin_url}/console{path}")
            await visited.page.locator("body[data-renewed]").wait_for()
            await visited.check()


async def test_what_is_generated_appears_and_goes(tab: Visit, shown: Showcase) -> None:
    page = tab.page
    await page.goto(f"{shown.admin_url}/console/now")
    running = [asyncio.create_task(shown.generate(input=f"Slowly {n}")) for n in range(4)]
    row = page.locator("#live tbody tr[id^=resp_]").first
    await row.wait_for()
    await expect(row).to_contain_text("acme")
    identity = await row.get_attribute("id") or "no id"
    await page.locator(f"#{identity}").get_by_role("link").click()
    await page.wait_for_url(f"**/responses/{identity}")
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_from_a_new_tenant_to_its_first_request(tab: Visit, shown: Showcase) -> None:
    page = tab.page
    await page.get_by_role("link", name="Tenants").click()
    await page.get_by_role("textbox", name="New tenant").fill("wonka")
    await page.get_by_role("button", name="Create").click()
    await page.get_by_role("textbox", name="New project").fill("Chocolate")
    await page.get_by_role("form", name="New project").get_by_role("button").click()
    await page.get_by_role("textbox", name="New key for").fill("factory")
    await page.get_by_role("button", name="Create key").click()
    secret = await page.locator("#secret").inner_text()
    snippet = await page.locator("#snippet-1").inner_text()
    assert secret in snippet
    assert "/v1/responses" in snippet

    await page.get_by_role("link", name="Connect").click()
    await page.get_by_role("combobox", name="Tenant").select_option("wonka")
    await page.get_by_role("button", name="Show").click()
    await page.get_by_role("combobox", name="Project").select_option(label="Chocolate")
    await page.get_by_role("button", name="Show").click()
    await page.get_by_label("Wait for key").select_option(index=1)
    await page.get_by_role("button", name="Show").click()
    await expect(page.locator("#seen")).to_contain_text("Waiting")
    body = {"model": "gpt-oss-20b", "input": "Hello", "max_output_tokens": 16}
    async with shown.client() as client:
        client.headers["authorization"] = f"Bearer {secret}"
        assert (await client.post("/v1/responses", json=body)).status_code == 200
    await page.locator("#seen.good").wait_for()

    await page.get_by_role("link", name="Audit").click()
    await page.get_by_role("textbox", name="Tenant").fill("wonka")
    await page.get_by_role("button", name="Filter").click()
    await page.wait_for_url("**tenant=wonka**")
    assert await page.locator("tbody tr").count() >= 3
    await page.get_by_role("button", name="Verify this chain").click()
    await expect(page.locator(".notice")).to_contain_text("The chain holds")


async def test_a_backend_is_drained_by_its_name(tab: Visit, shown: Showcase) -> None:
    page = tab.page
    await page.goto(f"{shown.admin_url}/console/backends")
    answers = ["nonsense", "b1"]
    page.on("dialog", lambda dialog: asyncio.ensure_future(dialog.accept(answers.pop(0))))
    row = page.locator("tr", has=page.get_by_role("rowheader", name="b1"))
    await row.get_by_role("button", name="Drain").click()
    await expect(row).not_to_contain_text("drained")
    # The page that is left is renewed, too.
    async with page.expect_navigation():
        await row.get_by_role("button", name="Drain").click()
    async with page.expect_navigation():
        await row.get_by_role("button", name="Use again").click()
    await row.get_by_role("button", name="Drain").wait_for()


async def test_keys_lead_through_the_console(tab: Visit, shown: Showcase) -> None:
    page = tab.page
    await page.goto(f"{shown.admin_url}/console/system")
    await page.keyboard.press("g")
    await page.keyboard.press("t")
    await page.wait_for_url("**/tenants")
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/tenants/globex")
    await page.keyboard.press("/")
    assert await page.locator("#search").evaluate("node => node === document.activeElement")
    await page.keyboard.type("acme")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/responses?tenant=acme")
    await page.keyboard.press("?")
    await page.get_by_role("dialog").get_by_text("Search").wait_for()
    await page.get_by_role("button", name="Close").click()


async def test_usage_is_drawn(tab: Visit, shown: Showcase) -> None:
    await tab.page.goto(f"{shown.admin_url}/console/usage?tenant=acme")
    canvas = tab.page.locator(".plot canvas")
    await canvas.wait_for()
    drawn = await canvas.evaluate(
        "node => new Set(node.getContext('2d').getImageData(0, 0, node.width, node.height).data)"
        ".size"
    )
    assert drawn > 10


async def test_a_page_in_utc_and_dark_comes_so_from_the_server(tab: Visit, shown: Showcase) -> None:
    page = tab.page
    await page.goto(f"{shown.admin_url}/console/account")
    await page.get_by_label("Account and looks").click()
    await page.get_by_label("Theme").select_option("dark")
    await page.get_by_label("Times").select_option("utc")
    await page.get_by_role("button", name="Apply").click()
    await page.wait_for_load_state()
    assert await page.locator("html").get_attribute("data-theme") == "dark"
    await expect(page.locator("tbody time").first).to_contain_text("UTC")
    ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(14, 17, 22)"
