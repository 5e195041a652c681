"""Texts that clients and operators wrote are text on every page: no element, no script."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from gateway import ids
from gateway.audit import Actor, Author
from gateway.console.pages import PAGES
from gateway.store import audit_log, responses
from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE
from gateway.tenancy import TenantId
from tests.console.conftest import console_site
from tests.fakes.gateway import gateway_settings
from tests.fakes.rows import add_rows
from tests.fakes.stored import new_response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from selectolax.lexbor import LexborHTMLParser

    from tests.console.conftest import Site
    from tests.fakes.postgres import PostgresServer

HOSTILE = (
    '"><u class=evil>\u202e</textarea></title><script>evil()</script>{{ 7 * 7 }}'
    "<img src=x onerror=evil()>"
)
PARAMETERS = ("q", "tenant", "model", "after", "id", "status", "project", "next", "token", "back")


@pytest.fixture(scope="module")
async def hostile_site(postgres: PostgresServer, template: str) -> AsyncIterator[Site]:
    """A database in which each name that somebody chose is hostile."""
    name = await postgres.create(template)
    settings = gateway_settings(
        postgres.database_url(name),
        ["http://127.0.0.1:9"],
        admin={"port": 9000},
        console={"enabled": True},
    )
    site = console_site(settings)
    database = site.process.foundation.database
    tenant = TenantId(ids.new_uuid())
    async with database.owner_transaction() as connection:
        await connection.execute(
            Statement("INSERT INTO tenants (id, name, created_at) VALUES (:id, :name, now())"),
            {"id": tenant, "name": HOSTILE},
        )
    async with database.owner_transaction() as connection:
        await connection.execute(
            Statement("INSERT INTO tenants (id, name, created_at) VALUES (:id, :name, now())"),
            {"id": (acme := TenantId(ids.new_uuid())), "name": "acme"},
        )
    at = datetime.now(UTC)
    account = {"tenant_id": acme, "project_id": acme, "id": acme, "name": HOSTILE}
    key = {"tenant_id": acme, "name": HOSTILE, "created_at": at, "hint": "<u>k"}
    author = Author(Actor("operator", "<u>id", None, HOSTILE), "<u>address")
    async with database.transaction(acme) as connection:
        project = {"tenant_id": acme, "id": acme, "name": HOSTILE, "created_at": at}
        await add_rows(connection, "projects", project)
        await add_rows(
            connection, "service_accounts", account | {"role": "member", "created_at": at}
        )
        owned = {"owner_type": "service_account", "owner_id": acme, "scopes": [HOSTILE]}
        for kind in ("project", "admin"):
            made = {"id": (id_ := ids.new_uuid()), "hash": id_.bytes, "kind": kind}
            await add_rows(connection, "api_keys", key | made | owned)
        event = author.event("project.created", HOSTILE, data={"name": HOSTILE})
        await audit_log.record(connection, acme, event)
    async with database.transaction(TenantId(EVERYONE)) as connection:
        await audit_log.record(connection, None, event)
    new = replace(new_response(), created_at=datetime.now(UTC), model=HOSTILE)
    await responses.insert(database, tenant, new)
    yield site
    await site.process.foundation.close()
    await postgres.drop(name)


def check(page: LexborHTMLParser, path: str) -> None:
    assert page.css("u, img, script:not([src])") == [], path
    assert page.css("[onerror]") == [], path
    assert "\u202e" not in (page.html or ""), path


async def test_stored_names_stay_text(hostile_site: Site) -> None:
    seen = 0
    async with hostile_site.browser(
        name=HOSTILE, headers={"user-agent": "<u>agent</u>"}
    ) as browser:
        for page in PAGES:
            path = await hostile_site.path_of(page)
            answer = await browser.get(path, follow_redirects=True)
            assert answer.status_code < 500, path
            parsed = browser.parse(answer)
            check(parsed, path)
            seen += answer.text.count("evil()")
    assert seen > len(PAGES)


async def test_parameters_stay_text(hostile_site: Site) -> None:
    async with hostile_site.browser() as browser:
        for path in ["/login", *[await hostile_site.path_of(page) for page in PAGES]]:
            for name in PARAMETERS:
                answer = await browser.get(
                    f"{path}?{name}={quote(HOSTILE, safe='')}", follow_redirects=True
                )
                assert answer.status_code < 500, (path, name)
                check(browser.parse(answer), path)
        nowhere = await browser.get(f"/{quote(HOSTILE, safe='')}")
        assert nowhere.status_code == 404
        check(browser.parse(nowhere), "nowhere")
