"""Where the turns of a conversation go: two replicas, two backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.routed_sessions import Watched, later_turns

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.gateway import RunningGateway

MODEL = "gpt-oss-20b"


@pytest.fixture
def watched(gateway: RunningGateway, second_gateway: RunningGateway) -> Watched:
    return Watched(gateway, second_gateway)


async def created(client: httpx2.AsyncClient, text: str = "", **more: Any) -> dict[str, Any]:
    answer = await client.post("/v1/responses", json={"model": MODEL, "input": text, **more})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_a_chain_stays_at_its_backend_whichever_replica_is_asked(
    client: httpx2.AsyncClient, second: httpx2.AsyncClient, watched: Watched
) -> None:
    body = await created(client, "one")
    ((place, reason),) = watched.new()
    assert reason == "cold"
    for turn in range(6):
        asked = (second, client)[turn % 2]
        body = await created(asked, f"turn {turn}", previous_response_id=body["id"])
        assert watched.new() == {(place, "row"): 1}


async def test_a_conversation_stays_at_its_backend(
    client: httpx2.AsyncClient, second: httpx2.AsyncClient, watched: Watched
) -> None:
    conversation = (await client.post("/v1/conversations", json={})).json()["id"]
    await created(client, "one", conversation=conversation)
    ((place, _),) = watched.new()
    for turn in range(4):
        await created((second, client)[turn % 2], f"turn {turn}", conversation=conversation)
        assert watched.new() == {(place, "row"): 1}


BLOCK_IDS = 16
"""Of the simulated backends: hits are whole blocks."""


async def test_what_is_expected_is_what_backends_report(
    gateway: RunningGateway,
    second_gateway: RunningGateway,
    client: httpx2.AsyncClient,
    second: httpx2.AsyncClient,
) -> None:
    """Whichever of the replicas is asked, stored or not."""
    hits = await later_turns((gateway, second_gateway), (client, second), MODEL)
    # One more than expected is the marker that begins a thought and an answer alike.
    near = [abs(hit.expected - hit.reported) <= BLOCK_IDS for hit in hits]
    assert len(hits) == 60
    assert sum(near) >= 0.95 * len(hits)
    assert all(hit.reported > 500 for hit in hits)
