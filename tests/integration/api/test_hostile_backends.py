"""A backend that means harm costs its own requests something, and nobody else's anything."""

from __future__ import annotations

import asyncio
from itertools import cycle
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.hostile_backend import WAYS
from tests.fakes.http_client import http_client
from tests.fakes.processes import Child
from tests.fakes.stream import stream
from tests.integration.api.bodies import create

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import httpx2

    from tests.fakes.gateway import RunningGateway

TOKENS = [
    "endless-body", "endless-small-body", "endless-header", "endless-channels", "endless-starts",
    "endless-markers", "endless-messages", "endless-preambles", "endless-orphans",
    "huge-event-of-markers",
]  # fmt: skip
"""Ids without end."""
HARMLESS = ["goes-on-after-finish", "two-finishes", "usage-lies", "type-lies", "well"]
FAULTS = sorted({*WAYS} - {*TOKENS, *HARMLESS})
MODULE = "tests.fakes.hostile_backend"


@pytest.fixture(scope="module")
def hostile_url() -> Iterator[str]:
    """A process in which each model is another way to do harm."""
    child = Child([], {}, module=MODULE)
    yield child.listening_url()
    child.kill()


@pytest.fixture(scope="module")
def well_url() -> Iterator[str]:
    """One with the same models, which do as they should."""
    child = Child(["well"], {}, module=MODULE)
    yield child.listening_url()
    child.kill()


@pytest.fixture(scope="module")
async def exposed(own_database_url: str, hostile_url: str) -> AsyncIterator[RunningGateway]:
    """A gateway with no other backend."""
    settings = gateway_settings(own_database_url, [hostile_url], upstream={"hops_max": 1})
    async with running_gateway(settings) as running:
        yield running


@pytest.fixture
async def asking(exposed: RunningGateway) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client(exposed.url, headers=exposed.headers, timeout=60) as client:
        yield client


async def until_closed(client: httpx2.AsyncClient, url: str) -> None:
    """Until the backend serves nobody any more."""
    while (await client.get(f"{url}/open")).text != "0":  # noqa: ASYNC110 - it is behind HTTP
        await asyncio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "streamed"), list(zip(TOKENS, cycle([False, True]), strict=False)))
async def test_a_backend_that_does_not_stop_is_cut_off_at_the_limit(
    asking: httpx2.AsyncClient, hostile_url: str, way: str, streamed: bool
) -> None:
    body: dict[str, Any] = {"model": way, "input": "go", "max_output_tokens": 400}
    if streamed:
        shown = (await stream(asking, body))[-1]["response"]
    else:
        shown = await create(asking, **body)
    assert (shown["status"], shown["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert 300 < shown["usage"]["output_tokens"] <= 400
    assert (await asking.get(f"/v1/responses/{shown['id']}")).json() == shown
    await until_closed(asking, hostile_url)


@pytest.mark.slow
@pytest.mark.parametrize("way", TOKENS)
async def test_others_are_answered_while_a_backend_does_not_stop(
    asking: httpx2.AsyncClient, way: str
) -> None:
    request = {"model": way, "input": "go", "max_output_tokens": 20_000}
    async with asyncio.TaskGroup() as group:
        endless = group.create_task(create(asking, **request))
        answered = 0
        while not endless.done():
            assert (await asking.get("/healthz")).status_code == 200
            answered += 1
    assert answered > 1  # the first of them before it ended
    assert endless.result()["status"] == "incomplete"
    assert endless.result()["usage"]["output_tokens"] <= 20_000
    assert len(endless.result()["output"]) < 1100


@pytest.mark.slow
@pytest.mark.parametrize("way", FAULTS)
async def test_a_backend_that_sends_nonsense_has_failed_and_is_hung_up_on(
    asking: httpx2.AsyncClient, hostile_url: str, way: str
) -> None:
    body = {"model": way, "input": "go", "max_output_tokens": 100_000}
    answer = await asking.post("/v1/responses", json=body)
    assert answer.status_code in {502, 503}, answer.text
    assert answer.json()["error"]["type"] == "server_error"
    await until_closed(asking, hostile_url)


@pytest.mark.parametrize("way", HARMLESS)
async def test_what_a_backend_adds_to_an_answer_changes_nothing(
    asking: httpx2.AsyncClient, hostile_url: str, way: str
) -> None:
    shown = await create(asking, model=way, input="go")
    assert shown["status"] == "completed"
    assert shown["usage"]["output_tokens"] in {5, 6}
    assert shown["usage"]["input_tokens"] < 1000
    await until_closed(asking, hostile_url)


@pytest.mark.slow
@pytest.mark.parametrize("way", [*FAULTS, "well"])
async def test_another_backend_goes_on_where_one_sends_nonsense(
    own_database_url: str, hostile_url: str, well_url: str, way: str
) -> None:
    settings = gateway_settings(
        own_database_url, [hostile_url, well_url], routing={"policy": "round_robin"}
    )
    async with (
        running_gateway(settings) as gateway,
        http_client(gateway.url, headers=gateway.headers, timeout=60) as client,
    ):
        for _ in range(2):  # each of the two is asked first once
            shown = await create(client, model=way, input="go")
            assert shown["status"] == "completed"
            assert shown["usage"]["output_tokens"] < 20
        hostile, well = gateway.process.foundation.pool.members()
        assert well.health.failures == 0
        assert (hostile.health.failures > 0) == (way != "well")
