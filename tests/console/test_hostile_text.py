"""Texts that clients and operators wrote are text on every page: no element, no script."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from selectolax.lexbor import LexborHTMLParser as HTMLParser

from gateway.console.pages import PAGES
from tests.console.hostile_site import FIELD, FIELDS, HOSTILE, check, written

if TYPE_CHECKING:
    from tests.console.hostile_site import HostileSite

PARAMETERS = ("q", "tenant", "model", "after", "id", "status", "project", "next", "token", "back")
WITHOUT = {"/system"}
"""Pages that show no such name."""


async def test_stored_names_stay_text(hostile_site: HostileSite) -> None:
    seen: dict[str, set[str]] = {}
    async with hostile_site.site.browser(
        name=written("operator"), headers={"user-agent": written("agent").encode()}
    ) as browser:
        for page, paths in (await hostile_site.paths()).items():
            seen[page] = set()
            for path in paths:
                answer = await browser.get(path, follow_redirects=True)
                assert answer.status_code == 200, path
                if answer.headers["content-type"].startswith("text/html"):
                    check(browser.parse(answer), path)
                    seen[page] |= set(FIELD.findall(answer.text)) - {"operator"}
                    # Each has two characters that are not to be seen.
                    assert answer.text.count("⟨U+") >= 2 * answer.text.count("field:"), path
    assert {page for page, fields in seen.items() if not fields} == WITHOUT
    assert FIELDS - set().union(*seen.values()) == {"operator"}


async def test_what_streams_renew_stays_text(hostile_site: HostileSite) -> None:
    console = hostile_site.site.console
    for page in PAGES:
        if page.live:
            fragment = await console._renewing(page)()
            assert FIELD.search(fragment), page.path
            check(HTMLParser(fragment), page.path)


async def test_what_acts_answer_stays_text(hostile_site: HostileSite) -> None:
    """Pages that only a form leads to, and the login page of a link."""
    site = hostile_site.site
    printable = "".join(filter(str.isprintable, HOSTILE))
    token = await site.sessions.create_link(written("operator"), "owner")
    async with site.browser() as browser:
        login = await browser.get(f"/login?token={token}")
        assert FIELD.search(login.text)
        check(browser.parse(login), "login")
        project = (await hostile_site.paths())["/tenants/{name}/projects/{project_id}"][0]
        for path in (f"{project}/keys/create", "/tenants/acme/keys/create", "/audit/verify"):
            made = await browser.post(path, name=printable, tenant="acme")
            assert made.status_code == 200, made.text
            check(browser.parse(made), path)


async def test_parameters_stay_text(hostile_site: HostileSite) -> None:
    paths = [of_page[0] for of_page in (await hostile_site.paths()).values()]
    async with hostile_site.site.browser() as browser:
        for path in ["/login", *paths]:
            for name in PARAMETERS:
                answer = await browser.get(
                    f"{path}?{name}={quote(HOSTILE, safe='')}", follow_redirects=True
                )
                assert answer.status_code < 500, (path, name)
                check(browser.parse(answer), path)
        nowhere = await browser.get(f"/{quote(HOSTILE, safe='')}")
        assert nowhere.status_code == 404
        check(browser.parse(nowhere), "nowhere")
