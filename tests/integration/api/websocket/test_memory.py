"""What a connection remembers of responses that nobody stores, and when it forgets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.services import sessions
from tests.fakes.gateway import running_gateway
from tests.fakes.stream import texts
from tests.fakes.websocket import Peer, connected
from tests.integration.api.bodies import create

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from gateway.settings import Settings
    from tests.fakes.gateway import RunningGateway

MISSING = "previous_response_not_found"
UNPAIRED = {
    "type": "function_call_output",
    "call_id": "call_openresponses_missing",
    "output": "No matching tool call exists in the previous response.",
}


@pytest.fixture
async def peer(gateway: RunningGateway) -> AsyncIterator[Peer]:
    async with connected(gateway.url, gateway.key) as opened:
        yield opened


@pytest.mark.requirement("websocket.memory")
async def test_an_unstored_response_is_continued(peer: Peer) -> None:
    first = await peer.response("cobalt")
    second = await peer.response("again", previous_response_id=first["id"])
    assert "before that you said “cobalt”" in texts(second)[-1]


async def test_who_stores_what_continues_a_conversation_stores_its_items(
    peer: Peer, client: httpx2.AsyncClient
) -> None:
    items = [
        {"type": "message", "role": "user", "content": "copper"},
        {"type": "message", "role": "assistant", "content": "Noted."},
    ]
    made = (await client.post("/v1/conversations", json={"items": items})).json()
    first = await peer.response("cobalt", conversation=made["id"])
    await client.delete(f"/v1/conversations/{made['id']}")
    second = await peer.response("again", previous_response_id=first["id"], store=True)
    path = f"/v1/responses/{second['id']}"
    listed = await client.get(f"{path}/input_items", params={"order": "asc", "limit": "2"})
    assert listed.status_code == 200, listed.text
    assert [item["content"][0]["text"] for item in listed.json()["data"]] == ["copper", "Noted."]
    body = {"model": "gpt-oss-20b", "previous_response_id": second["id"]}
    compacted = await client.post("/v1/responses/compact", json=body)
    assert compacted.status_code == 200, compacted.text


async def test_one_response_is_continued_twice(peer: Peer) -> None:
    first = await peer.response("cobalt")
    for word in ("left", "right"):
        said = texts(await peer.response(word, previous_response_id=first["id"]))[-1]
        assert f"You said “{word}”. This is turn 2" in said


@pytest.mark.requirement("websocket.reconnect")
async def test_it_is_gone_with_its_connection(gateway: RunningGateway, peer: Peer) -> None:
    first = await peer.response("copper")
    async with connected(gateway.url, gateway.key) as other:
        frame = await other.refusal(previous_response_id=first["id"])
        assert frame["error"]["code"] == MISSING
        assert await other.response("afresh")


async def test_it_is_unknown_over_http(peer: Peer, client: httpx2.AsyncClient) -> None:
    first = await peer.response("copper")
    body = {"model": "small", "input": "x", "previous_response_id": first["id"]}
    answer = await client.post("/v1/responses", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, MISSING)


@pytest.mark.requirement("websocket.failure-evicts")
async def test_a_failed_continuation_forgets_what_it_continued(peer: Peer) -> None:
    first = await peer.response("ember")
    failed = await peer.refusal(previous_response_id=first["id"], input=[UNPAIRED])
    assert isinstance(failed["error"]["code"], str)
    assert failed["error"]["message"].startswith("No tool call found")
    frame = await peer.refusal(previous_response_id=first["id"])
    assert frame["error"]["code"] == MISSING


async def test_a_continuation_that_breaks_off_forgets_it_too(peer: Peer) -> None:
    first = await peer.response("ember")
    text = "[[sim tokens=500 think=none error_after=20]] break"
    frames = await peer.answer(text, previous_response_id=first["id"])
    assert frames[-1]["type"] == "response.failed"
    assert (await peer.refusal(previous_response_id=first["id"]))["error"]["code"] == MISSING
    broken = frames[-1]["response"]["id"]
    assert (await peer.refusal(previous_response_id=broken))["error"]["code"] == MISSING


@pytest.mark.requirement("websocket.fork-keeps")
async def test_a_fork_on_another_lane_that_fails_leaves_it_alone(peer: Peer) -> None:
    first = await peer.response("ember")
    frame = await peer.refusal(previous_response_id=first["id"], input=[UNPAIRED], stream_id="fork")
    assert frame["stream_id"] == "fork"
    forked = await peer.response("go on", previous_response_id=first["id"], stream_id="fork")
    assert "turn 2" in texts(forked)[-1]
    assert await peer.response("go on", previous_response_id=first["id"])


@pytest.mark.requirement("websocket.stored-is-found")
async def test_what_is_stored_is_found_though_a_continuation_failed(peer: Peer) -> None:
    first = await peer.response("kept", store=True)
    await peer.refusal(previous_response_id=first["id"], input=[UNPAIRED])
    second = await peer.response("go on", previous_response_id=first["id"])
    assert "turn 2" in texts(second)[-1]


async def test_an_incomplete_response_is_continued(peer: Peer) -> None:
    frames = await peer.answer("[[sim think=none tokens=200]] long", max_output_tokens=16)
    assert frames[-1]["type"] == "response.incomplete"
    previous = frames[-1]["response"]["id"]
    assert await peer.response("go on", previous_response_id=previous)


@pytest.mark.slow
async def test_who_stores_what_continues_an_unstored_response_stores_both(
    peer: Peer, client: httpx2.AsyncClient
) -> None:
    stored = await peer.response("one", store=True)
    unstored = await peer.response("two", previous_response_id=stored["id"])
    kept = await peer.response("three", previous_response_id=unstored["id"], store=True)
    last = await create(client, input="four", previous_response_id=kept["id"])
    assert "turn 4" in texts(last)[-1]
    page = await client.get(
        f"/v1/responses/{kept['id']}/input_items", params={"order": "asc", "limit": "100"}
    )
    said = [item.get("content", [{}])[0].get("text") for item in page.json()["data"]]
    assert [text for text in said if text in {"one", "two", "three"}] == ["one", "two", "three"]


async def test_what_begins_unstored_and_is_stored_later_is_all_there(
    peer: Peer, client: httpx2.AsyncClient
) -> None:
    unstored = await peer.response("one")
    kept = await peer.response("two", previous_response_id=unstored["id"], store=True)
    last = await create(client, input="three", previous_response_id=kept["id"])
    assert "turn 3" in texts(last)[-1]


async def test_items_of_a_remembered_response_are_referred_to(peer: Peer) -> None:
    first = await peer.response("one")
    items = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    more = {"type": "message", "role": "user", "content": "two"}
    second = await peer.response(previous_response_id=first["id"], input=[*items, more])
    assert "turn 2" in texts(second)[-1]


@pytest.mark.slow
async def test_the_memory_is_bounded_and_keeps_the_latest_of_a_lane(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "CONNECTION_BYTES_MAX", 4096)
    async with running_gateway(settings) as gateway, connected(gateway.url, gateway.key) as peer:
        first, second = [await peer.response("x" * 100) for _ in range(2)]
        assert await peer.response(previous_response_id=second["id"], generate=False)
        frame = await peer.refusal(previous_response_id=first["id"])
        assert frame["error"]["code"] == MISSING
