"""What pages offer to a role: acts and links that it may use, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from starlette.routing import Match

from gateway.audit import COMMAND_LINE
from gateway.console import BASE
from gateway.tenancy.permissions import OPERATOR_ROLES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from selectolax.lexbor import LexborHTMLParser

    from gateway.tenancy.permissions import OperatorRole
    from tests.console.conftest import Site


@pytest.fixture
async def open_site(site: Site) -> AsyncIterator[Site]:
    """Content of its tenant may be revealed."""
    tenants = site.services.tenants
    await tenants.set_policy(COMMAND_LINE, "acme", {"operator_content_access": "always"})
    yield site
    await tenants.set_policy(COMMAND_LINE, "acme", {"operator_content_access": None})


def permission_of(site: Site, path: str) -> str | None:
    """What the act takes that a form leads to; None: a session."""
    scope = {"type": "http", "method": "POST", "path": path, "root_path": ""}
    (route,) = (one for one in site.console.routes if one.matches(scope)[0] is Match.FULL)
    act = site.console.acts.get(route.path)
    return None if act is None else act.permission


def forms_of(page: LexborHTMLParser) -> set[str]:
    forms = {form.attributes.get("action") for form in page.css("form[method=post]")}
    buttons = {button.attributes["formaction"] for button in page.css("button[formaction]")}
    return {path for path in forms | buttons if path}


def links_of(page: LexborHTMLParser) -> set[str]:
    links = {link.attributes["href"] or "" for link in page.css("a")}
    return {link for link in links if urlsplit(link).path.startswith(BASE)}


async def paths_for(site: Site, allowed: Collection[str | None]) -> list[str]:
    pages = (page for page in site.console.pages if page.template and page.permission in allowed)
    paths = [await site.path_of(page) for page in pages]
    # The tab that asks for a reason.
    return [f"{path}?tab=items" if path.startswith("/responses/") else path for path in paths]


@pytest.mark.parametrize("role", OPERATOR_ROLES)
async def test_no_page_offers_what_its_reader_may_not(open_site: Site, role: OperatorRole) -> None:
    allowed = {None, *OPERATOR_ROLES[role]}
    offered: set[str | None] = set()
    links: dict[str, str] = {}
    async with open_site.browser(role, name=f"reader-{role}") as browser:
        for path in await paths_for(open_site, allowed):
            page = await browser.page(path, follow_redirects=True)
            acts = {permission_of(open_site, action) for action in forms_of(page)}
            assert acts <= allowed, path
            offered |= acts
            links |= dict.fromkeys(links_of(page), path)
        statuses = {link: (await browser.client.get(link)).status_code for link in links}
        assert [(links[link], link) for link, status in statuses.items() if status == 403] == []
    changing = {act.permission for act in open_site.console.acts.values()}
    # Nothing runs here that could be cancelled.
    assert offered >= (changing & OPERATOR_ROLES[role]) - {"responses.cancel"}
