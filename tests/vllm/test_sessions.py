"""Sessions of many turns: a real server's prefix cache finds again what was said before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.event_grammar import check_stream
from tests.fakes.stream import as_events
from tests.fakes.websocket import Peer, connected
from tests.integration.api.following import created, id_in, is_delta, taken
from tests.vllm.asking import ENDED_WELL, ENDLESS, LONG_ASKED, WEATHER, WEATHER_ASKED, create
from tests.vllm.turns import Session, check_cache, check_prompts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import httpx2

    from tests.fakes.gateway import RunningGateway
    from tests.vllm.conftest import Vllm
    from tests.vllm.recording import Recorder

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

Json = dict[str, Any]

TURNS = 10
TURNS_OF_A_CONNECTION = 20
SAID = ("Hello there", "naïve 東京 🎉?", WEATHER_ASKED, "And then?", LONG_ASKED)
BODY: Json = {"tools": [WEATHER], "max_output_tokens": 120}
LANES = 4


@pytest.fixture
async def peer(recorded_gateway: RunningGateway) -> AsyncIterator[Peer]:
    async with connected(recorded_gateway.url, recorded_gateway.key) as opened:
        yield opened


async def over(peer: Peer, items: Sequence[Json], **fields: Any) -> Json:
    """A response that is not stored, as the events of its turn say it."""
    stream = check_stream(as_events(await peer.answer(input=list(items), **fields)))
    assert stream.response["status"] in ENDED_WELL, stream.response
    return stream.response


async def test_a_connection_extends_the_prompt_of_what_nobody_stores(
    peer: Peer, vllm: Vllm, recorder: Recorder
) -> None:
    previous: Json = {}

    async def say(items: Sequence[Json], **fields: Any) -> Json:
        response = await over(peer, items, model=vllm.model, **previous, **fields)
        previous["previous_response_id"] = response["id"]
        return response

    session = Session(say, vllm, recorder)
    for number in range(TURNS_OF_A_CONNECTION):
        text = SAID[number % len(SAID)]
        await session.turn(text, temperature=number % 2, seed=number, **BODY)
    assert check_prompts(session.turns)
    await check_cache(session.turns, vllm)


async def test_a_connection_is_warmed_up_by_a_turn_without_a_response(
    peer: Peer, vllm: Vllm, recorder: Recorder
) -> None:
    before = len(recorder.exchanges)
    asked = {"model": vllm.model, "temperature": 0, **BODY}
    items = [{"role": "user", "content": "My name is Ada."}]
    warm = await over(peer, items, generate=False, **asked)
    assert (warm["status"], warm["output"]) == ("completed", [])
    assert len(recorder.exchanges) == before
    response = await over(peer, [], previous_response_id=warm["id"], **asked)
    again = await over(peer, items, **asked)
    first, *_, last = recorder.exchanges[before:]
    assert first.prompt == last.prompt
    assert response["usage"]["input_tokens"] == again["usage"]["input_tokens"]


async def test_lanes_are_answered_at_once_and_each_in_its_order(peer: Peer, model: str) -> None:
    names = [f"lane-{number}" for number in range(LANES)]
    for text in ("Hello there", LONG_ASKED):
        for name in names:
            await peer.ask(text, model=model, max_output_tokens=40, stream_id=name)
    heard: dict[str, list[Json]] = {name: [] for name in names}
    ends = 0
    while ends < 2 * LANES:
        frame = await peer.hear()
        heard[frame.pop("stream_id")].append(frame)
        ends += frame["type"] in {f"response.{status}" for status in ENDED_WELL}
    for frames in heard.values():
        second = next(i for i, one in enumerate(frames) if i and one["sequence_number"] == 0)
        for turn in (frames[:second], frames[second:]):
            check_stream(as_events(turn))


async def test_a_client_that_leaves_a_connection_frees_the_server(
    blunt_gateway: RunningGateway, vllm: Vllm
) -> None:
    await vllm.until_idle()
    async with connected(blunt_gateway.url, blunt_gateway.key) as peer:
        await peer.ask(model=vllm.model, **ENDLESS)
        await vllm.until_busy()
    await vllm.until_idle()


async def test_a_conversation_extends_its_prompt(
    recorded_client: httpx2.AsyncClient, vllm: Vllm, recorder: Recorder
) -> None:
    begun = await recorded_client.post("/v1/conversations", json={})
    conversation = begun.json()["id"]

    async def say(items: Sequence[Json], **fields: Any) -> Json:
        asked = {"model": vllm.model, "input": list(items), "conversation": conversation}
        return await create(recorded_client, **asked, **fields)

    session = Session(say, vllm, recorder)
    for number in range(TURNS):
        await session.turn(SAID[number % len(SAID)], temperature=1, seed=number, **BODY)
    assert check_prompts(session.turns)
    await check_cache(session.turns, vllm)

    kept: list[Json] = []
    page: Json = {"has_more": True}
    while page["has_more"]:
        params = {"order": "asc", "limit": 7, **({"after": page["last_id"]} if kept else {})}
        path = f"/v1/conversations/{conversation}/items"
        page = (await recorded_client.get(path, params=params)).json()
        kept += page["data"]
    said = [item for turn in session.turns for one in turn.responses for item in one["output"]]
    assert [item for item in kept if item in said] == said
    asked = sum(len(one.responses) for one in session.turns)
    assert len(kept) >= len(said) + asked


async def test_a_conversation_that_is_being_added_to_is_locked(
    blunt_client: httpx2.AsyncClient, vllm: Vllm
) -> None:
    client = blunt_client
    conversation = (await client.post("/v1/conversations", json={})).json()["id"]
    more = {"model": vllm.model, "conversation": conversation}
    begun = await taken(created(client, **ENDLESS, **more), is_delta)
    refused = await client.post("/v1/responses", json={"input": "Hello", **more})
    assert refused.json()["error"]["code"] == "conversation_locked"
    await client.post(f"/v1/responses/{id_in(begun)}/cancel")
    await vllm.until_idle()
    bound = {"max_output_tokens": BODY["max_output_tokens"]}
    assert (await create(client, input="Hello", **more, **bound))["status"] in ENDED_WELL


async def test_a_chain_extends_its_prompt(
    recorded_client: httpx2.AsyncClient, vllm: Vllm, recorder: Recorder
) -> None:
    previous: Json = {}

    async def say(items: Sequence[Json], **fields: Any) -> Json:
        asked = {"model": vllm.model, "input": list(items), **previous}
        response = await create(recorded_client, **asked, **fields)
        previous["previous_response_id"] = response["id"]
        return response

    session = Session(say, vllm, recorder)
    for number in range(TURNS):
        await session.turn(SAID[number % len(SAID)], temperature=1, seed=number, **BODY)
    assert check_prompts(session.turns)
    await check_cache(session.turns, vllm)
