"""What the parameters of a create request do, and which mistake is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.asking import BRIEF, FUNCTION, MODEL, created, listed, refused
from tests.fakes.stream import stream, texts

if TYPE_CHECKING:
    import httpx2

    from tests.conformance.checking import Json

requirement = pytest.mark.requirement

TWO_CALLS = "[[sim call=f attack=twice]]"


@requirement("create.input")
async def test_a_text_is_one_user_message(client: httpx2.AsyncClient) -> None:
    response = await created(client, "My name is Ada.")
    (only,) = await listed(client, response)
    assert (only["role"], only["content"]) == (
        "user",
        [{"type": "input_text", "text": "My name is Ada."}],
    )
    items = [{"role": "user", "content": "My name is Ada."}, {"role": "user", "content": "And I?"}]
    assert "Ada" in texts(await created(client, items))[-1]


@requirement("create.stream")
@requirement("http.accept-is-not-asked")
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream", "*/*"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_the_body_says_whether_there_is_a_stream(
    client: httpx2.AsyncClient, accept: str, streamed: bool
) -> None:
    body = {"model": MODEL, "input": BRIEF, "stream": streamed}
    answer = await client.post("/v1/responses", json=body, headers={"accept": accept})
    kind = "text/event-stream" if streamed else "application/json"
    assert answer.headers["content-type"].startswith(kind)


@requirement("create.max-output-tokens")
async def test_reasoning_counts_towards_the_bound(client: httpx2.AsyncClient) -> None:
    response = await created(client, "[[sim think=100]] x", max_output_tokens=16)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] <= 16
    assert [item["type"] for item in response["output"]] == ["reasoning"]


@requirement("create.max-tool-calls")
async def test_calls_of_functions_are_not_bounded(client: httpx2.AsyncClient) -> None:
    asked = {"input": TWO_CALLS, "tools": [FUNCTION], "max_tool_calls": 1}
    response = await created(client, **asked)
    assert [item["type"] for item in response["output"]].count("function_call") == 2


@requirement("create.parallel-tool-calls")
async def test_without_parallel_calls_there_is_one(client: httpx2.AsyncClient) -> None:
    asked = {"input": TWO_CALLS, "tools": [FUNCTION], "parallel_tool_calls": False}
    response = await created(client, **asked)
    assert [item["type"] for item in response["output"]].count("function_call") == 1


@requirement("create.top-logprobs")
async def test_alternatives_are_shown_without_an_include(client: httpx2.AsyncClient) -> None:
    response = await created(client, top_logprobs=2)
    (part,) = response["output"][-1]["content"]
    assert {len(entry["top_logprobs"]) for entry in part["logprobs"]} == {2}


@requirement("create.stream-options")
@requirement("padding.off")
@pytest.mark.parametrize("padded", [True, False])
async def test_padding_is_as_the_options_say(client: httpx2.AsyncClient, padded: bool) -> None:
    body = {"model": MODEL, "input": "x", "stream_options": {"include_obfuscation": padded}}
    events = await stream(client, body)
    assert any("obfuscation" in event for event in events) == padded


@requirement("create.validation-order")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None, "input": None, "temperature": "hot"}, "model"),
        ({"input": None, "temperature": "hot"}, "input"),
        ({"temperature": "hot", "background": True, "store": False}, "temperature"),
        ({"background": True, "store": False, "previous_response_id": "resp_1"}, "background"),
    ],
)
async def test_of_two_mistakes_the_first_is_reported(
    client: httpx2.AsyncClient, fields: Json, param: str
) -> None:
    assert (await refused(client, **fields))["param"] == param


@requirement("http.ids")
async def test_ids_have_the_prefix_of_their_kind(client: httpx2.AsyncClient) -> None:
    asked = {"input": "Give me a preamble and use f", "tools": [FUNCTION]}
    response = await created(client, **asked)
    prefixes = {"reasoning": "rs_", "message": "msg_", "function_call": "fc_"}
    assert response["id"].startswith("resp_")
    for item in response["output"]:
        assert item["id"].startswith(prefixes[item["type"]])
    assert len({item["id"] for item in response["output"]}) == len(response["output"])
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    assert calls
    assert all(call["call_id"].startswith("call_") for call in calls)
    conversation = (await client.post("/v1/conversations", json={})).json()
    assert conversation["id"].startswith("conv_")
