"""Responses that operators cancel from lists, and rows that a list does not have yet."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect
from starlette.datastructures import QueryParams

from gateway import ids
from gateway.admin.responses import CANCELLED, search
from gateway.app import AdminGateway
from gateway.audit import COMMAND_LINE
from gateway.console.login_sessions import login_url
from gateway.console.pages.responses import CHOSEN_MAX
from gateway.store import responses
from gateway.store.postgres.statements import Statement
from tests.conftest import new_tenant
from tests.console.chromium import PROGRAM, chromium, sign_in, visit
from tests.console.conftest import Site, first
from tests.console.test_browser import faults_of
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving
from tests.fakes.stored import new_response
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Dialog
    from selectolax.lexbor import LexborHTMLParser as HTMLParser

    from gateway.tenancy import TenantId
    from tests.console.conftest import Browser
    from tests.fakes.gateway import RunningGateway
    from tests.fakes.postgres import PostgresServer

MODEL = "gpt-oss-20b"
NOTED = Statement("""
SELECT target, convert_from(actor, 'UTF8') AS actor FROM audit_log
WHERE tenant_id = :tenant AND type = :type ORDER BY at
""")


@dataclass
class Busy:
    """A gateway that generates one background response of its tenant at a time, slowly."""

    gateway: RunningGateway
    site: Site
    admin_url: str
    tenant: TenantId

    async def ask(self, count: int) -> list[str]:
        """The ids of background responses, of which the first runs at the latest when others
        have ended.
        """
        body = {"model": MODEL, "input": "[[sim think=4000]] Hello", "background": True}
        async with http_client(self.gateway.url, headers=self.gateway.headers) as client:
            made = [(await client.post("/v1/responses", json=body)).json() for _ in range(count)]
        return [one["id"] for one in made]

    async def cancelled(self) -> list[str]:
        """What the tenant's audit log says that operators cancelled."""
        async with self.site.process.foundation.database.transaction(self.tenant) as connection:
            found = {"tenant": self.tenant, "type": CANCELLED}
            rows = list(await connection.execute(NOTED, found))
        assert all('"Ada"' in row.actor for row in rows)
        return [row.target for row in rows]


@pytest.fixture(scope="module")
async def busy(postgres: PostgresServer, template: str) -> AsyncIterator[Busy]:
    url = postgres.database_url(name := await postgres.create(template))
    simulated = create_simulator(WaywardOptions(name="b0", models=(MODEL,), tokens_per_s=20.0))
    async with serving(simulated) as backend:
        settings = gateway_settings(
            url, [backend], models=[{"id": MODEL}], admin={"port": 0}, console={"enabled": True}
        )
        async with running_gateway(settings) as gateway:
            admin = AdminGateway(gateway.process)
            site = Site(admin, settings, gateway.process)
            (own,) = await site.services.tenants.list()
            await site.services.tenants.set_policy(
                COMMAND_LINE, own.name, {"background_running_max": 1}
            )
            async with serving(admin) as admin_url:
                yield Busy(gateway, site, admin_url, own.id)
    await postgres.drop(name)


@pytest.fixture
async def ada(busy: Busy) -> AsyncIterator[Browser]:
    async with busy.site.browser() as browser:
        yield browser


@pytest.fixture
async def tenant(site: Site) -> TenantId:
    return await new_tenant(site.process.foundation.database)


def words(page: HTMLParser) -> list[str]:
    return [" ".join(row.text(deep=True).split()) for row in page.css("tbody tr")]


async def test_the_chosen_are_cancelled_and_each_has_its_outcome(busy: Busy, ada: Browser) -> None:
    running, waiting, ended = await busy.ask(3)
    assert (await ada.post(f"/responses/{ended}/cancel")).status_code == 303
    page = await ada.page("/responses")
    boxes = [box.attributes["name"] for box in page.css("tbody input[type=checkbox]")]
    assert set(boxes) == {running, waiting}
    nobodys = ids.response_id(ids.new_uuid())
    chosen = dict.fromkeys((running, waiting, ended, nobodys), "chosen")
    shown = words(ada.parse(await ada.post("/responses/cancel", **chosen)))
    assert [text.endswith("cancelled") for text in shown] == [True, True, False, False]
    assert "cancelled already" in shown[2]
    assert "not found" in shown[3]
    assert (await busy.cancelled())[-3:] == [ended, running, waiting]


async def test_none_and_too_many_are_refused(owner: Browser) -> None:
    many = {f"resp_{number}": "chosen" for number in range(CHOSEN_MAX + 1)}
    assert (await owner.post("/responses/cancel", **many)).status_code == 400
    assert (await owner.post("/responses/cancel", other="chose")).status_code == 400


async def test_what_waits_is_dropped_from_the_queue(busy: Busy, ada: Browser) -> None:
    running, waiting = await busy.ask(2)
    button = first(await ada.page("/queue"), f"#{waiting} button")
    assert button.attributes["data-confirm"] == waiting[-4:]
    assert (await ada.post(f"/queue/{waiting}/drop")).headers["location"] == "/console/queue"
    assert (await busy.cancelled())[-1] == waiting
    assert (await ada.post(f"/queue/{waiting}/drop")).status_code == 400
    assert (await ada.page("/queue")).css_first(f"#{waiting}") is None
    assert (await ada.post("/responses/cancel", **{running: "chosen"})).status_code == 200


async def test_who_may_not_cancel_is_shown_no_way_to(busy: Busy, ada: Browser) -> None:
    running, waiting = await busy.ask(2)
    async with busy.site.browser("support", name="Helper") as helper:
        for path in ("/queue", "/responses", "/backends"):
            page = await helper.page(path)
            assert page.css_first("#acts, .act, input[type=checkbox]") is None, path
        assert (await helper.post(f"/queue/{waiting}/drop")).status_code == 403
        assert (await helper.post("/responses/cancel", **{waiting: "chosen"})).status_code == 403
    chosen = dict.fromkeys((running, waiting), "chosen")
    assert (await ada.post("/responses/cancel", **chosen)).status_code == 200


async def test_rows_that_came_since_are_announced_and_not_inserted(
    site: Site, owner: Browser, tenant: TenantId
) -> None:
    async def announced() -> str:
        answer = await owner.get(place, headers={"x-fragment": "news"})
        assert answer.status_code == 200
        return owner.parse(answer).text().strip()

    here = f"/responses?tenant=tenant-{tenant}"
    empty = await owner.page(here)
    place = (first(empty, "[data-news]").attributes["data-news"] or "").removeprefix("/console")
    assert await announced() == ""
    made = [await site.stored_response(tenant) for _ in range(3)]
    assert await announced() == "3 new"
    page = await owner.page(here)
    place = (first(page, "[data-news]").attributes["data-news"] or "").removeprefix("/console")
    assert await announced() == ""
    await site.stored_response(await new_tenant(site.process.foundation.database))
    assert await announced() == ""
    assert len(words(page)) == len(made)
    # What is of the past has no news.
    older = await owner.page(f"{here}&until=2026-01-01T00:00")
    assert older.css_first("[data-news]") is None


async def test_a_range_of_time_is_in_the_address(
    site: Site, owner: Browser, tenant: TenantId
) -> None:
    at = datetime.now(UTC) - timedelta(hours=2)
    new = replace(new_response(), created_at=at, uuid=ids.first_uuid(at.timestamp()))
    await responses.insert(site.process.foundation.database, tenant, new)
    made = ids.response_id(new.uuid)

    async def found(from_s: int, until_s: int) -> bool:
        now = datetime.now(UTC)
        at = [f"{now - timedelta(seconds=ago):%Y-%m-%dT%H:%M}" for ago in (from_s, until_s)]
        page = await owner.page(f"/responses?tenant=tenant-{tenant}&from={at[0]}&until={at[1]}")
        fields = [first(page, f"input[name={name}]") for name in ("from", "until")]
        assert [field.attributes["value"] for field in fields] == at
        return page.css_first(f"[title={made}]") is not None

    assert await found(10_800, 3_600)
    assert not await found(3_600, 0)
    assert not await found(14_400, 10_800)
    for malformed in ("yesterday", "2026-13-01T00:00", "0001-01-01T00:00", "9999-12-31T23:59"):
        for name in ("from", "until"):
            answer = await owner.get(f"/responses?{name}={malformed}")
            assert answer.status_code in {200, 400}, (name, malformed)
    assert (await owner.get("/responses?from=yesterday")).status_code == 400
    assert (await owner.get("/responses?from=2026-01-01T00:00")).status_code == 400


async def test_the_json_has_those_before_a_response(
    site: Site, owner: Browser, tenant: TenantId
) -> None:
    made = sorted([await site.stored_response(tenant) for _ in range(3)])
    database = site.process.foundation.database
    query = QueryParams({"tenant": f"tenant-{tenant}", "before": made[0]})
    assert [one["id"] for one in (await search(database, query))["data"]] == made[:0:-1]


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(not PROGRAM.exists(), reason=f"there is no {PROGRAM}")
async def test_lists_in_a_browser_announce_cancel_and_drop(busy: Busy) -> None:
    typed: list[str] = []
    accepted: list[asyncio.Future[None]] = []

    def answer(dialog: Dialog) -> None:
        accepted.append(asyncio.ensure_future(dialog.accept(typed.pop(0))))

    token = await busy.site.sessions.create_link("Ada", "owner")
    running, waiting = await busy.ask(2)
    async with chromium() as browser, visit(browser) as visited:
        page = visited.page
        page.on("dialog", answer)
        await sign_in(visited, login_url(busy.admin_url, token))
        await page.goto(f"{busy.admin_url}/console/responses?status=queued")
        await expect(page.locator(f"[title={waiting}]")).to_have_count(1)
        assert await faults_of(page) == []
        (later,) = await busy.ask(1)
        await page.get_by_role("link", name="1 new").click()
        await page.locator(f"[title={later}]").wait_for()
        await page.get_by_role("checkbox", name=f"Choose {later}").check()
        typed.append("no")
        await page.get_by_role("button", name="Cancel the chosen").click()
        assert page.url.endswith("/responses?status=queued")
        typed.append("cancel")
        async with page.expect_navigation():
            await page.get_by_role("button", name="Cancel the chosen").click()
        row = page.locator("tbody tr", has=page.locator(f"[title={later}]"))
        await expect(row).to_contain_text("cancelled")
        assert await faults_of(page) == []

        await page.goto(f"{busy.admin_url}/console/queue")
        assert await faults_of(page) == []
        typed.append(waiting[-4:])
        async with page.expect_navigation():
            await page.locator(f"#{waiting}").get_by_role("button", name="Drop").click()
        await expect(page.locator(f"#{waiting}")).to_have_count(0)
        # A row that comes with the stream has its button, too.
        (last,) = await busy.ask(1)
        typed.append(last[-4:])
        async with page.expect_navigation():
            await page.locator(f"#{last}").get_by_role("button", name="Drop").click()
        assert (await busy.cancelled())[-3:] == [later, waiting, last]
        assert await visited.violations() == []
        assert visited.complaints == []
        await asyncio.gather(*accepted)
    async with busy.site.browser() as ada:
        await ada.post(f"/responses/{running}/cancel")
