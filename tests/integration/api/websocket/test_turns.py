"""Requests over a connection: what is sent back, frame by frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gateway.models.harmony.tokenizer import CALL
from tests.fakes.event_grammar import check_stream
from tests.fakes.gateway import new_key, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.stream import as_events, texts
from tests.fakes.websocket import Peer, connected
from tests.integration.api.bodies import MODEL, WEATHER, create
from tests.integration.api.following import listed, resumed
from tests.integration.api.summaries import summary_requests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from gateway.settings import Settings
    from tests.fakes.gateway import RunningGateway
    from tests.fakes.observation import Backends

USER = {"type": "message", "role": "user"}


@pytest.fixture
async def peer(gateway: RunningGateway) -> AsyncIterator[Peer]:
    async with connected(gateway.url, gateway.key) as opened:
        yield opened


@pytest.mark.requirement("websocket.frames")
@pytest.mark.requirement("websocket.create")
async def test_a_response_comes_as_the_events_of_a_stream_one_a_frame(peer: Peer) -> None:
    frames = await peer.answer("Hello there")
    stream = check_stream(as_events(frames))
    assert "Hello there" in texts(stream.response)[-1]
    assert all("stream_id" not in frame for frame in frames)
    assert all("obfuscation" not in frame for frame in frames)


@pytest.mark.requirement("stream.numbers-per-turn")
async def test_responses_follow_each_other_and_each_is_numbered_from_zero(peer: Peer) -> None:
    first = await peer.answer("first")
    second = await peer.answer("second")
    for frames in (first, second):
        check_stream(as_events(frames))
    assert first[0]["response"]["id"] != second[0]["response"]["id"]


@pytest.mark.requirement("websocket.lane-order")
@pytest.mark.requirement("websocket.default-lane")
async def test_what_was_sent_ahead_is_answered_in_order(peer: Peer) -> None:
    words = [f"word-{number}" for number in range(5)]
    for word in words:
        await peer.ask(word)
    for word in words:
        frames = await peer.hear_until(lambda frame: frame["type"] == "response.completed")
        check_stream(as_events(frames))
        assert word in texts(frames[-1]["response"])[-1]


async def test_padding_comes_only_for_those_who_ask(peer: Peer) -> None:
    frames = await peer.answer(stream_options={"include_obfuscation": True})
    deltas = [frame for frame in frames if frame["type"].endswith(".delta")]
    assert deltas
    assert all((len(one["delta"]) + len(one["obfuscation"])) % 16 == 0 for one in deltas)
    check_stream(as_events(frames))
    plain = await peer.answer(stream_options={})
    assert all("obfuscation" not in frame for frame in plain)


@pytest.mark.requirement("websocket.not-sent")
async def test_what_clients_of_http_send_too_is_taken(peer: Peer) -> None:
    """Codex and OpenAI's Agents SDK send `stream: true`, and names of their own."""
    frames = await peer.answer(stream=True, background=False, client_metadata={"session": "1"})
    assert frames[-1]["type"] == "response.completed"


async def test_a_stored_response_is_there_once_its_end_is_heard(
    peer: Peer, client: httpx2.AsyncClient
) -> None:
    response = await peer.response("Keep this", store=True)
    kept = await client.get(f"/v1/responses/{response['id']}")
    assert kept.json() == response


@pytest.mark.requirement("websocket.stored-is-found")
async def test_a_stored_response_is_continued_over_http_and_the_other_way_round(
    peer: Peer, client: httpx2.AsyncClient
) -> None:
    first = await peer.response("one", store=True)
    second = await create(client, input="two", previous_response_id=first["id"])
    third = await peer.response("three", previous_response_id=second["id"])
    assert "turn 3" in texts(third)[-1]


async def test_a_backend_that_dies_is_not_noticed(peer: Peer) -> None:
    text = "[[sim tokens=60 think=none die_after=20 times=1]] go on, websocket"
    frames = await peer.answer(text)
    check_stream(as_events(frames))
    assert frames[-1]["type"] == "response.completed"


async def test_a_model_that_breaks_off_ends_in_the_failure_of_a_stream(peer: Peer) -> None:
    frames = await peer.answer("[[sim tokens=500 think=none error_after=20]] break")
    check_stream(as_events(frames))
    assert [frame["type"] for frame in frames[-2:]] == ["error", "response.failed"]


@pytest.mark.slow
async def test_silence_is_filled_with_signs_of_life(settings: Settings) -> None:
    quick = settings.model_copy(
        update={
            "stream": settings.stream.model_copy(
                update={"keepalive_event_s": 0.05, "start_grace_s": 0.01}
            )
        }
    )
    async with running_gateway(quick) as gateway, connected(gateway.url, gateway.key) as peer:
        await peer.ask("[[sim first_token_delay_s=60]] wait")
        started = await peer.hear_until(lambda frame: frame["sequence_number"] == 4)
    assert [frame["type"] for frame in started[1:]] == ["response.in_progress"] * 4


@pytest.mark.requirement("websocket.warm-up")
@pytest.mark.parametrize("store", [True, False])
async def test_a_warm_up_says_nothing_and_is_continued(
    peer: Peer, client: httpx2.AsyncClient, backends: Backends, store: bool
) -> None:
    question = [{**USER, "content": "Who are you?"}]
    frames = await peer.answer(generate=False, store=store, input=question)
    check_stream(as_events(frames))
    warm = frames[-1]["response"]
    assert (warm["status"], warm["output"]) == ("completed", [])
    assert warm["usage"]["total_tokens"] == 0
    assert await backends.of_response(warm["id"]) == []
    kept = await client.get(f"/v1/responses/{warm['id']}")
    assert kept.status_code == (200 if store else 404)
    response = await peer.response(input=[], previous_response_id=warm["id"], store=store)
    assert "Who are you?" in texts(response)[-1]
    ((one,), (other,)) = [
        await backends.of_response(r["id"])
        for r in (response, await peer.response(input=question, store=store))
    ]
    assert one["prompt_ids"] == other["prompt_ids"]


@pytest.mark.parametrize("store", [True, False])
async def test_a_warm_up_may_be_instructions_and_tools_alone(
    peer: Peer, client: httpx2.AsyncClient, backends: Backends, store: bool
) -> None:
    body: dict[str, Any] = {"instructions": "Be brief.", "tools": [WEATHER], "store": store}
    warm = await peer.response(generate=False, input=[], **body)
    assert (warm["status"], warm["output"]) == ("completed", [])
    if store:
        listed = await client.get(f"/v1/responses/{warm['id']}/input_items")
        assert (listed.status_code, listed.json()["data"]) == (200, [])
        empty = {"model": MODEL, "previous_response_id": warm["id"]}
        compacted = await client.post("/v1/responses/compact", json=empty)
        assert "nothing to compact" in compacted.json()["error"]["message"]
    question = [{**USER, "content": "Who are you?"}]
    asked = [
        await peer.response(input=question, **continued, **body)
        for continued in ({"previous_response_id": warm["id"]}, {})
    ]
    ((one,), (other,)) = [await backends.of_response(response["id"]) for response in asked]
    assert one["prompt_ids"] == other["prompt_ids"]
    again = await peer.response("And?", previous_response_id=asked[0]["id"], **body)
    assert again["status"] == "completed"


async def test_a_warm_up_is_checked_like_any_request(peer: Peer) -> None:
    output = {"type": "function_call_output", "call_id": "call_none", "output": "1"}
    frame = await peer.refusal(generate=False, input=[output])
    assert frame["error"]["param"] == "input"


async def test_a_warm_up_is_not_summarised_and_what_continues_it_is(
    peer: Peer, backends: Backends
) -> None:
    story = [{**USER, "content": "hi"}, {"role": "assistant", "content": "word " * 1200}]
    managed = [{"type": "compaction", "compact_threshold": 1000}]
    before = len(await summary_requests(backends))
    warm = await peer.response(generate=False, store=False, input=story, context_management=managed)
    assert warm["output"] == []
    assert len(await summary_requests(backends)) == before
    answer = await peer.response(
        "Go on", previous_response_id=warm["id"], store=False, context_management=managed
    )
    assert answer["output"][0]["type"] == "compaction"
    again = await peer.response(
        "And?", previous_response_id=answer["id"], store=False, context_management=managed
    )
    assert again["output"][0]["type"] == "reasoning"
    assert len(await summary_requests(backends)) == before + 1


async def test_a_tool_loop_extends_its_prompt_id_for_id(peer: Peer, backends: Backends) -> None:
    body: dict[str, Any] = {"tools": [WEATHER]}
    first = await peer.response("Use get_weather for Oslo", **body)
    call = first["output"][-1]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "65F"}
    second = await peer.response(input=[output], previous_response_id=first["id"], **body)
    third = await peer.response("And now?", previous_response_id=second["id"], **body)
    (one,), (two,), (three,) = [await backends.of_response(r["id"]) for r in (first, second, third)]
    said = one["prompt_ids"] + one["sent_ids"]
    assert said[-1] == CALL
    assert two["prompt_ids"][: len(said)] == said
    # The answer is there, so what was thought before it is not shown again; all else is.
    asked = one["prompt_ids"][:-2]
    assert three["prompt_ids"][: len(asked)] == asked
    assert "65F" in texts(second)[-1]


@pytest.mark.slow
async def test_a_durable_response_outlives_its_connection(
    gateway: RunningGateway, settings: Settings
) -> None:
    key = await new_key(settings, "steadfast", {"on_disconnect": "continue"})
    async with connected(gateway.url, key) as peer:
        await peer.ask("[[sim tokens_per_s=200 tokens=60 think=none]] go", store=True)
        frames = await peer.hear_until(lambda frame: frame["type"].endswith(".delta"))
    response_id = frames[0]["response"]["id"]
    headers = {"authorization": f"Bearer {key}"}
    async with http_client(gateway.url, headers=headers) as client:
        rest = await listed(resumed(client, response_id, frames[-1]["sequence_number"]))
    assert "response.completed" in rest[-2] + rest[-1]


async def test_the_dialect_of_the_path_is_spoken(gateway: RunningGateway) -> None:
    address = f"{gateway.url.replace('http', 'ws')}/openresponses/v1/responses"
    async with connected(gateway.url, gateway.key, address=address) as peer:
        types = {frame["type"] for frame in await peer.answer()}
    assert "response.reasoning.delta" in types
    assert "response.reasoning_text.delta" not in types


async def test_a_compacted_context_begins_a_new_chain(
    peer: Peer, client: httpx2.AsyncClient
) -> None:
    said = [
        {**USER, "content": [{"type": "input_text", "text": "Remember: cobalt."}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I will."}]},
    ]
    answer = await client.post(
        "/v1/responses/compact", json={"model": "gpt-oss-20b", "input": said}
    )
    assert answer.status_code == 200, answer.text
    more = {**USER, "content": "Continue from here."}
    first = await peer.response(input=[*answer.json()["output"], more], tools=[])
    second = await peer.response("Go on", previous_response_id=first["id"])
    assert "Go on" in texts(second)[-1]


async def test_a_conversation_is_continued(peer: Peer, client: httpx2.AsyncClient) -> None:
    made = (await client.post("/v1/conversations", json={})).json()
    responses = [
        await peer.response("one", conversation=made["id"], store=store) for store in (True, False)
    ]
    assert [one["conversation"] for one in responses] == [{"id": made["id"]}] * 2
    unstored = responses[-1]["id"]
    kept = await peer.response("two", previous_response_id=unstored, store=True)
    last = await create(client, input="three", previous_response_id=kept["id"])
    assert "turn 4" in texts(last)[-1]
