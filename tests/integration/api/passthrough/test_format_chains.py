"""Chains whose responses are of models of different formats: each is told what the others said."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.chat_server import MODEL as CHAT
from tests.fakes.chat_server import ChatServer, called, write_model
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving
from tests.fakes.stream import texts
from tests.fakes.text_server import Said, TextServer, call, text
from tests.fakes.websocket import connected
from tests.integration.api.bodies import WEATHER, create
from tests.integration.api.passthrough.conftest import model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from tests.fakes.gateway import RunningGateway
    from tests.fakes.observation import Backends

TEXT = "toy-text"
HARMONY = "gpt-oss-20b"
THOUGHT = Said("thought", "I should look.")
OSLO = '{"location": "Oslo"}'


@dataclass
class Mixed:
    """A gateway with a model of each format, and the servers of two of them."""

    client: httpx2.AsyncClient
    running: RunningGateway
    chat: ChatServer
    text: TextServer


@pytest.fixture(scope="module")
async def mixed(
    own_database_url: str, backends: Backends, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Mixed]:
    chat, passing = ChatServer(lambda _: ""), TextServer(lambda _: [], "vllm", TEXT)
    folder = write_model(tmp_path_factory.mktemp("model"))
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving(one.app)) for one in (chat, passing)]
        rendered = {"tokenizer": str(folder), "reasoning": "think", "calls": "hermes"}
        settings = gateway_settings(
            own_database_url,
            [*urls, *backends.urls],
            models=[{"id": CHAT, "format": "chat", **rendered}, model(TEXT), {"id": HARMONY}],
        )
        running = await stack.enter_async_context(running_gateway(settings))
        client = http_client(running.url, headers=running.headers)
        yield Mixed(await stack.enter_async_context(client), running, chat, passing)


def result(made: dict[str, Any]) -> list[dict[str, Any]]:
    """What the call in a response returned."""
    (asked,) = (item for item in made["output"] if item["type"] == "function_call")
    return [{"type": "function_call_output", "call_id": asked["call_id"], "output": "-3"}]


async def test_a_call_of_one_format_is_answered_in_another(mixed: Mixed) -> None:
    """Chat template, messages, and back: thoughts, calls and results are told in each."""
    mixed.chat.script = lambda _: (
        f"<think>\nHm.\n</think>\n\nI look.\n{called('get_weather', OSLO)}"
    )
    mixed.text.script = lambda _: [*text("And there?"), call("get_weather", location="Rome")]
    first = await create(mixed.client, model=CHAT, input="Weather?", tools=[WEATHER])
    second = await create(
        mixed.client,
        model=TEXT,
        input=result(first),
        tools=[WEATHER],
        previous_response_id=first["id"],
    )
    messages = mixed.text.asked[-1]["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant", "tool"]
    said, told = messages[1:]
    assert said["content"].strip() == "I look."
    assert said["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": OSLO}
    assert (told["content"], told["tool_call_id"]) == ("-3", said["tool_calls"][0]["id"])

    mixed.chat.script = lambda _: "Both cold."
    third = await create(
        mixed.client,
        model=CHAT,
        input=result(second),
        tools=[WEATHER],
        previous_response_id=second["id"],
    )
    assert texts(third) == ["Both cold."]
    prompt = mixed.chat.prompt()
    assert prompt.count("<tool_response>\n-3\n</tool_response>") == 2
    assert "And there?" in prompt
    assert '"location":"Rome"' in prompt.replace(" ", "")


async def test_a_chain_of_three_formats(mixed: Mixed) -> None:
    mixed.text.script = lambda body: [THOUGHT, *text(f"{len(body['messages'])} messages")]
    mixed.chat.script = lambda before: f"{before.count('<|im_start|>')} messages"
    first = await create(mixed.client, model=TEXT, input="one", instructions="Be short.")
    second = await create(
        mixed.client, model=HARMONY, input="two", previous_response_id=first["id"]
    )
    assert second["status"] == "completed"
    third = await create(mixed.client, model=CHAT, input="three", previous_response_id=second["id"])
    fourth = await create(mixed.client, model=TEXT, input="four", previous_response_id=third["id"])
    assert [texts(one) for one in (first, third)] == [["2 messages"], ["5 messages"]]
    assert texts(fourth) == ["7 messages"]
    contents = [one["content"] for one in mixed.text.asked[-1]["messages"]]
    assert contents[::2] == ["one", "two", "three", "four"]
    assert contents[1::2] == [texts(one)[0] for one in (first, second, third)]
    listed = await mixed.client.get(f"/v1/responses/{fourth['id']}/input_items?order=asc&limit=100")
    assert "reasoning" in {item["type"] for item in listed.json()["data"]}


async def test_what_is_not_stored_continues_what_is(mixed: Mixed) -> None:
    mixed.text.script = lambda body: text(body["messages"][-2]["content"].upper())
    first = await create(mixed.client, model=HARMONY, input="one")
    second = await create(
        mixed.client, model=TEXT, input="two", previous_response_id=first["id"], store=False
    )
    assert texts(second) == [texts(first)[0].upper()]


async def test_a_connection_tells_another_format_what_was_stored_before(mixed: Mixed) -> None:
    mixed.text.script = lambda body: text(f"{len(body['messages'])} messages")
    async with connected(mixed.running.url, mixed.running.key) as peer:
        first = await peer.response("one", model=HARMONY, store=True)
        second = await peer.response("two", model=HARMONY, previous_response_id=first["id"])
        third = await peer.response("three", model=TEXT, previous_response_id=second["id"])
        assert texts(third) == ["5 messages"]
        contents = [one["content"] for one in mixed.text.asked[-1]["messages"]]
        assert contents == ["one", *texts(first), "two", *texts(second), "three"]


async def test_what_was_stored_before_and_is_deleted_is_not_told(mixed: Mixed) -> None:
    async with connected(mixed.running.url, mixed.running.key) as peer:
        first = await peer.response("one", model=HARMONY, store=True)
        second = await peer.response("two", model=HARMONY, previous_response_id=first["id"])
        await mixed.client.delete(f"/v1/responses/{first['id']}")
        gone = await peer.refusal("three", model=TEXT, previous_response_id=second["id"])
    assert gone["error"]["code"] == "previous_response_not_found"
    assert first["id"] in gone["error"]["message"]


async def test_a_connection_continues_what_is_not_stored_in_another_format(mixed: Mixed) -> None:
    mixed.text.script = lambda body: text(f"{len(body['messages'])} messages")
    unstored = {"store": False}
    async with connected(mixed.running.url, mixed.running.key) as peer:
        first = await peer.response("one", model=TEXT, **unstored)
        again = {"previous_response_id": first["id"]}
        second = await peer.response("two", model=HARMONY, **unstored, **again)
        again = {"previous_response_id": second["id"]}
        third = await peer.response("three", model=TEXT, **unstored, **again)
    assert (texts(first), texts(third)) == (["1 messages"], ["5 messages"])
    contents = [one["content"] for one in mixed.text.asked[-1]["messages"]]
    assert contents == ["one", *texts(first), "two", *texts(second), "three"]
