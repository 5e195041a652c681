"""Tenants, projects, keys, limits and backends, changed by the forms that pages have."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest

from gateway.audit import COMMAND_LINE
from gateway.console.pages import tenants
from tests.console.conftest import OWN_SITE, console_site, first
from tests.fakes.gateway import gateway_settings
from tests.fakes.logins import OWNER, SERVING, make_roles

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from selectolax.lexbor import LexborHTMLParser

    from gateway.console.page import Page
    from gateway.settings import Settings
    from tests.console.conftest import Browser, Site
    from tests.fakes.postgres import PostgresServer


SORTED_LIKE_WORDS: Final = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_collation WHERE collname = 'en-x-icu') THEN
        DROP FUNCTION find_bearers, find_named;
        ALTER TABLE tenants ALTER COLUMN name TYPE text COLLATE "en-x-icu";
    END IF;
END $$
"""
"""As databases of most installations sort; not every server has such a collation."""


def texts(page: LexborHTMLParser, selector: str) -> list[str]:
    return [" ".join(node.text(deep=True, separator=" ").split()) for node in page.css(selector)]


async def test_a_tenant_gets_a_project_and_a_key_that_is_shown_once(
    site: Site, owner: Browser
) -> None:
    made = await owner.post("/tenants/create", name="initech")
    assert made.headers["location"] == "/console/tenants/initech"
    assert (await owner.post("/tenants/create", name="initech")).status_code == 400
    assert (await owner.post("/tenants/create", name="no name")).status_code == 400
    listed = await owner.page("/tenants?q=ini")
    assert texts(listed, "tbody th") == ["initech"]

    project = await owner.post("/tenants/initech/projects/create", name="Robots")
    place = project.headers["location"].removeprefix("/console")
    shown = owner.parse(
        await owner.post(f"{place}/keys/create", name="arm", days="30", scope="responses.write")
    )
    secret = first(shown, "#secret").text()
    assert secret.startswith("sk-proj-")
    assert all(secret in text for text in texts(shown, ".snippet pre"))
    principal = await site.process.access.authenticate(secret)
    assert principal.key.scopes == {"responses.write"}
    page = await owner.page(place)
    assert secret not in (page.html or "")
    assert f"sk-proj-***{secret[-4:]}" in (page.html or "")

    key = first(page, "tbody th a").attributes["href"] or ""
    key_id = key.partition("=")[2]
    rotated = owner.parse(await owner.post(f"{place}/keys/{key_id}/rotate"))
    assert first(rotated, "#secret").text() != secret
    assert (await owner.post(f"{place}/keys/{key_id}/end")).status_code == 303
    assert (await owner.post(f"{place}/keys/{key_id}/end")).status_code == 404
    assert (await owner.post(f"{place}/keys/create", name="x", days="3")).status_code == 400


async def test_limits_and_budgets_are_set_and_taken_away(site: Site, owner: Browser) -> None:
    place = (await site.path_of(_project_page(site))).rstrip("/")
    for path in ("/tenants/acme", place):
        limits = {"max_requests_per_1_minute": "1,200", "max_concurrent_responses": "8"}
        assert (await owner.post(f"{path}/limits", **limits)).status_code == 303
        page = await owner.page(path)
        rows = texts(page, "section[aria-labelledby=limits] tbody tr")
        assert sorted(rows) == [
            "requests a minute all models 0 0 % 1,200 enforced",
            "responses at once all models 0 0 % 8 enforced",
        ]
        assert (await owner.post(f"{path}/limits", max_requests_per_1_minute="-1")).is_error
        for amount in ("1,2", "12,0000", ",", "1,200,"):
            # A comma may be meant as a decimal point.
            refused = await owner.post(f"{path}/limits", max_requests_per_1_minute=amount)
            assert refused.status_code == 400
        assert (await owner.post(f"{path}/limits")).status_code == 303
        assert texts(await owner.page(path), "section[aria-labelledby=limits] tbody tr") == []
        assert (await owner.post(f"{path}/budget", dollars="lots")).status_code == 400
        assert (await owner.post(f"{path}/budget", dollars="nan")).status_code == 400
        decimal = first(owner.parse(await owner.post(f"{path}/budget", dollars="1,5")), ".notice")
        assert "A budget is from 0" in decimal.text()
        # Nothing has a price, so nothing would be spent.
        assert (await owner.post(f"{path}/budget", dollars="12.50")).status_code == 400
        assert (await owner.post(f"{path}/budget", dollars="")).status_code == 303


def _project_page(site: Site) -> Page:
    return next(page for page in site.console.pages if page.template == "project.html")


async def test_a_value_of_the_policy_is_set_and_reset(owner: Browser) -> None:
    async def source() -> str:
        page = await owner.page("/tenants/acme")
        (row,) = [text for text in texts(page, "tbody tr") if text.startswith("containers_max ")]
        return " ".join(row.split()[1:3])

    before = await source()
    path = "/tenants/acme/policy"
    assert (await owner.post(path, value_name="containers_max", value="7")).status_code == 303
    assert await source() == "7 tenant"
    assert (await owner.post(path, value_name="containers_max", value="x")).status_code == 400
    assert (await owner.post(path, value_name="nonsense", value="7")).status_code == 400
    assert (await owner.post(path, value_name="containers_max", value="")).status_code == 303
    assert await source() == before


async def test_what_cannot_be_undone_takes_the_name(site: Site, owner: Browser) -> None:
    await site.services.tenants.create(COMMAND_LINE, "hooli")
    for act in ("disable", "delete"):
        assert (await owner.post(f"/tenants/hooli/{act}")).status_code == 400
        assert (await owner.post(f"/tenants/hooli/{act}", confirmed="acme")).status_code == 400
    assert (await owner.post("/tenants/hooli/hold", held="true")).status_code == 303
    assert (await owner.post("/tenants/hooli/disable", confirmed="hooli")).status_code == 303
    assert (await owner.post("/tenants/hooli/delete", confirmed="hooli")).status_code == 303
    page = await owner.page("/tenants/hooli")
    assert texts(page, "h1") == ["hooli deleted"]
    # No key of it would work, so none is made.
    for act in ("keys", "projects"):
        made = await owner.post(f"/tenants/hooli/{act}/create", name="late")
        assert made.status_code == 400
        assert f'action="/console/tenants/hooli/{act}/create"' not in (page.html or "")
    project = await site.path_of(_project_page(site), "hooli")
    assert (await owner.post(f"{project}/keys/create", name="late")).status_code == 400
    assert (await owner.post("/tenants/hooli/restore")).status_code == 303
    assert texts(await owner.page("/tenants/hooli"), "h1") == ["hooli disabled"]


async def _rows(browser: Browser, path: str) -> list[str]:
    # Names of all pages of the first list, which go on as the link behind each of them says.
    names: list[str] = []
    here = path
    while True:
        page = await browser.page(here)
        names += texts(page, "#projects ~ .table tbody th, [aria-label=Tenants] tbody th")
        older = page.css_first("#older a")
        if older is None:
            return names
        here = (older.attributes["href"] or "").removeprefix("/console")


async def test_lists_are_cut_into_pages_whatever_the_order_of_the_database(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("ROWS", "PROJECTS_SHOWN_MAX"):
        monkeypatch.setattr(tenants, bound, 2)
    site = console_site(_settings(database_url))
    async with site.process.foundation.database.owner_transaction() as connection:
        await connection.script(SORTED_LIKE_WORDS)
    made = ["a.1", "a2", "b", "B-1", "C", "D"]
    for name in made:
        await site.services.tenants.create(COMMAND_LINE, name)
    async with site.browser() as owner:
        rows = await _rows(owner, "/tenants")
        assert [name for name in rows if name in made] == sorted(made)
        for name in made:
            await owner.post("/tenants/b/projects/create", name=name)
        rows = await _rows(owner, "/tenants/b")
        assert [name for name in rows if name in made] == made
    await site.process.foundation.close()


async def test_looks_are_changed_also_behind_the_answer_to_a_form(owner: Browser) -> None:
    shown = owner.parse(await owner.post("/audit/verify"))
    back = first(shown, "input[name=back]").attributes["value"] or ""
    for fields in ({"back": back}, {}):
        answer = await owner.post("/preferences", theme="dark", **fields)
        followed = await owner.client.get(answer.headers["location"], follow_redirects=True)
        assert followed.status_code == 200


async def test_changes_are_in_the_audit_log_under_the_operators_name(
    site: Site, owner: Browser
) -> None:
    await owner.post("/tenants/acme/projects/create", name="Audited")
    async with site.browser("auditor", name="Watcher") as auditor:
        page = await auditor.page("/audit?type=login.succeeded")
        assert "Watcher" in texts(page, "tbody td")[1]
    chain = await owner.page("/audit?tenant=acme&type=project.created")
    assert texts(chain, "tbody tr td:nth-child(3)")[0] == "Ada"
    verified = owner.parse(await owner.post("/audit/verify", tenant="acme"))
    assert "The chain holds" in first(verified, ".notice").text()
    assert (await owner.get("/audit?tenant=nobody")).status_code == 404
    assert (await owner.get("/audit?type=nonsense")).status_code == 400


async def test_a_backend_is_drained_and_used_again(owner: Browser) -> None:
    assert (await owner.post("/backends/b0/drain")).status_code == 303
    page = await owner.page("/backends")
    assert "drained" in texts(page, "tbody td")[0]
    assert "by operator Ada" in texts(page, "tbody td")[0]
    assert (await owner.post("/backends/b0/undrain")).status_code == 303
    assert "drained" not in texts(await owner.page("/backends"), "tbody td")[0]
    assert (await owner.post("/backends/nobody/drain")).status_code == 404


async def test_usage_without_any_says_so_and_its_csv_has_a_head(owner: Browser) -> None:
    page = await owner.page("/usage?tenant=acme&span=day&group=project_id")
    assert "Nothing was used" in first(page, ".empty").text()
    answer = await owner.get("/usage.csv?tenant=acme&span=month&group=model")
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.text.splitlines() == [
        "start,model,num_model_requests,input_tokens,input_cached_tokens,output_tokens"
    ]
    assert (await owner.get("/usage?span=century")).status_code == 400
    assert (await owner.get("/usage?tenant=nobody")).status_code == 404


async def test_the_system_shows_settings_without_secrets(site: Site, owner: Browser) -> None:
    page = await owner.page("/system")
    assert site.settings.pepper.decode() not in (page.html or "")
    assert "console.enabled true" in texts(page, "tbody tr")
    async with site.client() as client:
        assert (await client.get("/admin/v1/system")).status_code == 401


@pytest.fixture(scope="module")
async def serving_site(postgres: PostgresServer, template: str) -> AsyncIterator[Site]:
    """A console whose process signs in as the user who owns nothing."""
    from urllib.parse import urlsplit

    from gateway.store.migration.migrate import upgrade

    name = await postgres.create()
    url = postgres.database_url(name)
    make_roles(url)
    parts = urlsplit(url)

    def as_user(user: str) -> str:
        return parts._replace(netloc=f"{user}:secret@{parts.netloc.rpartition('@')[2]}").geturl()

    await upgrade(as_user(OWNER))
    of_owner = console_site(_settings(as_user(OWNER)))
    await of_owner.services.tenants.create(COMMAND_LINE, "acme")
    await of_owner.process.foundation.close()
    site = console_site(_settings(as_user(SERVING)))
    yield site
    await site.process.foundation.close()
    await postgres.drop(name)


def _settings(url: str) -> Settings:
    return gateway_settings(
        url, ["http://127.0.0.1:9"], admin={"port": 9000}, console={"enabled": True}
    )


async def test_a_process_that_owns_no_tables_shows_every_page(serving_site: Site) -> None:
    async with serving_site.browser() as browser:
        for page in serving_site.console.pages:
            path = await serving_site.path_of(page)
            answer = await browser.get(path, follow_redirects=True)
            assert answer.status_code == 200, (path, answer.text)
        assert "harmony-gateway tenants create" in (await browser.get("/tenants")).text
        refused = await browser.post("/tenants/create", name="globex")
        assert refused.status_code == 403
        assert "command line" in refused.text
        assert (await browser.post("/backends/b0/drain")).status_code == 403
        assert (await browser.post("/audit/verify")).status_code == 200
        made = await browser.post("/tenants/acme/projects/create", name="Robots")
        assert made.status_code == 303


async def test_the_json_of_a_page_is_that_of_the_admin_api(site: Site) -> None:
    from gateway.admin.operator_keys import OperatorCreate

    _, secret = await site.services.operators.create(COMMAND_LINE, OperatorCreate(name="api"))
    async with site.client(headers={"authorization": f"Bearer {secret}"}) as client:
        for path in ("responses", "backends", "tenants", "audit_log", "system", "settings"):
            answer = await client.get(f"/admin/v1/{path}", headers=OWN_SITE)
            assert answer.status_code == 200, path
            assert json.loads(answer.text)["object"]
