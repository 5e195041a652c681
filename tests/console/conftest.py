"""The console in this process, over a real database; browsers with a session of any role."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from selectolax.lexbor import LexborHTMLParser as HTMLParser
from selectolax.lexbor import LexborNode

from gateway import ids
from gateway.app import AdminGateway, create_app
from gateway.audit import COMMAND_LINE
from gateway.console.application import FORM_TOKEN, Console
from gateway.console.login_sessions import Sessions
from gateway.store import responses
from gateway.tenancy import default_project
from gateway.wiring.admin import operator_services
from tests.console.chromium import chromium
from tests.console.hostile_site import filled
from tests.console.showcase import showcase
from tests.fakes.gateway import gateway_settings, new_key
from tests.fakes.stored import new_response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser as Chromium

    from gateway.admin.resources import OperatorServices
    from gateway.console.page import Page
    from gateway.settings import Settings
    from gateway.tenancy import TenantId
    from gateway.tenancy.permissions import OperatorRole
    from gateway.wiring.process import Process
    from tests.console.hostile_site import HostileSite
    from tests.console.showcase import Showcase
    from tests.fakes.postgres import PostgresServer

ORIGIN = "http://127.0.0.1:9000"
OWN_SITE = {"sec-fetch-site": "same-origin"}


@dataclass
class Browser:
    """A browser with the session of an operator. It sends what a form of a page would."""

    client: httpx2.AsyncClient
    form_token: str

    async def page(self, path: str, **options: Any) -> HTMLParser:
        answer = await self.client.get(f"/console{path}", **options)
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
        return HTMLParser(answer.text)

    def parse(self, answer: httpx2.Response) -> HTMLParser:
        return HTMLParser(answer.text)

    async def get(self, path: str, **options: Any) -> httpx2.Response:
        return await self.client.get(f"/console{path}", **options)

    async def post(self, path: str, **fields: str) -> httpx2.Response:
        data = {**fields, FORM_TOKEN: self.form_token}
        return await self.client.post(f"/console{path}", data=data, headers=OWN_SITE)


@dataclass
class Site:
    """The admin listener's application with its console."""

    app: AdminGateway
    settings: Settings
    process: Process

    @property
    def console(self) -> Console:
        console = self.app._app
        assert isinstance(console, Console)
        return console

    async def path_of(self, page: Page, tenant: str = "acme") -> str:
        """The path of a page, of the default project of a tenant where it is of one."""
        if "{" not in page.path:
            return page.path
        found = (await self.services.tenants.get(tenant)).tenant
        return page.path.format(
            name=tenant,
            project_id=ids.project_id(default_project(found.id)),
            response_id=await self.stored_response(found.id),
            conversation_id=ids.conversation_id(ids.new_uuid()),
        )

    async def stored_response(self, tenant_id: TenantId) -> str:
        """The id of a new response that nobody generates."""
        new = replace(new_response(), created_at=datetime.now(UTC))
        await responses.insert(self.process.foundation.database, tenant_id, new)
        return ids.response_id(new.uuid)

    @property
    def services(self) -> OperatorServices:
        return self.console._services.operator

    @property
    def sessions(self) -> Sessions:
        return Sessions(self.process.foundation.database, self.process.access.peppers)

    def client(self, **options: Any) -> httpx2.AsyncClient:
        transport = httpx2.ASGITransport(self.app)
        return httpx2.AsyncClient(**{"transport": transport, "base_url": ORIGIN, **options})

    @asynccontextmanager
    async def browser(
        self, role: OperatorRole = "owner", name: str = "Ada", **options: Any
    ) -> AsyncIterator[Browser]:
        token = await self.sessions.create_link(name, role)
        async with self.client(**options) as client:
            answer = await client.post("/console/login", data={"token": token}, headers=OWN_SITE)
            assert answer.status_code == 303, answer.text
            page = HTMLParser((await client.get("/console/account")).text)
            field = first(page, f"input[name={FORM_TOKEN}]")
            yield Browser(client, field.attributes["value"] or "")


def first(page: HTMLParser, selector: str) -> LexborNode:
    node = page.css_first(selector)
    assert node is not None, selector
    return node


def console_site(settings: Settings) -> Site:
    process = create_app(settings).process
    return Site(AdminGateway(process), settings, process)


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Chromium]:
    async with chromium() as launched:
        yield launched


@pytest.fixture(scope="session")
async def console_database_url(postgres: PostgresServer, template: str) -> AsyncIterator[str]:
    name = await postgres.create(template)
    yield postgres.database_url(name)
    await postgres.drop(name)


@pytest.fixture(scope="session")
async def site(console_database_url: str) -> AsyncIterator[Site]:
    """With a backend that nobody can reach, a tenant `acme`, and a key of it."""
    settings = gateway_settings(
        console_database_url,
        ["http://127.0.0.1:9"],
        models=[{"id": "gpt-oss-20b"}],
        admin={"port": 9000},
        console={"enabled": True},
    )
    made = console_site(settings)
    await new_key(settings, "acme")
    yield made
    await made.process.foundation.close()


@pytest.fixture
async def owner(site: Site) -> AsyncIterator[Browser]:
    async with site.browser() as browser:
        yield browser


@pytest.fixture(scope="session")
async def shown(postgres: PostgresServer, template: str) -> AsyncIterator[Showcase]:
    """Operators may reveal what its tenant `acme` was answered."""
    name = await postgres.create(template)
    async with showcase(postgres.database_url(name)) as made:
        tenants = operator_services(made.gateway.process).tenants
        policy = {"operator_content_access": "always"}
        await tenants.set_policy(COMMAND_LINE, "acme", policy)
        yield made
    await postgres.drop(name)


@pytest.fixture(scope="session")
async def hostile_site(postgres: PostgresServer, template: str) -> AsyncIterator[HostileSite]:
    name = await postgres.create(template)
    settings = gateway_settings(
        postgres.database_url(name),
        ["http://127.0.0.1:9"],
        admin={"port": 9000},
        console={"enabled": True},
    )
    made = console_site(settings)
    yield await filled(made)
    await made.process.foundation.close()
    await postgres.drop(name)
