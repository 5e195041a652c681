"""Questions that operators come with, answered from page Now on with few clicks and no guess."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest
from playwright.async_api import expect

from gateway.app import AdminGateway
from gateway.audit import COMMAND_LINE
from gateway.console.login_sessions import Sessions, login_url
from gateway.wiring.admin import operator_services
from tests.console.chromium import NEEDS_CHROMIUM, sign_in, visit
from tests.fakes.gateway import gateway_settings, new_key, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2
    from playwright.async_api import Browser, Locator, Page

    from tests.fakes.gateway import RunningGateway
    from tests.fakes.postgres import PostgresServer

pytestmark = NEEDS_CHROMIUM
MODEL: Final = "gpt-oss-20b"
CLICKS_MAX: Final = 3
SLOTS: Final = 2
"""Requests that the fleet works on at once."""
ENDLESS: Final = "[[sim think=none tokens=100000 tokens_per_s=20]] Go on."
NOWHERE: Final = "\N{EN DASH}"
BRIEF: Final = "[[sim think=none say=Hello!]] Hi"


@dataclass
class Troubled:
    """A gateway with two backends, of one slot each, and its console."""

    gateway: RunningGateway
    console: str

    def client(self, key: str | None = None) -> httpx2.AsyncClient:
        headers = {"authorization": f"Bearer {key or self.gateway.key}"}
        return http_client(self.gateway.url, headers=headers, timeout=60)

    async def generate(self, text: str, key: str | None = None, **fields: Any) -> Any:
        async with self.client(key) as client:
            body = {"model": MODEL, "input": text, **fields}
            made = (await client.post("/v1/responses", json=body)).json()
            while made["status"] in {"queued", "in_progress"}:
                made = (await client.get(f"/v1/responses/{made['id']}")).json()
            return made

    @asynccontextmanager
    async def generating(self, count: int, key: str | None = None) -> AsyncIterator[None]:
        """So many responses without an end, until this is left."""
        running = [asyncio.create_task(self.generate(ENDLESS, key)) for _ in range(count)]
        try:
            yield
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


@dataclass
class Newcomer:
    """Somebody who begins at page Now, and clicks on what is there."""

    page: Page
    clicks: int = 0

    async def click(self, what: Locator) -> None:
        self.clicks += 1
        assert self.clicks <= CLICKS_MAX
        await what.click()

    async def open(self, name: str) -> None:
        await self.click(self.page.get_by_role("link", name=name, exact=True))


@pytest.fixture(scope="module")
async def troubled(postgres: PostgresServer, template: str) -> AsyncIterator[Troubled]:
    name = await postgres.create(template)
    options = [WaywardOptions(name=f"b{number}") for number in range(SLOTS)]
    async with (
        serving(create_simulator(options[0])) as first,
        serving(create_simulator(options[1])) as second,
    ):
        settings = gateway_settings(
            postgres.database_url(name),
            [first, second],
            models=[{"id": MODEL}],
            admission={"slots_max": 1, "wait_max_s": 60},
            admin={"port": 0},
            console={"enabled": True},
        )
        async with (
            running_gateway(settings) as gateway,
            serving(AdminGateway(gateway.process)) as console,
        ):
            tenants = operator_services(gateway.process).tenants
            policy = {"operator_content_access": "always"}
            await tenants.set_policy(COMMAND_LINE, "acme", policy)
            yield Troubled(gateway, console)
    await postgres.drop(name)


@pytest.fixture
async def newcomer(browser: Browser, troubled: Troubled) -> AsyncIterator[Newcomer]:
    process = troubled.gateway.process
    sessions = Sessions(process.foundation.database, process.access.peppers)
    token = await sessions.create_link("Newcomer", "owner")
    async with visit(browser) as visited:
        await sign_in(visited, login_url(troubled.console, token))
        assert visited.page.url.endswith("/now")
        yield Newcomer(visited.page)
        await visited.check()


def lines_of(page: Page, label: str) -> Locator:
    return page.get_by_role("group", name=label).locator("tbody tr")


async def test_why_was_this_response_slow(troubled: Troubled, newcomer: Newcomer) -> None:
    page = newcomer.page
    async with troubled.generating(SLOTS):
        running = lines_of(page, "Responses in flight")
        await expect(running.filter(has_text="answering")).to_have_count(SLOTS)
        slow = asyncio.create_task(troubled.generate(BRIEF))
        # It waits, and is at no backend.
        await expect(running.filter(has_text="waiting")).to_contain_text(NOWHERE)
    await slow
    await newcomer.open("Responses")
    row = lines_of(page, "Responses").filter(has_text="completed").first
    await newcomer.click(row.get_by_role("link").first)
    await expect(page.locator(".sentence")).to_contain_text("were spent waiting for a slot.")
    assert newcomer.clicks <= 2


async def test_which_backend_ate_it(troubled: Troubled, newcomer: Newcomer) -> None:
    page = newcomer.page
    failed = await troubled.generate("[[sim die_after=3]] Hi", background=True)
    assert failed["status"] == "failed"
    row = lines_of(page, "Failed last")
    backend = await row.locator("td").nth(2).inner_text()
    assert backend in {"b0", "b1"}
    await newcomer.click(row.get_by_role("link"))
    left = page.locator(".story li", has_text=re.compile(r"^\s*Backend b.*left\s*$"))
    await expect(left.first).to_be_visible()
    assert newcomer.clicks <= 1


async def test_what_did_the_model_say_before_it_was_repaired(
    troubled: Troubled, newcomer: Newcomer
) -> None:
    page = newcomer.page
    text = "[[sim think=none attack=header times=1 say=Hello!]] Hi"
    made = await troubled.generate(text, background=True)
    assert made["output"][-1]["content"][0]["text"] == "Hello!"
    row = lines_of(page, "Repaired last").filter(has_text="header_not_understood")
    await newcomer.click(row.get_by_role("link"))
    await page.get_by_label("Reason").fill("What was it really?")
    await newcomer.click(page.get_by_role("button", name="Reveal"))
    voided = page.locator("#tokens .run.voided")
    await voided.first.wait_for()
    assert "functions.to=functions" in "".join(await voided.all_inner_texts())
    assert newcomer.clicks <= 2


async def test_which_tenant_fills_the_queue(troubled: Troubled, newcomer: Newcomer) -> None:
    page = newcomer.page
    settings = troubled.gateway.process.foundation.settings
    other = await new_key(settings, "globex")
    async with troubled.generating(SLOTS + 4, other), troubled.generating(1):
        await newcomer.open("Queue")
        rows = lines_of(page, "Requests in flight by tenant")
        await expect(rows.filter(has_text="acme")).to_be_visible()
        # Most waiting requests first, as soon as all of them have arrived.
        await expect(rows.first).to_contain_text(re.compile(r"globex\s*[3-9]"))
    assert newcomer.clicks <= 1
