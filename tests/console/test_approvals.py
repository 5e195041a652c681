"""Calls of MCP tools that the Playground asks its reader about."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import expect

from gateway.app import AdminGateway
from gateway.console.login_sessions import login_url
from gateway.console.pages.playground import PATH
from tests.console.chromium import PROGRAM, chromium, sign_in, visit
from tests.console.conftest import Site, first
from tests.console.test_browser import faults_of
from tests.console.test_playground import MODEL, Playing
from tests.fakes import mcp_server
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.observation import Backends
from tests.fakes.serving import serving
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.console.conftest import Browser
    from tests.fakes.postgres import PostgresServer

pytestmark = pytest.mark.slow
LOOPBACK = ["127.0.0.0/8"]
TOOLS = {
    "mcp": {
        "enabled": True, "url_networks": LOOPBACK, "networks": LOOPBACK, "url_plain_http": True,
        "servers": "any", "connect_timeout_s": 60, "list_timeout_s": 60,
    }
}  # fmt: skip
ASKED = '[[sim steps=mcp srv.say {"text": "ahoy"}; quote]]'


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with mcp_server.serving() as process:
        yield process.url


@pytest.fixture(scope="module")
async def playing(postgres: PostgresServer, template: str) -> AsyncIterator[Playing]:
    url = postgres.database_url(name := await postgres.create(template))
    async with serving(create_simulator(WaywardOptions(name="b0"))) as backend:
        settings = gateway_settings(
            url, [backend], models=[{"id": MODEL}], tools=TOOLS, admin={"port": 9000},
            console={"enabled": True},
        )  # fmt: skip
        async with running_gateway(settings) as gateway:
            admin = AdminGateway(gateway.process)
            site = Site(admin, settings, gateway.process)
            async with serving(admin) as admin_url, http_client() as client:
                (own,) = await site.services.tenants.list()
                yield Playing(site, admin_url, own.id, Backends((backend,), client))
    await postgres.drop(name)


@pytest.fixture
async def ada(playing: Playing) -> AsyncIterator[Browser]:
    async with playing.site.browser() as browser:
        yield browser


def tool_of(server: str) -> str:
    tool: dict[str, Any] = {"type": "mcp", "server_label": "srv", "require_approval": "always"}
    return json.dumps({**tool, "server_url": server})


@pytest.mark.parametrize(("choice", "calls"), [("approve", 1), ("refuse", 0)])
async def test_an_answer_to_a_request_is_sent_as_clients_send_it(
    playing: Playing, ada: Browser, server: str, choice: str, calls: int
) -> None:
    (own,) = await playing.site.services.tenants.list()
    chosen = {"tenant": own.name, "tools": tool_of(server)}
    asking = await playing.ask(ada, ASKED, **chosen)
    (request,) = [one for one in asking.of_kind("tool") if "Asks for srv.say" in one.text()]
    assert "ahoy" in first(request, "pre").text()
    field = first(asking.ending, "[data-approval] input").attributes["name"] or ""
    assert field.startswith("approval:mcpr_")
    answered = await playing.ask(ada, "", previous=asking.id, **{field: choice}, **chosen)
    made = [one for one in answered.of_kind("tool") if "Call of srv.say" in one.text()]
    assert len(made) == calls
    assert answered.ending.css_first("[data-approval]") is None


async def test_what_is_no_answer_is_not_sent(playing: Playing, ada: Browser) -> None:
    (own,) = await playing.site.services.tenants.list()
    fields = playing.fields("", tenant=own.name, **{"approval:mcpr_1": "", "approval:x": "yes"})
    assert (await ada.post(f"{PATH}/ask", **fields)).status_code == 400


@pytest.mark.timeout(120)
@pytest.mark.skipif(not PROGRAM.exists(), reason=f"there is no {PROGRAM}")
async def test_a_button_approves_and_another_refuses(playing: Playing, server: str) -> None:
    token = await playing.site.sessions.create_link("Ada", "owner")
    (own,) = await playing.site.services.tenants.list()
    async with chromium() as browser, visit(browser) as visited:
        page = visited.page
        await sign_in(visited, login_url(playing.admin_url, token))
        here = f"{playing.admin_url}/console{PATH}?tenant={own.name}&project={playing.project}"
        for name, calls in (("Approve", 1), ("Refuse", 0)):
            await page.goto(here)
            await page.get_by_label("Other tools, as JSON").fill(tool_of(server))
            await page.get_by_label("Question").fill(ASKED)
            await page.get_by_role("button", name="Ask").click()
            asked = page.get_by_role("group", name="May it call srv.say as above?")
            await asked.get_by_role("button", name=name).wait_for()
            assert await faults_of(page) == []
            await asked.get_by_role("button", name=name).click()
            await page.locator(".answer").nth(1).locator(".took").wait_for()
            await expect(page.locator(".is-tool", has_text="Call of srv.say")).to_have_count(calls)
            await expect(asked.get_by_role("button", name=name)).to_be_disabled()
        assert await visited.violations() == []
        assert visited.complaints == []
