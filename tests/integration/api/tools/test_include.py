"""`include` when a response is read: what its request could have asked for, for whoever asks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from openai import AsyncOpenAI

from tests.fakes.gateway import RunningGateway, gateway_settings, running_gateway
from tests.fakes.http_client import http_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from tests.fakes.observation import Backends

    Json = dict[str, Any]

SOURCES, OUTPUTS = "web_search_call.action.sources", "code_interpreter_call.outputs"
INCLUDE = [SOURCES, OUTPUTS]
QUERY = "&".join(f"include[]={value}" for value in INCLUDE)
REQUEST: Json = {
    "model": "gpt-oss-20b",
    "input": "[[sim steps=search nothing of the kind; python print(6 * 7); quote]]",
    "tools": [{"type": "web_search"}, {"type": "code_interpreter", "container": {"type": "auto"}}],
}


@pytest.fixture(scope="module")
async def hosting(own_database_url: str, backends: Backends) -> AsyncIterator[RunningGateway]:
    settings = gateway_settings(
        own_database_url,
        backends.urls,
        models=[{"id": "gpt-oss-20b"}],
        tools={"web": {"enabled": True}, "python": {"enabled": True, "engine": "monty"}},
    )
    async with running_gateway(settings) as running:
        yield running


@pytest.fixture
async def client(hosting: RunningGateway) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client(hosting.url, headers=hosting.headers) as opened:
        yield opened


async def got(client: httpx2.AsyncClient, path: str) -> bytes:
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.content


async def events_of(client: httpx2.AsyncClient, path: str) -> list[Json]:
    lines = (await got(client, path)).decode().splitlines()
    return [orjson.loads(line[6:]) for line in lines if line.startswith("data: {")]


def hidden(item: Json) -> Json:
    """The item without what is shown only to those who ask for it."""
    if item["type"] == "web_search_call":
        action = {name: item["action"][name] for name in item["action"] if name != "sources"}
        return {**item, "action": action}
    return {**item, "outputs": None} if item["type"] == "code_interpreter_call" else item


def check(shown: Json, plain: Json) -> None:
    """`shown` has sources and outputs, and is otherwise what `plain` is."""
    search, python = (
        next(item for item in shown["output"] if item["type"] == kind)
        for kind in ("web_search_call", "code_interpreter_call")
    )
    assert "sources" in search["action"]
    assert python["outputs"] == [{"type": "logs", "logs": "42\n"}]
    assert {**shown, "output": list(map(hidden, shown["output"]))} == plain


@pytest.mark.slow
async def test_a_reader_asks_for_what_the_request_did_not(client: httpx2.AsyncClient) -> None:
    created = (await client.post("/v1/responses", json=REQUEST)).json()
    path = f"/v1/responses/{created['id']}"
    shown = orjson.loads(await got(client, f"{path}?{QUERY}"))
    check(shown, created)
    assert orjson.loads(await got(client, path)) == created
    only = orjson.loads(await got(client, f"{path}?include={OUTPUTS}"))
    assert [hidden(item) for item in only["output"]] == created["output"]
    assert "sources" not in str(only["output"])
    wanted = (await client.post("/v1/responses", json={**REQUEST, "include": INCLUDE})).json()
    again = await got(client, f"/v1/responses/{wanted['id']}")
    assert orjson.loads(again) == wanted
    assert await got(client, f"/v1/responses/{wanted['id']}?{QUERY}") == again


@pytest.mark.slow
async def test_input_items_and_conversations_are_read_with_it(client: httpx2.AsyncClient) -> None:
    conversation = (await client.post("/v1/conversations", json={})).json()["id"]
    body = {**REQUEST, "conversation": conversation}
    created = (await client.post("/v1/responses", json=body)).json()
    shown = orjson.loads(await got(client, f"/v1/responses/{created['id']}?{QUERY}"))
    path = f"/v1/conversations/{conversation}/items"
    listed = orjson.loads(await got(client, f"{path}?order=asc&{QUERY}"))["data"]
    assert listed[1:] == shown["output"]
    assert orjson.loads(await got(client, f"{path}?order=asc"))["data"][1:] == created["output"]
    for item, plain in zip(shown["output"], created["output"], strict=True):
        assert orjson.loads(await got(client, f"{path}/{item['id']}?{QUERY}")) == item
        assert orjson.loads(await got(client, f"{path}/{item['id']}")) == plain
    for before in ({"conversation": conversation}, {"previous_response_id": created["id"]}):
        more = {"model": "gpt-oss-20b", "input": "And?", **before}
        next_one = (await client.post("/v1/responses", json=more)).json()
        path = f"/v1/responses/{next_one['id']}/input_items?order=asc"
        listed = orjson.loads(await got(client, f"{path}&{QUERY}"))["data"]
        assert listed[1 : 1 + len(shown["output"])] == shown["output"]
        listed = orjson.loads(await got(client, path))["data"]
        assert listed[1 : 1 + len(shown["output"])] == created["output"]


@pytest.mark.slow
async def test_a_replay_shows_what_its_reader_asks_for(client: httpx2.AsyncClient) -> None:
    body = {**REQUEST, "background": True, "stream": True}
    answer = await client.post("/v1/responses", json=body)
    lines = answer.text.splitlines()
    events = [orjson.loads(line[6:]) for line in lines if line.startswith("data: {")]
    path = f"/v1/responses/{events[-1]['response']['id']}"
    assert await events_of(client, f"{path}?stream=true&include_obfuscation=false") == [
        {name: event[name] for name in event if name != "obfuscation"} for event in events
    ]
    shown = await events_of(client, f"{path}?stream=true&include_obfuscation=false&{QUERY}")
    assert [one["sequence_number"] for one in shown] == [one["sequence_number"] for one in events]
    check(shown[-1]["response"], events[-1]["response"])
    assert shown[-1]["response"] == orjson.loads(await got(client, f"{path}?{QUERY}"))
    done = [one["item"] for one in shown if one["type"] == "response.output_item.done"]
    assert done == shown[-1]["response"]["output"]
    for after in (0, len(shown) // 2, len(shown) - 1):
        query = f"stream=true&include_obfuscation=false&starting_after={after}&{QUERY}"
        assert await events_of(client, f"{path}?{query}") == shown[after + 1 :]


@pytest.mark.slow
async def test_a_response_that_runs_is_followed_with_it(client: httpx2.AsyncClient) -> None:
    slow = {**REQUEST, "background": True, "stream": True}
    slow["input"] = f"[[sim tokens_per_s=100]]{REQUEST['input']}"
    async with client.stream("POST", "/v1/responses", json=slow) as answer:
        lines = answer.aiter_lines()
        first = orjson.loads([await anext(lines), await anext(lines)][1][6:])
        path = f"/v1/responses/{first['response']['id']}"
        follower = asyncio.create_task(events_of(client, f"{path}?stream=true&{QUERY}"))
        plain = [orjson.loads(line[6:]) async for line in lines if line.startswith("data: {")]
    shown = await follower
    assert [one["sequence_number"] for one in shown] == list(range(len(plain) + 1))
    check(shown[-1]["response"], plain[-1]["response"])


@pytest.mark.slow
async def test_the_sdk_retrieves_with_it(hosting: RunningGateway) -> None:
    asked: Any = INCLUDE
    async with AsyncOpenAI(base_url=f"{hosting.url}/v1", api_key=hosting.key) as sdk:
        request: Any = {**REQUEST, "background": True, "stream": True}
        end = [event async for event in await sdk.responses.create(**request)][-1]
        response_id = end.response.id
        shown = await sdk.responses.retrieve(response_id, include=asked)
        plain = end.response.model_dump(exclude_unset=True)
        check(shown.model_dump(exclude_unset=True), plain)
        again: Any = await sdk.responses.retrieve(response_id, include=asked, stream=True)
        assert [event async for event in again][-1].response == shown
        items = sdk.responses.input_items.list(response_id, include=asked)
        assert [item.type async for item in items] == ["message"]
