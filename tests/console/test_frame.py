"""The frame of the pages: which installation they are of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.console.application import COLOURS, _colour_of
from tests.console.conftest import console_site, first
from tests.fakes.gateway import gateway_settings

if TYPE_CHECKING:
    from tests.console.conftest import Site


@pytest.mark.parametrize(
    ("name", "colour"), [(None, "none"), ("EU Production", "production"), ("prod-2", "production")]
)
def test_whatever_is_production_looks_alike(name: str | None, colour: str) -> None:
    assert _colour_of(name) == colour


def test_other_installations_have_other_colours() -> None:
    colours = {_colour_of(name) for name in map(str, range(12))}
    assert colours == {str(number) for number in range(COLOURS)}


async def test_every_page_names_the_installation(site: Site, console_database_url: str) -> None:
    settings = gateway_settings(
        console_database_url, ["http://127.0.0.1:9"], admin={"port": 9000},
        console={"enabled": True, "name": "Berlin <b>production</b>"},
    )  # fmt: skip
    named = console_site(settings)
    async with named.browser() as browser:
        page = await browser.page("/account")
        assert first(page, "title").text().endswith("Berlin <b>production</b>")
        assert first(page, ".brand span").text() == "Berlin <b>production</b>"
        assert "colour-production" in (first(page, "body").attributes["class"] or "")
    async with site.browser() as browser:
        assert first(await browser.page("/account"), ".brand span").text() == "Harmony Gateway"
    await named.process.foundation.close()
