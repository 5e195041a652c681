"""Models whose servers take messages and return text: all that a client can see of them."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from openai import AsyncOpenAI

from tests.fakes.gateway import gateway_settings, new_key, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.mcp_server import serving as serving_tools
from tests.fakes.serving import serving
from tests.fakes.stream import stream, texts
from tests.fakes.text_server import DIALECTS, Said, TextServer, call, text
from tests.fakes.websocket import connected
from tests.integration.api.bodies import ADD, WEATHER, create, refused
from tests.integration.api.following import (
    created,
    data_of,
    ended,
    id_in,
    is_delta,
    listed,
    resumed,
    taken,
)
from tests.integration.api.passthrough.conftest import model

if TYPE_CHECKING:
    from tests.integration.api.passthrough.conftest import Passing

LONG = "A long answer, in pieces of a few characters."
MODELS = [f"toy-{one}" for one in DIALECTS]
THOUGHT = Said("thought", "Let me think about that.")


def kinds(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


@pytest.mark.parametrize("name", MODELS)
async def test_thoughts_and_an_answer(passing: Passing, name: str) -> None:
    server = passing.servers[name]
    server.script = lambda _: [THOUGHT, *text("Cold, né? 🙂 It is.")]
    events = await stream(passing.client, {"model": name, "input": "Oslo?", "instructions": "Be."})
    response = events[-1]["response"]
    assert kinds(response) == ["reasoning", "message"]
    assert texts(response) == ["Cold, né? 🙂 It is."]
    assert response["output"][0]["content"][0]["text"] == THOUGHT.text
    deltas = [one["delta"] for one in events if one["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "Cold, né? 🙂 It is."
    asked = server.asked[0]
    assert asked["messages"] == [
        {"role": "system", "content": "Be."},
        {"role": "user", "content": "Oslo?"},
    ]
    assert "max_tokens" not in asked
    assert "top_p" not in asked
    usage = response["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (11, 7)
    assert "estimated" not in usage
    assert (await passing.client.get(f"/v1/responses/{response['id']}")).json() == response


async def test_usage_that_is_not_told_is_estimated_and_says_so(passing: Passing) -> None:
    server = passing.servers["toy-ollama"]
    server.tells_usage = False
    server.script = lambda _: text("x" * 40)
    made = await create(passing.client, model="toy-ollama", input="word " * 40)
    assert made["usage"]["estimated"] is True
    assert 8 <= made["usage"]["output_tokens"] <= 13
    assert 40 <= made["usage"]["input_tokens"] <= 80


@pytest.mark.parametrize("name", MODELS)
async def test_calls_at_once_and_their_results(passing: Passing, name: str) -> None:
    server = passing.servers[name]
    oslo, rome = call("get_weather", location="Oslo"), call("get_weather", location="Rome")
    server.script = lambda body: (
        text("Both are cold.")
        if body["messages"][-1]["role"] == "tool"
        else [*text("I look."), oslo, rome]
    )
    first = await create(passing.client, model=name, input="Weather?", tools=[WEATHER, ADD])
    assert kinds(first) == ["message", "function_call", "function_call"]
    calls = first["output"][1:]
    assert [json.loads(one["arguments"])["location"] for one in calls] == ["Oslo", "Rome"]
    outputs = [
        {"type": "function_call_output", "call_id": one["call_id"], "output": "-3"} for one in calls
    ]
    second = await create(
        passing.client,
        model=name,
        input=outputs,
        tools=[WEATHER, ADD],
        previous_response_id=first["id"],
    )
    assert texts(second) == ["Both are cold."]
    _, said, *results = server.asked[-1]["messages"]
    assert [one["function"]["name"] for one in said["tool_calls"]] == ["get_weather"] * 2
    assert [one["tool_call_id"] for one in results] == [one["id"] for one in said["tool_calls"]]
    assert [tool["function"]["name"] for tool in server.asked[-1]["tools"]] == [
        "get_weather",
        "add",
    ]


async def test_a_call_that_is_demanded_is_asked_for_and_insisted_on(passing: Passing) -> None:
    server = passing.servers["toy-ollama"]
    said = iter([text("No."), [call("add", a=1, b=2)]])
    server.script = lambda _: next(said)
    made = await create(
        passing.client,
        model="toy-ollama",
        input="1 + 2?",
        tools=[WEATHER, ADD],
        tool_choice={"type": "function", "name": "add"},
    )
    assert kinds(made) == ["message", "function_call"]
    assert made["output"][0]["phase"] == "commentary"
    assert [one["tool_choice"] for one in server.asked] == ["required", "required"]
    assert [tool["function"]["name"] for tool in server.asked[0]["tools"]] == ["add"]


async def test_an_answer_in_a_format_is_checked_and_said_again(passing: Passing) -> None:
    server = passing.servers["toy-llamacpp"]
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    said = iter([text('{"n": "one"}'), text('{"n": 1}')])
    server.script = lambda _: next(said)
    form = {"type": "json_schema", "name": "number", "schema": schema, "strict": True}
    made = await create(passing.client, model="toy-llamacpp", input="One?", text={"format": form})
    assert texts(made) == ['{"n": 1}']
    told = server.asked[0]["response_format"]
    assert told["json_schema"]["schema"] == schema
    assert [one["role"] for one in server.asked[1]["messages"]] == ["system", "user"]


async def test_text_before_a_call_is_reasoning_beside_a_format(passing: Passing) -> None:
    server = passing.servers["toy-ollama"]
    said = iter([[*text("Sure."), *text(" Let me add.")], [*text("I add."), call("add", a=1, b=2)]])
    server.script = lambda _: next(said)
    form = {"format": {"type": "json_object"}}
    made = await create(
        passing.client, model="toy-ollama", input="1 + 2? JSON.", tools=[ADD], text=form
    )
    # The text of the first turn, which no call followed, was no answer: it was repeated.
    assert kinds(made) == ["reasoning", "function_call"]
    assert made["output"][0]["content"][0]["text"] == "I add."


NUMBER = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
NUMBERED = {"type": "json_schema", "name": "number", "schema": NUMBER, "strict": True}
FORMATS = [NUMBERED, {"type": "json_object"}]
LONG_NUMBER = '{"n": 1234567890123456789012}'


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form["type"])
@pytest.mark.parametrize("name", MODELS)
async def test_an_answer_in_a_format_comes_as_it_is_written(
    passing: Passing, name: str, form: dict[str, Any]
) -> None:
    """The stream has the beginning while the server has not said the rest."""
    server = passing.servers[name]
    server.script = lambda _: text(LONG_NUMBER)
    server.holds = released = asyncio.Event()
    frames = created(
        passing.client, model=name, input="Number? JSON.", text={"format": form}, background=False
    )
    begun = [await anext(frames)]
    while not is_delta(begun[-1]):
        begun.append(await anext(frames))
    released.set()
    last = [data_of(frame) async for frame in frames if frame.startswith("event:")][-1]
    assert last["type"] == "response.completed"
    assert texts(last["response"]) == [LONG_NUMBER]
    assert server.asked[0]["response_format"]["type"] == form["type"]


async def test_a_chat_completion_in_a_format_comes_as_it_is_written(passing: Passing) -> None:
    server = passing.servers["toy-vllm"]
    server.script = lambda _: text(LONG_NUMBER)
    server.holds = released = asyncio.Event()
    async with AsyncOpenAI(
        base_url=f"{passing.gateway.url}/v1", api_key=passing.gateway.key
    ) as openai:
        chunks = await openai.chat.completions.create(
            model="toy-vllm",
            messages=[{"role": "user", "content": "Number? JSON."}],
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "number", "schema": NUMBER, "strict": True},
            },
            stream=True,
        )
        said = []
        async for chunk in chunks:
            said += [one.delta.content for one in chunk.choices if one.delta.content]
            if said:
                released.set()
    assert "".join(said) == LONG_NUMBER
    assert len(said) > 1


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("end", ['"}', ""], ids=["whole", "broken off"])
async def test_an_answer_that_was_shown_and_does_not_fit_fails_the_stream(
    passing: Passing, end: str, *, background: bool
) -> None:
    server = passing.servers["toy-vllm"]
    server.script = lambda _: text(f'{{"n": "not a number, and too long to be taken back{end}')
    asked = {"model": "toy-vllm", "input": "One?", "text": {"format": NUMBERED}}
    last = (await stream(passing.client, {**asked, "background": background}))[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "invalid_structured_output"
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("name", "status", "refusal"),
    [
        (
            "toy-tgi",
            422,
            {"error": "Grammar error: not supported by this model", "error_type": "validation"},
        ),
        ("toy-vllm", 400, {"error": {"message": "response_format is not supported", "code": 400}}),
    ],
)
async def test_a_server_that_takes_no_formats_says_so(
    passing: Passing, name: str, status: int, refusal: dict[str, Any]
) -> None:
    server = passing.servers[name]
    server.refuses = status, refusal
    body = {"model": name, "input": "One? JSON.", "text": {"format": {"type": "json_object"}}}
    error = await refused(passing.client, 400, **body)
    assert (error["code"], error["param"]) == ("unsupported_parameter", "text.format")
    assert error["type"] == "invalid_request_error"
    server.refuses = status, refusal
    chat = await passing.client.post(
        "/v1/chat/completions",
        json={
            "model": name,
            "messages": [{"role": "user", "content": "One? JSON."}],
            "response_format": {"type": "json_object"},
        },
    )
    assert (chat.status_code, chat.json()["error"]["param"]) == (400, "response_format")
    server.refuses = status, refusal
    assert (await refused(passing.client, 400, **body, stream=True))["param"] == "text.format"
    server.refuses = status, refusal
    background = await create(passing.client, **body, background=True)
    made = await ended(passing.client, background["id"])
    assert (made["status"], made["error"]["code"]) == ("failed", "unsupported_parameter")
    server.refuses = 400, {"error": {"message": "the prompt has too many vowels"}}
    assert (await refused(passing.client, 502, **body))["code"] is None


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        ((400, "response_format is not supported"), 400, "unsupported_parameter"),
        ((500, "it died"), 500, "server_error"),
    ],
)
async def test_a_failed_completion_is_the_same_for_who_sent_it_twice(
    passing: Passing, refusal: tuple[int, str], status: int, code: str
) -> None:
    server, metrics = passing.servers["toy-vllm"], passing.gateway.process.foundation.metrics
    begun, held = asyncio.Event(), asyncio.Event()

    def refuse_the_next(_: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        if begun.is_set():
            return refusal[0], {"error": {"message": refusal[1], "code": refusal[0]}}
        begun.set()
        return None

    server.script = lambda _: text('{"a": 1, "b": 2, "c": 3}')
    server.holds, server.breaks_after, server.refuses_if = held, 4, refuse_the_next
    body = {
        "model": "toy-vllm",
        "messages": [{"role": "user", "content": "One? JSON."}],
        "response_format": {"type": "json_object"},
        "store": True,
    }
    headers = {"idempotency-key": f"refused-with-{status}"}
    try:
        async with asyncio.TaskGroup() as group:
            post = partial(passing.client.post, "/v1/chat/completions", json=body, headers=headers)
            both = [group.create_task(post())]
            await begun.wait()
            both.append(group.create_task(post()))
            while b"gateway_followers 2.0" not in metrics.exposition():
                await passing.client.get("/v1/models")
            held.set()
    finally:
        server.breaks_after, server.refuses_if = None, lambda _: None
    assert [one.result().headers.get("idempotent-replayed") for one in both] == [None, "true"]
    repeated = both[1].result()
    assert (repeated.status_code, repeated.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    ("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
async def test_a_turn_that_is_cut_is_incomplete(passing: Passing, finish: str, reason: str) -> None:
    passing.servers["toy-vllm"].finish = finish
    made = await create(passing.client, model="toy-vllm", input="go", max_output_tokens=16)
    assert (made["status"], made["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert texts(made) == ["Hello."]
    assert passing.servers["toy-vllm"].asked[0]["max_tokens"] == 16


@pytest.mark.slow
async def test_hosted_tools_run_between_turns(passing: Passing) -> None:
    server = passing.servers["toy-tgi"]
    turns = [[*text("Let me add."), call("srv.add", a=1, b=2)], text("It is 3.")]
    server.script = lambda body: turns[[one["role"] for one in body["messages"]].count("tool")]
    with serving_tools() as tools:
        tool = {
            "type": "mcp",
            "server_label": "srv",
            "server_url": tools.url,
            "require_approval": "never",
            "allowed_tools": ["add"],
        }
        made = await create(passing.client, model="toy-tgi", input="1 + 2?", tools=[tool])
    assert kinds(made) == ["mcp_list_tools", "message", "mcp_call", "message"]
    assert texts(made)[-1] == "It is 3."
    said, result = server.asked[-1]["messages"][-2:]
    assert said["content"] == "Let me add."
    assert result["tool_call_id"] == said["tool_calls"][0]["id"]
    assert "3" in result["content"]


def one_breaks_off(passing: Passing, *, after: int) -> None:
    """Whichever server of the pair is asked first breaks off after so many events."""

    def script(_: object) -> list[Said]:
        for server in passing.pair:
            server.breaks_after = None
        return text(LONG)

    for server in passing.pair:
        server.breaks_after, server.script = after, script


async def test_another_server_says_what_nobody_has_seen(passing: Passing) -> None:
    one_breaks_off(passing, after=1)
    made = await create(passing.client, model="toy-pair", input="go")
    assert texts(made) == [LONG]
    assert [len(server.asked) for server in passing.pair] == [1, 1]


async def test_a_stream_fails_whose_beginning_was_seen(passing: Passing) -> None:
    one_breaks_off(passing, after=4)
    last = (await stream(passing.client, {"model": "toy-pair", "input": "go"}))[-1]
    assert last["type"] == "response.failed"
    assert "broke off" in last["response"]["error"]["message"]
    assert [item["status"] for item in last["response"]["output"]] == ["incomplete"]
    assert sum(len(server.asked) for server in passing.pair) == 1


async def test_a_background_response_begins_its_turn_anew(passing: Passing) -> None:
    one_breaks_off(passing, after=4)
    frames = await listed(created(passing.client, model="toy-pair", input="go"))
    made = (await passing.client.get(f"/v1/responses/{id_in(frames)}")).json()
    assert made["status"] == "completed"
    broken, whole = made["output"]
    assert (broken["status"], whole["status"]) == ("incomplete", "completed")
    assert LONG.startswith(broken["content"][0]["text"])
    assert whole["content"][0]["text"] == LONG
    assert (made["usage"]["input_tokens"], made["usage"]["output_tokens"]) == (11, 7)
    assert await listed(resumed(passing.client, id_in(frames), 3)) == frames[4:]
    first, second = (body for server in passing.pair for body in server.asked)
    assert first["messages"] == second["messages"]
    await create(passing.client, model="toy-pair", input="on", previous_response_id=made["id"])
    third = max((body for server in passing.pair for body in server.asked), key=size_of)
    assert [one["content"] for one in third["messages"]] == ["go", LONG, "on"]


def size_of(body: dict[str, Any]) -> int:
    return len(body["messages"])


async def test_a_turn_is_not_begun_anew_twice(passing: Passing) -> None:
    for server in passing.pair:
        server.script = lambda _: text(LONG)
        server.breaks_after, server.breaks_always = 4, True
    frames = await listed(created(passing.client, model="toy-pair", input="go"))
    made = (await passing.client.get(f"/v1/responses/{id_in(frames)}")).json()
    assert made["status"] == "failed"
    assert [item["status"] for item in made["output"]] == ["incomplete", "incomplete"]


@pytest.mark.slow
async def test_another_replica_begins_the_turn_anew(database_url: str) -> None:
    server = TextServer(lambda _: text(LONG))
    server.holds = released = asyncio.Event()
    async with serving(server.app) as url:
        settings = gateway_settings(database_url, [url], models=[model(server.model)])
        async with (
            running_gateway(settings) as leaving,
            http_client(leaving.url, headers=leaving.headers) as client,
        ):
            begun = created(client, model=server.model, input="go")
            seen = await taken(begun, is_delta)
            async with (
                running_gateway(settings) as staying,
                http_client(staying.url, headers=leaving.headers) as other,
            ):
                await leaving.process.begin_drain()
                leaving.process.end_streams()
                released.set()
                made = await ended(other, id_in(seen))
    assert [item["status"] for item in made["output"]] == ["incomplete", "completed"]
    assert texts(made)[-1] == LONG
    assert server.asked[0] == server.asked[1]


@pytest.mark.parametrize(
    ("name", "status", "body", "code"),
    [
        (
            "toy-llamacpp",
            400,
            {"error": {"code": 400, "message": "the request exceeds the available context size"}},
            "context_length_exceeded",
        ),
        (
            "toy-tgi",
            422,
            {"error": "`inputs` must have less than 4096 tokens", "error_type": "validation"},
            "context_length_exceeded",
        ),
    ],
)
async def test_refusals_are_told_in_the_words_of_the_api(
    passing: Passing, name: str, status: int, body: dict[str, Any], code: str
) -> None:
    passing.servers[name].refuses = status, body
    made = await refused(passing.client, 400, model=name, input="go")
    assert made["code"] == code


_THOUGHT_ALONE = {
    "type": "reasoning",
    "id": "rs_alone",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
}


@pytest.mark.parametrize("item", [_THOUGHT_ALONE, {"role": "assistant", "content": []}])
async def test_items_that_the_model_is_not_shown_are_nothing_to_answer(
    passing: Passing, item: dict[str, Any]
) -> None:
    made = await refused(passing.client, 400, model="toy-vllm", input=[item])
    assert (made["param"], made["code"]) == ("input", "missing_required_parameter")
    assert not passing.servers["toy-vllm"].asked


async def test_an_empty_conversation_is_nothing_to_answer(passing: Passing) -> None:
    empty = (await passing.client.post("/v1/conversations", json={})).json()["id"]
    made = await refused(passing.client, 400, model="toy-vllm", conversation=empty)
    assert "Send a message" in made["message"]
    assert not passing.servers["toy-vllm"].asked
    asked = await create(passing.client, model="toy-vllm", conversation=empty, input="go")
    assert asked["status"] == "completed"


async def test_a_failure_in_a_stream_fails_the_response(passing: Passing) -> None:
    server = passing.servers["toy-ollama"]
    server.script = lambda _: text("A long answer, in pieces.")
    server.fails_with = {"error": {"message": "model runner has stopped", "type": "api_error"}}
    events = await stream(passing.client, {"model": "toy-ollama", "input": "go"})
    assert events[-1]["type"] == "response.failed"


async def test_what_takes_ids_is_refused(passing: Passing) -> None:
    key = await new_key(passing.settings, "trusted", {"response_messages": "allowed"})
    body = {"model": "toy-ollama", "input": "go", "include": ["output_messages.token_ids"]}
    headers = {"authorization": f"Bearer {key}"}
    answer = await passing.client.post("/v1/responses", json=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "include")


async def test_the_sdk_streams_chat_completions(passing: Passing) -> None:
    passing.servers["toy-tgi"].script = lambda _: [THOUGHT, *text("Cold, né?")]
    key = passing.gateway.key
    async with AsyncOpenAI(base_url=f"{passing.gateway.url}/v1", api_key=key) as openai:
        said = ""
        stream = await openai.chat.completions.create(
            model="toy-tgi",
            messages=[{"role": "user", "content": "Oslo?"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            said += "".join(one.delta.content or "" for one in chunk.choices)
        assert said == "Cold, né?"
        told = await openai.models.retrieve("toy-ollama")
        able = (told.model_extra or {})["capabilities"]
        assert {"vision", "tools", "reasoning"} <= set(able)


async def test_a_conversation_and_its_summary(passing: Passing) -> None:
    passing.servers["toy-vllm"].script = lambda body: text(f"{len(body['messages'])} messages")
    first = await create(passing.client, model="toy-vllm", input="one", background=True)
    assert texts(await ended(passing.client, first["id"])) == ["1 messages"]
    second = await create(
        passing.client, model="toy-vllm", input="two", previous_response_id=first["id"]
    )
    assert texts(second) == ["3 messages"]
    short = await passing.client.post(
        "/v1/responses/compact", json={"model": "toy-vllm", "previous_response_id": second["id"]}
    )
    assert short.status_code == 200, short.text
    third = await create(
        passing.client,
        model="toy-vllm",
        input=[*short.json()["output"], {"role": "user", "content": "go"}],
    )
    assert third["status"] == "completed"


async def test_a_websocket_continues_what_is_not_stored(passing: Passing) -> None:
    passing.servers["toy-vllm"].script = lambda body: text(f"{len(body['messages'])} messages")
    async with connected(passing.gateway.url, passing.gateway.key) as peer:
        first = await peer.response("one", model="toy-vllm", store=False)
        again = await peer.response(
            "two", model="toy-vllm", store=False, previous_response_id=first["id"]
        )
    assert [texts(one) for one in (first, again)] == [["1 messages"], ["3 messages"]]


async def test_arguments_that_are_too_deep_for_an_item_are_none(passing: Passing) -> None:
    deep: list[object] = []
    for _ in range(300):
        deep = [deep]
    passing.servers["toy-vllm"].script = lambda _: [call("tool_search", query=deep)]
    tools = [{"type": "tool_search", "execution": "client"}]
    made = await create(passing.client, model="toy-vllm", input="go", tools=tools)
    assert (made["status"], made["error"]["code"]) == ("failed", "invalid_tool_call")
    assert not made["output"]
