"""What images may take of memory, and of fetches: of a context, of a tenant, of all."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from gateway.models.format import IMAGE_NO_ROOM, IMAGE_QUESTION
from gateway.services.runs.images import ImageFetcher, ImageVisits
from gateway.telemetry.metrics import Metrics
from gateway.tenancy import TenantId
from gateway.tools.egress.network_policy import NetworkPolicy
from gateway.tools.egress.transport import EgressLimits, client
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving
from tests.fakes.stream import texts
from tests.fakes.text_server import Said, TextServer, text
from tests.integration.api.bodies import create, refused
from tests.integration.api.following import ended
from tests.integration.api.passthrough.conftest import LOOPBACK, model
from tests.integration.api.passthrough.test_images import DATA_URL, PNG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2
    from starlette.requests import Request

ONE, OTHER = TenantId(UUID("1" * 32)), TenantId(UUID("2" * 32))


class Site:
    """Serves the same picture at every path. Those below `/slow/` come when `released` is set;
    `asked` are the paths that were asked for, and `arrived` tells that one more was.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.arrived = asyncio.Semaphore(0)
        self.released = asyncio.Event()
        self.app = Starlette(routes=[Route("/{path:path}", self._picture)])

    async def _picture(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        self.arrived.release()
        if request.url.path.startswith("/slow/"):
            await self.released.wait()
        return Response(PNG, media_type="image/png")


@asynccontextmanager
async def fetcher(**bounds: Any) -> AsyncIterator[ImageFetcher]:
    policy = NetworkPolicy(networks=(ip_network("127.0.0.0/8"),), hosts=frozenset(), public=False)
    http = client(policy, EgressLimits(body_bytes_max=100))
    made = ImageFetcher(http, policy, ImageVisits(**bounds), user_agent="test", metrics=Metrics())
    try:
        yield made
    finally:
        await made.close()


def questions(url: str, *paths: str) -> list[bytes]:
    return [IMAGE_QUESTION + f"{url}{path}".encode() for path in paths]


async def test_a_tenant_whose_images_are_slow_leaves_places_to_others() -> None:
    site = Site()
    async with serving(site.app) as url, fetcher(visits_max=4, tenant_share=0.5) as images:
        slow = questions(url, *(f"/slow/{at}" for at in range(6)))
        fetching = asyncio.create_task(images.answers(slow, ONE))
        await site.arrived.acquire()
        await site.arrived.acquire()
        answers, _ = await images.answers(questions(url, "/a", "/b", "/c"), OTHER)
        assert set(answers.values()) == {DATA_URL}
        assert {path for path in site.asked if path.startswith("/slow/")} == {"/slow/0", "/slow/1"}
        site.released.set()
        assert set((await fetching)[0].values()) == {DATA_URL}


async def test_who_gets_no_place_in_time_may_come_again() -> None:
    bounds = {"visits_max": 1, "tenant_share": 1.0, "timeout_s": 0.0}
    async with serving(Site().app) as url, fetcher(**bounds) as images:
        first, second = questions(url, "/1", "/2")
        answers, _ = await images.answers([first, second], ONE)
    assert answers[first] == "it did not come in time"
    assert answers[second].startswith(IMAGE_NO_ROOM)


async def test_what_is_held_counts_for_its_tenant_until_it_is_dropped() -> None:
    bounds = {"held_bytes_max": 4 * len(PNG), "tenant_share": 0.5}
    async with serving(Site().app) as url, fetcher(**bounds) as images:
        answers, hold = await images.answers(questions(url, "/a", "/b"), ONE)
        assert set(answers.values()) == {DATA_URL}
        (mine,) = (await images.answers(questions(url, "/c"), ONE))[0].values()
        assert mine.startswith(f"{IMAGE_NO_ROOM}Your requests hold more than {2 * len(PNG)} bytes")
        (other,) = (await images.answers(questions(url, "/c"), OTHER))[0].values()
        assert other == DATA_URL
        assert images.budget.held_bytes == 2 * len(PNG)
        del hold
        assert images.budget.held_bytes == 0


@pytest.mark.slow
async def test_a_first_one_that_comes_late_has_its_room_all_the_same() -> None:
    site = Site()
    async with (
        serving(site.app) as url,
        fetcher(context_bytes_max=2 * len(PNG), held_bytes_max=2 * len(PNG), tenant_share=1) as one,
    ):
        asked = questions(url, "/slow/a", "/b", "/c")
        fetching = asyncio.create_task(one.answers(asked, ONE))
        for _ in asked:
            await site.arrived.acquire()
        await asyncio.sleep(0)  # the others may come, or not
        site.released.set()
        answers, hold = await fetching
        assert list(answers.values())[:2] == [DATA_URL] * 2
        assert "bytes together" in answers[asked[2]]
        assert one.budget.held_bytes == 2 * len(PNG)
        assert hold is not None


async def test_the_first_ones_are_fetched_of_a_context_that_is_too_long() -> None:
    async with (
        serving(Site().app) as url,
        fetcher(context_bytes_max=2 * len(PNG), visits_max=4, tenant_share=0.25) as images,
    ):
        asked = questions(url, "/a", "/b", "/c", "/d", "/e")
        answers, hold = await images.answers(asked, ONE)
        told = list(answers.values())
        assert told[:2] == [DATA_URL] * 2
        assert all("bytes together" in one for one in told[2:])
        assert images.budget.held_bytes == 2 * len(PNG)
        assert hold is not None


def asking(*urls: str) -> list[dict[str, Any]]:
    images = [{"type": "input_image", "image_url": url} for url in urls]
    return [{"role": "user", "content": [{"type": "input_text", "text": "?"}, *images]}]


async def held_bytes(client: httpx2.AsyncClient) -> str:
    lines = (await client.get("/metrics")).text.splitlines()
    return next(one for one in lines if one.startswith("gateway_image_bytes_held ")).split()[1]


async def until_nothing_is_held(client: httpx2.AsyncClient) -> None:
    """A run lets go of its images just after its end is stored."""
    async with asyncio.timeout(30):
        while await held_bytes(client) != "0.0":
            pass


@pytest.mark.slow
async def test_the_bounds_of_a_gateway(database_url: str) -> None:
    """Two images fit into a context, and a tenant may hold two."""
    site, held, is_asked = Site(), 2 * len(PNG), asyncio.Event()

    def script(_: object) -> list[Said]:
        is_asked.set()
        return text("Two pictures.")

    server = TextServer(script)
    async with serving(server.app) as url, serving(site.app) as pictures:
        settings = gateway_settings(
            database_url,
            [url],
            models=[model(server.model)],
            images={
                "allowed_networks": LOOPBACK,
                "bytes_max": len(PNG),
                "context_bytes_max": held,
                "held_bytes_max": 4 * held,
            },
        )
        async with (
            running_gateway(settings) as running,
            http_client(running.url, headers=running.headers) as client,
        ):
            a, b, c = (f"{pictures}/{name}" for name in "abc")
            error = await refused(client, 400, model=server.model, input=asking(a, DATA_URL, b))
            assert (error["code"], error["param"]) == ("invalid_image", "input[0].content[3]")
            assert f"longer than {held} bytes together" in error["message"]
            assert await held_bytes(client) == "0.0"

            server.holds = released = asyncio.Event()
            first = await create(client, model=server.model, input=asking(a, b), background=True)
            await is_asked.wait()
            assert await held_bytes(client) == str(float(held))
            error = await refused(client, 429, model=server.model, input=asking(DATA_URL, c))
            assert (error["code"], error["param"]) == ("rate_limit_exceeded", "input[0].content[2]")
            part = {"type": "image_url", "image_url": {"url": c}}
            body = {"model": server.model, "messages": [{"role": "user", "content": [part]}]}
            chat = await client.post("/v1/chat/completions", json=body)
            assert (chat.status_code, chat.json()["error"]["param"]) == (
                429,
                "messages[0].content[0]",
            )
            assert chat.headers["retry-after"] == "1"
            released.set()
            await ended(client, first["id"])
            await until_nothing_is_held(client)
            again = await create(
                client, model=server.model, input=asking(c), previous_response_id=first["id"]
            )
            assert texts(again) == ["Two pictures."]
    parts = server.asked[-1]["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["text", "text", "image_url"]
    assert "bytes together" in parts[1]["text"]


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        ({"bytes_max": 64 << 20}, "bytes_max of one image is above"),
        ({"held_bytes_max": 64 << 20}, "could never be shown"),
    ],
)
def test_bounds_that_exclude_each_other(
    database_url: str, bounds: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        gateway_settings(database_url, [], images=bounds)
