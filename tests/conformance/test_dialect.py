"""The Open Responses dialect end to end: all that a strict client meets is in its document."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.fakes.gateway import new_key
from tests.fakes.http_client import NO_TLS, http_client
from tests.fakes.stream import DONE
from tests.integration.api.tools.toolbox import AGENTS, ALL, CLOCK, NOTE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.tenancy import Dialect
    from tests.conformance.checking import Document, Json
    from tests.fakes.gateway import RunningGateway

MODEL = "gpt-oss-20b"
QUESTION = {"role": "user", "content": "Do it."}
SCHEMA: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
PRINTED = {"stdout": "one\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
SHAPES: dict[str, Json] = {
    "plain": {},
    "instructions": {"instructions": "Be brief.", "metadata": {"a": "b"}, "user": "u"},
    "json schema": {
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}
    },
    "loose json schema": {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}},
    "json object": {"input": "JSON, please.", "text": {"format": {"type": "json_object"}}},
    "verbosity": {"text": {"verbosity": "low"}},
    "least effort": {"reasoning": {"effort": "minimal", "summary": "auto"}},
    "most effort": {"reasoning": {"effort": "max", "summary": "detailed", "max_tokens": 64}},
    "logprobs": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "sealed": {"store": False, "include": ["reasoning.encrypted_content"]},
    "extensions": {"seed": 1, "stop": ["never"], "top_k": 5, "min_p": 0.1},
    "cut": {"input": "[[sim think=30 tokens=200]] go", "max_output_tokens": 60},
    "failed": {"input": "[[sim think=none tokens=100 die_after=20]] go", "stream": True},
    "all tools": {"tools": ALL},
    "hosted tools": {"tools": [{"type": "web_search"}]},
    "no tool": {"tools": ALL, "tool_choice": "none"},
    "any tool": {"tools": ALL, "tool_choice": "required"},
    "some tools": {
        "tools": ALL,
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "namespace", "name": "agents"}, {"type": "shell"}],
        },
    },
}
CALLS: dict[str, tuple[Json, Json, Json]] = {
    "function": (CLOCK, {"type": "function", "name": "now"}, {"output": "noon"}),
    "custom": (NOTE, {"type": "custom", "name": "note"}, {"output": "kept"}),
    "member": (
        AGENTS,
        {"type": "custom", "name": "agents.count"},
        {"output": [{"type": "input_text", "text": "two"}]},
    ),
    "local shell": ({"type": "local_shell"}, {"type": "local_shell"}, {"output": "{}"}),
    "shell": ({"type": "shell"}, {"type": "shell"}, {"output": [PRINTED]}),
    "patcher": ({"type": "apply_patch"}, {"type": "apply_patch"}, {"status": "completed"}),
}
"""A tool, the choice of it, and what its call is answered in OpenAI's dialect."""


@pytest.fixture
def dialect() -> Dialect:
    return "openresponses"


@pytest.fixture
async def openai(gateway: RunningGateway) -> AsyncIterator[httpx2.AsyncClient]:
    """Another client of the same tenant, in OpenAI's dialect."""
    async with http_client(gateway.url, headers=gateway.headers) as opened:
        yield opened


def events_of(text: str) -> list[Json]:
    """The events of a whole stream, comments left out."""
    *frames, done, rest = text.split("\n\n")
    assert (done, rest) == (f"data: {DONE}", "")
    events = []
    for frame in frames:
        if not frame.startswith(":"):
            name, data = frame.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
    return events


async def created(client: httpx2.AsyncClient, **body: Any) -> httpx2.Response:
    asked = {"model": MODEL, "input": [QUESTION], **body}
    answer = await client.post("/v1/responses", json=asked)
    assert answer.status_code == 200, answer.text
    return answer


async def listed(client: httpx2.AsyncClient, response_id: str) -> list[Json]:
    answer = await client.get(f"/v1/responses/{response_id}/input_items?order=asc&limit=100")
    assert answer.status_code == 200, answer.text
    items: list[Json] = answer.json()["data"]
    return items


def calls_in(response: Json) -> list[Json]:
    return [item for item in response["output"] if item["type"].endswith("_call")]


@pytest.mark.slow
@pytest.mark.requirement("open-responses.dialect")
@pytest.mark.parametrize("shape", SHAPES)
async def test_every_event_and_body_is_in_the_document(
    client: httpx2.AsyncClient, checker: Document, shape: str
) -> None:
    body = SHAPES[shape]
    if not body.get("stream"):
        checker.response((await created(client, **body)).json())
    events = events_of((await created(client, **{**body, "stream": True})).text)
    response = checker.stream(events)
    if response["store"]:
        read = await client.get(f"/v1/responses/{response['id']}")
        assert read.json() == response
        checker.items(await listed(client, response["id"]))


@pytest.mark.requirement("open-responses.reasoning-names")
async def test_reasoning_has_one_name_in_each_dialect(
    client: httpx2.AsyncClient, openai: httpx2.AsyncClient
) -> None:
    names = [
        {event["type"] for event in events_of((await created(one, stream=True)).text)}
        for one in (client, openai)
    ]
    theirs = {"response.reasoning.delta", "response.reasoning.done"}
    ours = {"response.reasoning_text.delta", "response.reasoning_text.done"}
    assert names[0] - names[1] == theirs
    assert names[1] - names[0] == ours


@pytest.mark.requirement("open-responses.dialect-is-a-spelling")
async def test_a_background_response_is_followed_and_resumed_in_either_dialect(
    client: httpx2.AsyncClient, openai: httpx2.AsyncClient, checker: Document
) -> None:
    events = events_of((await created(client, background=True, stream=True)).text)
    response = checker.stream(events)
    path = f"/v1/responses/{response['id']}"
    assert events[1]["type"] == "response.queued"
    assert events_of((await client.get(f"{path}?stream=true")).text) == events
    resumed = await client.get(f"{path}?stream=true&starting_after=6")
    assert events_of(resumed.text) == events[7:]
    others = events_of((await openai.get(f"{path}?stream=true")).text)
    assert [event["sequence_number"] for event in others] == list(range(len(events)))
    assert [event.get("delta") for event in others] == [event.get("delta") for event in events]
    assert (await openai.get(path)).json() == others[-1]["response"]


async def test_a_cancelled_response_is_in_the_document(
    client: httpx2.AsyncClient, checker: Document
) -> None:
    text = "[[sim tokens=100000 tokens_per_s=50]] go"
    queued = (await created(client, background=True, input=text, tools=ALL)).json()
    checker.response(queued)
    answer = await client.post(f"/v1/responses/{queued['id']}/cancel")
    checker.response(answer.json())
    assert answer.json()["status"] == "cancelled"


@pytest.mark.slow
@pytest.mark.requirement("open-responses.other-calls-are-functions")
@pytest.mark.parametrize("case", CALLS)
async def test_a_call_of_every_kind_is_one_of_a_function_and_can_be_answered(
    client: httpx2.AsyncClient, openai: httpx2.AsyncClient, checker: Document, case: str
) -> None:
    tool, choice, output = CALLS[case]
    body = {"tools": [tool], "tool_choice": choice, "stream": True}
    response = checker.stream(events_of((await created(client, **body)).text))
    (call,) = calls_in(response)
    assert call["type"] == "function_call"
    names = [(one["name"], one.get("namespace")) for one in response["tools"]]
    assert (call["name"], call.get("namespace")) in names
    # The other dialect has the call in its own form, with the same ids.
    (ours,) = calls_in((await openai.get(f"/v1/responses/{response['id']}")).json())
    assert [ours[name] for name in ("id", "call_id")] == [call["id"], call["call_id"]]

    replayed: Json = {"input": [QUESTION, *response["output"]], "tools": [tool]}
    answered = {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}
    for more in ({**replayed, "input": [*replayed["input"], answered]}, continued(response)):
        again = (await created(client, **{"tools": [tool], "input": [answered], **more})).json()
        checker.completed(again)
        checker.items(await listed(client, again["id"]))
    theirs = {"type": f"{ours['type']}_output", "call_id": call["call_id"], **output}
    followed = await created(openai, input=[theirs], tools=[tool], **continued(response))
    items = await listed(client, followed.json()["id"])
    checker.items(items)
    assert [item["type"] for item in items[-2:]] == ["function_call", "function_call_output"]


def continued(response: Json) -> Json:
    return {"previous_response_id": response["id"]}


async def test_items_of_every_kind_are_listed_as_the_document_has_them(
    client: httpx2.AsyncClient, checker: Document
) -> None:
    parts = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "file_id": "file-1", "detail": "original"},
        {"type": "input_image", "image_url": "https://x/y.png", "detail": "low"},
        {"type": "input_file", "file_url": "https://x/y.pdf", "filename": "y.pdf"},
    ]
    items = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "I should look.", "phase": "commentary"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]},
        {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": parts},
        QUESTION,
    ]
    response = (await created(client, input=items, tools=[CLOCK])).json()
    checker.completed(response)
    found = await listed(client, response["id"])
    checker.items(found)
    assert len(found) == len(items)


@pytest.mark.requirement("open-responses.errors")
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/responses", {"model": MODEL, "input": 1}, 400),
        ("POST", "/v1/responses", {"model": "nothing", "input": "a"}, 404),
        ("POST", "/v1/responses", {"model": MODEL, "previous_response_id": "resp_0"}, 400),
        ("GET", "/v1/responses/resp_0", None, 404),
        ("GET", "/v1/nothing", None, 404),
        ("PUT", "/v1/responses", None, 405),
    ],
)
async def test_every_error_is_an_error_of_the_document(
    client: httpx2.AsyncClient,
    checker: Document,
    method: str,
    path: str,
    body: Json | None,
    status: int,
) -> None:
    answer = await client.request(method, path, json=body)
    assert answer.status_code == status, answer.text
    checker.error(answer.json())


async def test_a_key_is_needed_under_the_base_path(
    gateway: RunningGateway, checker: Document
) -> None:
    async with http_client(gateway.url) as stranger:
        answer = await stranger.get("/openresponses/v1/models")
    assert answer.status_code == 401
    checker.error(answer.json())


async def test_the_other_routes_are_there_under_the_base_path(
    client: httpx2.AsyncClient, openai: httpx2.AsyncClient
) -> None:
    models = (await client.get("/v1/models")).json()
    assert models == (await openai.get("/v1/models")).json()
    one = models["data"][0]["id"]
    assert (await client.get(f"/v1/models/{one}")).json()["id"] == one
    made = (await created(client)).json()
    answer = await client.delete(f"/v1/responses/{made['id']}")
    assert answer.json() == {"id": made["id"], "object": "response", "deleted": True}


async def test_a_key_can_be_made_for_the_dialect(
    gateway: RunningGateway, checker: Document
) -> None:
    key = await new_key(gateway.process.foundation.settings, "acme", dialect="openresponses")
    headers = {"authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(base_url=gateway.url, headers=headers, verify=NO_TLS) as client:
        events = events_of((await created(client, stream=True)).text)
    checker.stream(events)
    assert "response.reasoning.delta" in {event["type"] for event in events}
