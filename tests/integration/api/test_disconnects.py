"""Stored responses whose client hangs up: what the tenant's policy says becomes of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.event_grammar import check_stream
from tests.fakes.gateway import new_key
from tests.fakes.http_client import http_client
from tests.fakes.stream import as_events, parse_stream
from tests.integration.api.bodies import MODEL, create
from tests.integration.api.following import (
    created,
    ended,
    id_in,
    is_delta,
    listed,
    resumed,
    said_something,
    taken,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from gateway.settings import Settings
    from tests.fakes.gateway import RunningGateway
    from tests.fakes.observation import Backends

SLOW = "[[sim tokens_per_s=200 tokens=60 think=none]] go"
LONG = "[[sim tokens_per_s=60 tokens=60 think=none]] go"
ENDLESS = "[[sim tokens_per_s=100 tokens=100000 think=none]] go"


@pytest.fixture
async def steadfast(
    gateway: RunningGateway, settings: Settings
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a tenant whose responses go on when it hangs up."""
    key = await new_key(settings, "steadfast", {"on_disconnect": "continue"})
    headers = {"authorization": f"Bearer {key}"}
    async with http_client(gateway.url, headers=headers) as opened:
        yield opened


@pytest.mark.requirement("disconnect.continue")
async def test_a_stream_that_goes_on_can_be_resumed(steadfast: httpx2.AsyncClient) -> None:
    first = await taken(created(steadfast, input=SLOW, background=False), is_delta)
    rest = await listed(resumed(steadfast, id_in(first), len(first) - 1))
    events = parse_stream("".join([*first, *rest]))
    check_stream(as_events(events))
    last = events[-1]
    assert (last["type"], last["response"]["background"]) == ("response.completed", False)
    assert await listed(resumed(steadfast, id_in(first))) == [*first, *rest]


@pytest.mark.slow
async def test_a_body_nobody_waits_for_is_generated_all_the_same(
    steadfast: httpx2.AsyncClient, backends: Backends
) -> None:
    marker = 54_321
    body = {"model": MODEL, "input": LONG, "max_output_tokens": marker}

    def is_running(rows: list[dict[str, Any]]) -> bool:
        return any(row["max_tokens"] == marker and row["sent_tokens"] for row in rows)

    asking = asyncio.create_task(steadfast.post("/v1/responses", json=body))
    rows = await backends.until(is_running)
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    (request_id,) = (row["request_id"] for row in rows if row["max_tokens"] == marker)
    response = await ended(steadfast, f"resp_{request_id[:32]}")
    assert (response["status"], response["background"]) == ("completed", False)


@pytest.mark.slow
async def test_what_goes_on_by_itself_can_be_cancelled(steadfast: httpx2.AsyncClient) -> None:
    first = await taken(created(steadfast, input=ENDLESS, background=False), is_delta)
    path = f"/v1/responses/{id_in(first)}"
    assert (await said_something(steadfast, id_in(first)))["status"] == "in_progress"
    assert (await steadfast.post(f"{path}/cancel")).json()["status"] == "cancelled"
    assert (await steadfast.delete(path)).status_code == 200


@pytest.mark.slow
@pytest.mark.requirement("disconnect.key")
async def test_a_key_makes_it_go_on_whatever_the_policy_is(client: httpx2.AsyncClient) -> None:
    headers = {"idempotency-key": "whatever-the-policy"}
    first = await taken(created(client, headers, input=SLOW, background=False), is_delta)
    assert (await ended(client, id_in(first)))["status"] == "completed"


@pytest.mark.slow
async def test_unstored_responses_end_with_their_client_under_any_policy(
    steadfast: httpx2.AsyncClient, backends: Backends
) -> None:
    first = await taken(created(steadfast, input=ENDLESS, background=False, store=False), is_delta)
    uuid = id_in(first).removeprefix("resp_")
    await backends.until(
        lambda rows: [r["aborted"] for r in rows if str(r["request_id"]).startswith(uuid)] == [True]
    )
    assert (await steadfast.get(f"/v1/responses/{id_in(first)}")).status_code == 404


async def test_a_failure_before_the_first_token_is_still_a_status(
    steadfast: httpx2.AsyncClient,
) -> None:
    body = {"model": MODEL, "input": "[[sim status=503]] go"}
    for streamed in (False, True):
        answer = await steadfast.post("/v1/responses", json={**body, "stream": streamed})
        assert answer.status_code == 503


@pytest.mark.slow
async def test_bodies_are_what_is_stored(steadfast: httpx2.AsyncClient) -> None:
    response = await create(steadfast, input=SLOW)
    stored = await steadfast.get(f"/v1/responses/{response['id']}")
    assert stored.json() == response
