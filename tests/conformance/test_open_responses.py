"""The HTTP cases of the Open Responses compliance suite in each dialect, with our own prompts."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.stream import stream

if TYPE_CHECKING:
    import httpx2

    from gateway.tenancy import Dialect
    from tests.conformance.checking import Document, Json

MODEL = "gpt-oss-20b"
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Current weather of a place.",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "City and country."}},
        "required": ["location"],
    },
}


@pytest.fixture(params=["openai", "openresponses"])
def dialect(request: pytest.FixtureRequest) -> Dialect:
    named: Dialect = request.param
    return named


def message(role: str, content: Any, **fields: Any) -> Json:
    return {"type": "message", "role": role, "content": content, **fields}


def square_png() -> str:
    """A data URL of a small red square."""
    rows = b"".join(b"\0" + b"\xff\0\0" * 8 for _ in range(8))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
    )
    png = b"\x89PNG\r\n\x1a\n"
    for kind, data in (*chunks, (b"IEND", b"")):
        png += struct.pack(">I", len(data)) + kind + data
        png += struct.pack(">I", zlib.crc32(kind + data))
    return "data:image/png;base64," + base64.b64encode(png).decode()


async def create(client: httpx2.AsyncClient, **body: Any) -> Json:
    answer = await client.post("/v1/responses", json={"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    response: Json = answer.json()
    return response


@pytest.mark.requirement("accept.suites")
@pytest.mark.requirement("open-responses.basic-response")
async def test_basic_response(client: httpx2.AsyncClient, checker: Document) -> None:
    checker.completed(await create(client, input=[message("user", "Greet me in three words.")]))


@pytest.mark.requirement("open-responses.phases")
@pytest.mark.requirement("items.phase")
@pytest.mark.requirement("open-responses.assistant-phase")
async def test_assistant_phase(client: httpx2.AsyncClient, checker: Document) -> None:
    history = [
        message("assistant", "The saved number is what they want.", phase="commentary"),
        message("assistant", "It is four.", phase="final_answer"),
        message("user", "Only the number, please."),
    ]
    checker.completed(await create(client, input=history))


@pytest.mark.requirement("traps.reasoning-names")
@pytest.mark.requirement("open-responses.streaming-response")
async def test_streaming_response(client: httpx2.AsyncClient, checker: Document) -> None:
    events = await stream(client, {"model": MODEL, "input": [message("user", "Count to five.")]})
    checker.completed(checker.stream(events))


@pytest.mark.requirement("open-responses.system-prompt")
async def test_system_prompt(client: httpx2.AsyncClient, checker: Document) -> None:
    rules = message("system", "Speak as a pirate does, always.")
    checker.completed(await create(client, input=[rules, message("user", "Greet me.")]))


@pytest.mark.requirement("traps.tools-echo")
@pytest.mark.requirement("open-responses.tool-calling")
async def test_tool_calling(client: httpx2.AsyncClient, checker: Document) -> None:
    asked = [message("user", "How is the weather in San Francisco?")]
    response = await create(client, input=asked, tools=[WEATHER])
    checker.completed(response)
    assert [item["name"] for item in response["output"] if item["type"] == "function_call"] == [
        "get_weather"
    ]
    assert response["tools"] == [{**WEATHER, "strict": None}]


@pytest.mark.requirement("open-responses.tool-calling-streaming")
async def test_tool_calling_streaming(client: httpx2.AsyncClient, checker: Document) -> None:
    asked = [message("user", "How is the weather in San Francisco?")]
    events = await stream(client, {"model": MODEL, "input": asked, "tools": [WEATHER]})
    checker.completed(checker.stream(events))
    kinds = [
        event["type"].removeprefix("response.")
        for event in events
        if "function_call" in event["type"] or event.get("item", {}).get("type") == "function_call"
    ]
    assert kinds[0] == "output_item.added"
    assert set(kinds[1:-2]) == {"function_call_arguments.delta"}
    assert kinds[-2:] == ["function_call_arguments.done", "output_item.done"]


@pytest.mark.requirement("open-responses.image-input")
async def test_image_input(client: httpx2.AsyncClient, checker: Document) -> None:
    parts = [
        {"type": "input_text", "text": "One sentence about this picture, please."},
        {"type": "input_image", "image_url": square_png()},
    ]
    checker.completed(await create(client, input=[message("user", parts)]))


@pytest.mark.requirement("open-responses.multi-turn")
async def test_multi_turn(client: httpx2.AsyncClient, checker: Document) -> None:
    history = [
        message("user", "My name is Alice."),
        message("assistant", "A pleasure, Alice. What can I do for you?"),
        message("user", "What is my name?"),
    ]
    response = await create(client, input=history)
    checker.completed(response)
    assert "Alice" in response["output"][-1]["content"][0]["text"]


@pytest.mark.requirement("open-responses.media-types")
@pytest.mark.requirement("open-responses.event-names")
async def test_media_types_and_frames(client: httpx2.AsyncClient) -> None:
    body = {"model": MODEL, "input": "Hello there"}
    whole = await client.post("/v1/responses", json=body)
    assert whole.headers["content-type"] == "application/json"
    streamed = await client.post("/v1/responses", json={**body, "stream": True})
    assert streamed.headers["content-type"].split(";")[0] == "text/event-stream"
    assert streamed.text.endswith("\n\ndata: [DONE]\n\n")
    assert "\nid:" not in streamed.text
    await stream(client, body)  # which fails where a frame's name is not its event's type


@pytest.mark.requirement("harmony.analysis")
@pytest.mark.requirement("open-responses.items-are-identified")
async def test_every_item_has_an_id_a_type_and_a_status(client: httpx2.AsyncClient) -> None:
    text = "Give me a preamble: how is the weather in Paris?"
    response = await create(client, input=text, tools=[WEATHER])
    kinds = [item["type"] for item in response["output"]]
    assert kinds == ["reasoning", "message", "function_call"]
    assert {item["status"] for item in response["output"]} == {"completed"}
    assert len({item["id"] for item in response["output"]}) == len(kinds)


@pytest.mark.requirement("open-responses.incomplete-item-is-last")
@pytest.mark.parametrize("tokens", [16, 60])
async def test_an_incomplete_item_is_the_last(
    client: httpx2.AsyncClient, checker: Document, tokens: int
) -> None:
    text = "[[sim think=30 tokens=200]] go"
    response = await create(client, input=text, max_output_tokens=tokens)
    checker.response(response)
    assert response["status"] == "incomplete"
    *others, last = [item["status"] for item in response["output"]]
    assert set(others) <= {"completed"}
    assert last == "incomplete"


@pytest.mark.requirement("open-responses.error-then-failed")
async def test_a_failure_while_streaming(client: httpx2.AsyncClient, checker: Document) -> None:
    text = "[[sim think=none tokens=100 die_after=20]] go"
    events = await stream(client, {"model": MODEL, "input": text})
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert checker.stream(events)["status"] == "failed"


@pytest.mark.requirement("open-responses.previous-response")
async def test_a_previous_response_is_its_input_and_its_output(client: httpx2.AsyncClient) -> None:
    first = await create(client, input="one")
    second = await create(client, input="two", previous_response_id=first["id"])
    path = f"/v1/responses/{second['id']}/input_items?order=asc"
    listed = (await client.get(path)).json()["data"]
    assert listed[1:-1] == first["output"]
    assert [listed[at]["content"][0]["text"] for at in (0, -1)] == ["one", "two"]


@pytest.mark.requirement("open-responses.truncation-disabled")
async def test_a_long_input_is_refused(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/responses", json={"model": MODEL, "input": "word " * 5000})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
