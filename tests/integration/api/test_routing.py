"""Where the turns of a conversation go: two replicas, two backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.bounds import bounds
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.routed_sessions import Rounds, Watched
from tests.fakes.serving import serving
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from tests.fakes.gateway import RunningGateway

MODEL = "gpt-oss-20b"
# `Rounds` exchanges between turns. A report that the process makes by itself has the same entries,
# and may still be on its way when the next turn is routed.
EXCHANGE_INTERVAL_S = 3600.0


@pytest.fixture(scope="module")
async def gateways(own_database_url: str) -> AsyncIterator[tuple[RunningGateway, ...]]:
    """Two replicas, and two backends that nobody else asks, and that are never in doubt."""
    one, two = (create_simulator(WaywardOptions(name=name)) for name in ("b0", "b1"))
    async with serving(one) as first, serving(two) as second:
        settings = gateway_settings(own_database_url, (first, second), models=[{"id": MODEL}])
        with (
            bounds("foundation.ProbeSchedule", health_timeout_s=60.0),
            bounds("foundation.RoutingPolicy", exchange_interval_s=EXCHANGE_INTERVAL_S),
        ):
            async with running_gateway(settings) as here, running_gateway(settings) as there:
                yield here, there


@pytest.fixture
async def clients(
    gateways: tuple[RunningGateway, ...],
) -> AsyncIterator[tuple[httpx2.AsyncClient, ...]]:
    headers = gateways[0].headers
    async with (
        http_client(gateways[0].url, headers=headers) as here,
        http_client(gateways[1].url, headers=headers) as there,
    ):
        yield here, there


async def created(client: httpx2.AsyncClient, text: str = "", **more: Any) -> dict[str, Any]:
    answer = await client.post("/v1/responses", json={"model": MODEL, "input": text, **more})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


@pytest.mark.slow
async def test_a_chain_stays_at_its_backend_whichever_replica_is_asked(
    gateways: tuple[RunningGateway, ...], clients: tuple[httpx2.AsyncClient, ...]
) -> None:
    watched = Watched(*gateways)
    body = await created(clients[0], "one")
    ((place, reason),) = watched.new()
    assert reason == "cold"
    for turn in range(6):
        asked = clients[1 - turn % 2]
        body = await created(asked, f"turn {turn}", previous_response_id=body["id"])
        assert watched.new() == {(place, "row"): 1}


async def test_a_conversation_stays_at_its_backend(
    gateways: tuple[RunningGateway, ...], clients: tuple[httpx2.AsyncClient, ...]
) -> None:
    watched = Watched(*gateways)
    conversation = (await clients[0].post("/v1/conversations", json={})).json()["id"]
    await created(clients[0], "one", conversation=conversation)
    ((place, _),) = watched.new()
    for turn in range(4):
        await created(clients[1 - turn % 2], f"turn {turn}", conversation=conversation)
        assert watched.new() == {(place, "row"): 1}


BLOCK_IDS = 16
"""Of the simulated backends: hits are whole blocks."""


@pytest.mark.slow
async def test_what_is_expected_is_what_backends_report(
    gateways: tuple[RunningGateway, ...], clients: tuple[httpx2.AsyncClient, ...]
) -> None:
    """Whichever of the replicas is asked, stored or not."""
    hits = await Rounds(gateways, clients, MODEL).later()
    # One more than expected is the marker that begins a thought and an answer alike.
    near = [abs(hit.expected - hit.reported) <= BLOCK_IDS for hit in hits]
    assert len(hits) == 60
    assert sum(near) >= 0.95 * len(hits)
    assert all(hit.reported > 500 for hit in hits)
