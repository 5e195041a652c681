"""Pages of the browser along a chain of one connection: fetched once, stored or not."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gateway.simulator.demo_site import create_site
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.hosted_gateway import sections_with_tools
from tests.fakes.serving import serving
from tests.fakes.websocket import connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from tests.fakes.gateway import RunningGateway
    from tests.fakes.observation import Backends

SEARCH: list[dict[str, Any]] = [{"type": "web_search"}]


class CountedSite:
    """A site that knows which of its pages were asked for."""

    def __init__(self) -> None:
        self._site = create_site()
        self.asked: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.asked.append(scope["path"])
        await self._site(scope, receive, send)


@asynccontextmanager
async def browsing(
    database_url: str, backends: Backends
) -> AsyncIterator[tuple[RunningGateway, str, CountedSite]]:
    site = CountedSite()
    async with serving(site) as site_url:
        sections = sections_with_tools(site_url.removeprefix("http://"))
        settings = gateway_settings(database_url, backends.urls, **sections)
        async with running_gateway(settings) as running:
            yield running, site_url, site


def text(response: dict[str, Any]) -> str:
    return str(response["output"][-1]["content"][0]["text"])


@pytest.mark.slow
@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_page_is_fetched_once_for_a_chain(
    shared_database_url: str, backends: Backends, is_stored: bool
) -> None:
    async with (
        browsing(shared_database_url, backends) as (gateway, site_url, site),
        connected(gateway.url, gateway.key) as peer,
    ):
        said: dict[str, Any] = {"tools": SEARCH, "store": is_stored}
        opened = await peer.response(f"[[sim steps=open {site_url}/big; say ok]]", **said)
        assert site.asked.count("/big") == 1
        said["previous_response_id"] = opened["id"]
        found = await peer.response("[[sim steps=find burned blue; quote]]", **said)
        assert "burned blue" in text(found)
        said["previous_response_id"] = found["id"]
        await peer.response("[[sim steps=scroll@0 100; say ok]]", **said)
        assert site.asked.count("/big") == 1
