"""Signing in at a provider in a browser, and what each role is offered and refused there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from playwright.async_api import expect

from gateway.console import BASE
from gateway.console.application import FORM_TOKEN, TO_PROVIDER
from gateway.console.pages import PAGES
from gateway.tenancy.permissions import OPERATOR_ROLES
from tests.console.chromium import NEEDS_CHROMIUM, visit
from tests.console.test_sign_in import provider_of, signing_in
from tests.fakes.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from playwright.async_api import Browser, Page, Route

    from gateway.tenancy.permissions import OperatorRole
    from tests.console.conftest import Site
    from tests.console.test_sign_in import Provider

pytestmark = NEEDS_CHROMIUM
GROUPS: Final[dict[str, list[str]]] = {role: [f"gateway-{role}"] for role in OPERATOR_ROLES}
ROLES: Final = {f"gateway-{role}": role for role in OPERATOR_ROLES}
POST: Final = """
async ([paths, name]) => {
  const token = document.querySelector(`[name=${name}]`).value;
  const statuses = {};
  for (const path of paths) {
    const body = new URLSearchParams({ [name]: token });
    statuses[path] = (await fetch(path, { method: "POST", body })).status;
  }
  return statuses;
}
"""


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    # Under another name than the console, as a provider is: browsers take them for two sites.
    with provider_of({**GROUPS, "stranger": ["staff"]}, "localhost") as running:
        yield running


@pytest.fixture(scope="module")
async def served(site: Site, provider: Provider) -> AsyncIterator[tuple[Site, str]]:
    """A console whose operators sign in at the provider, and its address."""
    url = site.settings.database.url
    assert url is not None
    async with (
        signing_in(url.get_secret_value(), provider.issuer, roles=ROLES) as own,
        serving(own.app) as address,
    ):
        yield own, address


async def sign_in_as(page: Page, address: str, user: str) -> None:
    """From the login page to the provider's, and whereto that leads."""

    async def style(route: Route) -> None:
        await route.fulfill(content_type="text/css", body="")

    await page.route("https://cdn.jsdelivr.net/**", style)
    await page.goto(f"{address}{BASE}/login")
    await page.get_by_role("link", name="Sign in with localhost").click()
    await page.get_by_role("button", name=user, exact=True).click()


@pytest.mark.parametrize("role", OPERATOR_ROLES)
async def test_a_role_is_offered_its_pages_and_refused_all_other_acts(
    browser: Browser, served: tuple[Site, str], role: OperatorRole
) -> None:
    site, address = served
    allowed = {None, *OPERATOR_ROLES[role]}
    async with visit(browser) as visited:
        page = visited.page
        await sign_in_as(page, address, role)
        await page.get_by_label("Account and looks").click()
        await expect(page.locator(".menu-body p").first).to_have_text(f"{role}@example.com{role}")
        own = [one.title for one in PAGES if one.icon and one.permission in allowed]
        await expect(page.locator("nav.rail li")).to_have_text(own)
        refused = [path for path, act in site.console.acts.items() if act.permission not in allowed]
        statuses = await page.evaluate(POST, [refused, FORM_TOKEN])
        assert statuses == dict.fromkeys(refused, 403)
        # Chromium reports each of them.
        assert len(visited.complaints) == len(refused)
        visited.complaints.clear()
        await visited.check()


async def test_a_page_that_a_role_may_not_see_says_what_it_takes(
    browser: Browser, served: tuple[Site, str]
) -> None:
    _, address = served
    async with visit(browser) as visited:
        page = visited.page
        await sign_in_as(page, address, "billing")
        await page.get_by_role("link", name="Tenants").wait_for()
        answer = await page.goto(f"{address}{BASE}/audit")
        assert answer is not None
        assert answer.status == 403
        alert = await page.get_by_role("alert").inner_text()
        assert "'operator_audit_log.read'" in alert
        assert "'billing'" in alert
        await page.get_by_role("link", name="To the console").click()
        await page.get_by_role("link", name="Tenants").wait_for()


async def test_who_has_no_role_stays_outside(browser: Browser, served: tuple[Site, str]) -> None:
    _, address = served
    async with visit(browser) as visited:
        await sign_in_as(visited.page, address, "stranger")
        await expect(visited.page.get_by_role("alert")).to_contain_text("stranger@example.com")
        await visited.page.goto(f"{address}{BASE}/now")
        await expect(visited.page.locator(f'a[href="{TO_PROVIDER}"]')).to_be_visible()
