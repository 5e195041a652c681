"""POST /v1/responses: bodies, streams, what is stored, and that the three agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.api.create import DROPPED_NAMES_MAX
from tests.fakes.event_grammar import check_stream
from tests.fakes.gateway import new_key
from tests.fakes.http_client import http_client
from tests.fakes.stream import as_events, stream, texts
from tests.integration.api.bodies import MODEL, create

if TYPE_CHECKING:
    import httpx2

    from gateway.settings import Settings
    from tests.fakes.gateway import RunningGateway
    from tests.fakes.observation import Backends

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.mark.requirement("harmony.analysis")
@pytest.mark.requirement("harmony.final")
async def test_a_response_thinks_and_answers(client: httpx2.AsyncClient) -> None:
    response = await create(client, input="Hello there")
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert "Hello there" in texts(response)[0]
    Response.model_validate(response, strict=False)


@pytest.mark.requirement("retrieve.body")
async def test_what_is_stored_is_what_was_sent(client: httpx2.AsyncClient) -> None:
    response = await create(client, input="Hello there", metadata={"a": "b"})
    stored = await client.get(f"/v1/responses/{response['id']}")
    assert stored.json() == response


@pytest.mark.requirement("stream.numbers")
@pytest.mark.requirement("stream.one-end")
@pytest.mark.requirement("events.documented")
async def test_every_event_is_valid_and_the_last_one_is_what_is_stored(
    client: httpx2.AsyncClient,
) -> None:
    events = await stream(client, {"model": MODEL, "input": "Hello there"})
    check_stream(as_events(events))
    for event in events:
        EVENT.validate_python(event)
    last = events[-1]
    assert last["type"] == "response.completed"
    stored = await client.get(f"/v1/responses/{last['response']['id']}")
    assert stored.json() == last["response"]


async def test_a_stream_says_what_the_body_says(client: httpx2.AsyncClient) -> None:
    body = {"input": "Tell me about naïve 东京 🎉 things", "store": False}
    whole = await create(client, **body)
    streamed = (await stream(client, {"model": MODEL, **body}))[-1]["response"]
    assert texts(streamed) == texts(whole)
    assert streamed["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


@pytest.mark.requirement("create.store")
async def test_unstored_responses_cannot_be_found(client: httpx2.AsyncClient) -> None:
    response = await create(client, input="Hello there", store=False)
    assert response["store"] is False
    assert (await client.get(f"/v1/responses/{response['id']}")).status_code == 404
    answer = await client.post(
        "/v1/responses", json={"model": MODEL, "input": "x", "previous_response_id": response["id"]}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "previous_response_not_found"


@pytest.mark.requirement("usage.exact")
async def test_usage_counts_ids_exactly(client: httpx2.AsyncClient, backends: Backends) -> None:
    response = await create(client, input="Count my tokens, please")
    (seen,) = await backends.of_response(response["id"])
    usage = response["usage"]
    assert usage["input_tokens"] == seen["prompt_tokens"]
    assert usage["output_tokens"] == seen["sent_tokens"]
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


@pytest.mark.requirement("harmony.sampling")
async def test_sampling_is_explicit_and_the_cache_is_the_tenants(
    client: httpx2.AsyncClient, gateway: RunningGateway, settings: Settings, backends: Backends
) -> None:
    mine = await create(client, input="salt", temperature=0.2, top_p=0.9)
    # A tenant that never asked anything: every prompt begins as all others do.
    headers = {"authorization": f"Bearer {await new_key(settings, 'newcomer')}"}
    async with http_client(gateway.url, headers=headers) as newcomer:
        theirs = await create(newcomer, input="salt")
    (first,) = await backends.of_response(mine["id"])
    (second,) = await backends.of_response(theirs["id"])
    assert (first["sampling"]["temperature"], first["sampling"]["top_p"]) == (0.2, 0.9)
    assert (second["sampling"]["temperature"], second["sampling"]["top_p"]) == (1.0, 1.0)
    assert first["prompt_hash"] == second["prompt_hash"]
    assert first["cache_salt"] != second["cache_salt"]
    assert second["cached_tokens"] == 0
    assert {200002, 200012} <= set(first["stop_token_ids"])


@pytest.mark.requirement("status.incomplete")
@pytest.mark.requirement("harmony.length")
@pytest.mark.parametrize("streamed", [False, True])
async def test_the_length_limit_makes_a_response_incomplete(
    client: httpx2.AsyncClient, streamed: bool
) -> None:
    body = {"input": "[[sim tokens=200]] go", "max_output_tokens": 60}
    if streamed:
        last = (await stream(client, {"model": MODEL, **body}))[-1]
        assert last["type"] == "response.incomplete"
        response = last["response"]
    else:
        response = await create(client, **body)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][-1]["status"] == "incomplete"
    assert response["usage"]["output_tokens"] == 60
    assert (await client.get(f"/v1/responses/{response['id']}")).json() == response


async def test_reasoning_alone_is_followed_by_an_answer(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    response = await create(client, input="corpus:E10")
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["status"] == "completed"
    first, second = await backends.of_response(response["id"])
    assert response["usage"]["input_tokens"] == first["prompt_tokens"]
    assert second["prompt_ids"][: first["prompt_tokens"]] == first["prompt_ids"]


async def test_aliases_and_the_vendor_prefix_name_the_same_model(
    client: httpx2.AsyncClient,
) -> None:
    for name in ("small", "openai/gpt-oss-20b"):
        assert (await create(client, model=name, input="x", store=False))["model"] == MODEL


@pytest.mark.requirement("padding.default")
@pytest.mark.requirement("padding.off")
@pytest.mark.requirement("create.stream-options")
async def test_padding_is_on_unless_it_is_switched_off(client: httpx2.AsyncClient) -> None:
    body = {"model": MODEL, "input": "Hello", "store": False}
    padded = await stream(client, body)
    bare = await stream(client, {**body, "stream_options": {"include_obfuscation": False}})
    assert any("obfuscation" in event for event in padded)
    assert not any("obfuscation" in event for event in bare)
    assert all(event["type"].endswith(".delta") for event in padded if "obfuscation" in event)


@pytest.mark.requirement("create.unknown-parameters")
async def test_unknown_parameters_are_named_in_a_header(client: httpx2.AsyncClient) -> None:
    answer = await client.post(
        "/v1/responses", json={"model": MODEL, "input": "x", "client_metadata": {}, "store": False}
    )
    assert answer.headers["x-ignored-parameters"] == "client_metadata"


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_that_are_not_run_here_are_named_in_a_header(
    client: httpx2.AsyncClient, stream: bool
) -> None:
    hosted = [{"type": "web_search"}, {"type": "file_search", "vector_store_ids": ["vs_1"]}]
    tools = [hosted[0], {"type": "function", "name": "f", "parameters": {}}, hosted[1], hosted[0]]
    body = {"model": MODEL, "input": "x", "tools": tools, "stream": stream, "store": False}
    answer = await client.post("/v1/responses", json=body)
    assert answer.headers["x-gateway-dropped-tools"] == "web_search, file_search"
    without = await client.post("/v1/responses", json={**body, "tools": [tools[1]]})
    assert "x-gateway-dropped-tools" not in without.headers


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
SCREEN = {"type": "computer_call_output", "call_id": "c", "output": {"type": "screenshot"}}


@pytest.mark.parametrize("how", ["alone", "stream", "background"])
async def test_images_and_files_that_the_model_is_not_shown_are_named_in_a_header(
    client: httpx2.AsyncClient, how: str
) -> None:
    said = [{"type": "input_text", "text": "Hi"}, IMAGE, {"type": "input_file", "file_id": "f"}]
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    items = [
        {"role": "user", "content": said},
        SCREEN,
        call,
        {"type": "function_call_output", "call_id": "c", "output": [IMAGE]},
    ]
    body = {"model": MODEL, "input": items, **({} if how == "alone" else {how: True})}
    answer = await client.post("/v1/responses", json=body)
    assert answer.headers["x-gateway-dropped-input"] == (
        "input_image;count=2, input_file;count=1, computer_call_output;count=1"
    )
    without = await client.post("/v1/responses", json={**body, "input": "Hi"})
    assert "x-gateway-dropped-input" not in without.headers


async def test_a_request_that_is_repeated_is_told_again_what_the_model_was_not_shown(
    client: httpx2.AsyncClient,
) -> None:
    body = {"model": MODEL, "input": [{"role": "user", "content": [IMAGE]}]}
    key = {"Idempotency-Key": "dropped-input"}
    for repeated in (None, "true"):
        answer = await client.post("/v1/responses", json=body, headers=key)
        assert answer.headers.get("idempotent-replayed") == repeated
        assert answer.headers["x-gateway-dropped-input"] == "input_image;count=1"


async def test_a_function_that_only_programs_may_call_is_dropped_and_named(
    client: httpx2.AsyncClient,
) -> None:
    callers = {"allowed_callers": ["programmatic"]}
    hidden = {"type": "function", "name": "hidden", "parameters": {}, **callers}
    space = {"type": "namespace", "name": "ns", "description": "", "tools": [hidden, TOOL]}
    body = {"model": MODEL, "input": "x", "tools": [{**hidden, "name": "f"}, space]}
    answer = await client.post("/v1/responses", json=body)
    named = "function;name=f, function;name=hidden"
    assert answer.headers["x-gateway-dropped-tools"] == named
    assert [tool["name"] for tool in answer.json()["tools"]] == ["ns"]
    assert [tool["name"] for tool in answer.json()["tools"][0]["tools"]] == [TOOL["name"]]
    forced = {**body, "tool_choice": {"type": "function", "name": "f"}}
    refused = await client.post("/v1/responses", json=forced)
    assert refused.status_code == 400
    assert "x-gateway-dropped-tools" in refused.json()["error"]["message"]


async def test_of_many_dropped_tools_the_first_are_named(client: httpx2.AsyncClient) -> None:
    callers = {"allowed_callers": ["programmatic"]}
    names = [f"{number:064}" for number in range(DROPPED_NAMES_MAX + 5)]
    tools = [{"type": "function", "name": name, "parameters": {}, **callers} for name in names]
    answer = await client.post("/v1/responses", json={"model": MODEL, "input": "x", "tools": tools})
    told = answer.headers["x-gateway-dropped-tools"].split(", ")
    assert told[:-1] == [f"function;name={name}" for name in names[:DROPPED_NAMES_MAX]]
    assert told[-1] == "more;count=5"


TOOL = {"type": "function", "name": "shown", "parameters": {}}


async def test_text_that_postgres_cannot_hold_comes_back_unchanged(
    client: httpx2.AsyncClient,
) -> None:
    response = await create(client, input="a\x00b", metadata={"k": "\x00"})
    items = (await client.get(f"/v1/responses/{response['id']}/input_items")).json()["data"]
    assert items[0]["content"][0]["text"] == "a\x00b"
    assert (await client.get(f"/v1/responses/{response['id']}")).json()["metadata"] == {"k": "\x00"}
