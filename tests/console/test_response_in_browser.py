"""The page of a response in Chromium: keys, the link of a token to its event, a long log."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import expect

from gateway import ids
from gateway.entries import Finished, Queued, Tokens, TurnStarted, pack
from gateway.store import responses
from gateway.wiring.admin import operator_services
from tests.console.chromium import DESKTOP, NEEDS_CHROMIUM, PHONE, sign_in, visit
from tests.fakes.harmony_script import script_ids
from tests.fakes.stored import durable_response

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

    from gateway.entries import Entry
    from tests.console.chromium import Visit
    from tests.console.showcase import Showcase

pytestmark = NEEDS_CHROMIUM
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
LONG = 20_000
REASON = "Ticket 4711: the answer broke off"


async def reveal(page: Page, url: str) -> None:
    await page.goto(f"{url}?tab=tokens")
    await page.get_by_label("Reason").fill(REASON)
    await page.get_by_role("button", name="Reveal").click()
    await page.wait_for_selector("#tokens i")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_token_is_chosen_by_keys_and_leads_to_its_event(
    shown: Showcase, browser: Browser, scheme: str
) -> None:
    url = f"{shown.admin_url}/console/responses/{shown.response_id}"
    async with visit(browser, color_scheme=scheme) as visited:
        page = visited.page
        await sign_in(visited, await shown.login_url())
        await reveal(page, url)
        await page.locator("#tokens").focus()
        for _ in range(5):
            await page.keyboard.press("ArrowRight")
        assert await page.locator("#tokens i.chosen").inner_text() == " user"
        await expect(page.locator("#token-facts dd").first).to_have_text("4")
        assert await page.locator(".run.of-item").count() > 1
        for tab in ("tokens", "items", "events", "log", "chain", "request"):
            await page.goto(f"{url}?tab={tab}")
            await page.evaluate(AXE)
            found = await page.evaluate("axe.run()")
            assert [one["help"] for one in found["violations"]] == [], tab
        await page.goto(f"{url}?tab=tokens")
        await page.locator("#tokens i").nth(4).hover()
        await page.locator("#token-facts a").click()
        await page.wait_for_url("**tab=events**")
        target = page.locator("tr:target summary")
        await expect(target).to_have_text("response.reasoning_text.delta")
        assert visited.complaints == []
        assert await visited.violations() == []


async def test_a_running_response_is_followed_to_its_end(shown: Showcase, browser: Browser) -> None:
    slow = "Tell me of the sea. [[sim tokens=4000 tokens_per_s=30]]"
    made = (await shown.generate(input=slow, background=True)).json()
    async with visit(browser) as visited:
        page = visited.page
        await sign_in(visited, await shown.login_url())
        await page.goto(f"{shown.admin_url}/console/responses/{made['id']}?tab=tokens")
        await page.get_by_label("Reason").fill(REASON)
        await page.get_by_role("button", name="Reveal").click()
        await page.wait_for_selector("#tokens i")
        begun = await page.locator("#tokens i").count()
        await expect(page.locator(".status").first).to_have_text("in progress")
        await page.locator("#tokens i").nth(begun + 9).wait_for(state="attached")
        await page.get_by_role("button", name="Cancel the response").click()
        await page.get_by_text("cancelled", exact=True).first.wait_for()
        await page.wait_for_selector("#state:not([data-live])")
        await expect(page.get_by_role("button", name="Cancel the response")).to_have_count(0)
        assert visited.complaints == []


async def new_long_response(shown: Showcase) -> str:
    """The id of one whose log is `LONG` tokens, as of a paced stream."""
    services = operator_services(shown.gateway.process)
    database = shown.gateway.process.foundation.database
    acme = (await services.tenants.get("acme")).tenant.id
    uuid = ids.parse_response_id(shown.response_id)
    assert uuid is not None
    like = await responses.load(database, acme, uuid)
    assert like is not None
    words = script_ids("<|channel|>final<|message|>" + "The sea, né. " * LONG)[:LONG]
    said: list[Entry] = [Queued(), TurnStarted(9), *(Tokens((token,)) for token in words)]
    log = [*said, Finished("cancelled", like.day.toordinal())]
    new = replace(
        durable_response(status="cancelled"),
        request=like.request,
        created_at=datetime.now(UTC),
        entries=(len(log), pack(log)),
    )
    await responses.insert(database, acme, new)
    return ids.response_id(new.uuid)


async def test_of_a_long_log_only_what_is_near_is_there(shown: Showcase, browser: Browser) -> None:
    url = f"{shown.admin_url}/console/responses/{await new_long_response(shown)}"
    async with visit(browser) as visited:
        page = visited.page
        await sign_in(visited, await shown.login_url())
        await reveal(page, url)
        last = page.locator(f'#tokens .run[data-first="{LONG - LONG % 1024}"]')
        await expect(last).to_have_count(0)
        await page.evaluate("tokens.scrollTop = tokens.scrollHeight")
        await last.wait_for()
        await page.locator(".token-page.is-empty").nth(9).wait_for(state="attached")
        await expect(page.locator(".token-page")).to_have_count(-(-LONG // 1024))
        assert visited.complaints == []


@pytest.mark.parametrize("look", ["light", "dark", "390px"])
async def test_a_token_leads_to_a_replay_and_a_fork(
    shown: Showcase, browser: Browser, look: str
) -> None:
    url = f"{shown.admin_url}/console/responses/{shown.response_id}"
    options: dict[str, Any] = {"viewport": PHONE if look == "390px" else DESKTOP}
    options["color_scheme"] = "dark" if look == "dark" else "light"
    async with visit(browser, **options) as visited:
        page = visited.page
        await sign_in(visited, await shown.login_url())
        await reveal(page, url)
        await page.locator("#prompt > summary").click()
        message = page.locator(".prompt-message", has_text="user").last
        await message.locator("summary").click()
        await expect(message.locator("pre")).to_contain_text("Tell me of the sea.")
        await page.locator("#tokens i").nth(9).hover()
        fork = page.get_by_role("link", name="Fork behind its item")
        assert (await fork.get_attribute("href") or "").endswith("&item=0")
        await faultless(visited)
        await page.get_by_role("link", name="Go on from token 9").click()
        assert await page.get_by_label("From token").input_value() == "9"
        await page.get_by_role("button", name="Generate").click()
        await page.get_by_text("It says the same, token for token.").wait_for()
        await expect(page.locator(".differs")).to_have_count(0)
        await faultless(visited)
        await page.get_by_label("Text to insert there").fill(" <b>the deep</b>\nblue")
        await page.get_by_label("Backend").select_option("b0")
        await page.get_by_role("button", name="Generate").click()
        await page.get_by_text("It differs from token 9 on.").wait_for()
        await expect(page.locator(".differs")).to_have_count(2)
        await expect(page.locator(".split-replay b")).to_have_count(0)
        forced = page.locator(".split-replay .prefilled")
        assert await forced.inner_text() == " <b>the deep</b>\nblue"
        await faultless(visited)
        assert visited.complaints == []


async def test_a_replay_ends_when_its_page_is_left(shown: Showcase, browser: Browser) -> None:
    late = "Tell me of the sea. [[sim first_token_delay_s=600]]"
    made = (await shown.generate(input=late, background=True)).json()
    async with shown.client() as client:
        assert (await client.post(f"/v1/responses/{made['id']}/cancel")).is_success
    pool = shown.gateway.process.foundation.pool
    async with visit(browser) as visited:
        page = visited.page
        await sign_in(visited, await shown.login_url())
        await page.goto(f"{shown.admin_url}/console/responses/{made['id']}/replay")
        await page.get_by_label("Reason").fill(REASON)
        await page.get_by_role("button", name="Reveal").click()
        await page.get_by_role("link", name="Replay").click()
        await page.get_by_label("Backend").select_option("b0")
        async with page.expect_request(lambda request: request.method == "POST"):
            await page.get_by_role("button", name="Generate").click(no_wait_after=True)
        async with asyncio.timeout(60):
            while not pool.in_flight()["b0"]:
                await page.context.cookies()
            await page.goto(f"{shown.admin_url}/console/now")
            while pool.in_flight()["b0"]:
                await page.context.cookies()
        assert visited.complaints == []


async def faultless(visited: Visit) -> None:
    """Accessible, no wider than the window, and nothing against the policy."""
    await visited.page.evaluate(AXE)
    found = await visited.page.evaluate("axe.run()")
    assert [one["help"] for one in found["violations"]] == []
    assert await visited.page.evaluate(OVERFLOW) <= 0
    assert await visited.violations() == []
