"""Compaction within responses: what the model is shown from then on, and what clients see of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.context.shortening import INTRODUCTION
from tests.fakes.event_grammar import check_stream
from tests.fakes.gateway import running_gateway
from tests.fakes.harmony_oracle import vocabulary
from tests.fakes.http_client import http_client
from tests.fakes.stream import as_events, parse_stream, stream, texts
from tests.integration.api.bodies import MODEL, WEATHER, create, refused
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
from tests.integration.api.summaries import misbehaving, summary_requests, user

if TYPE_CHECKING:
    import httpx2

    from gateway.settings import Settings
    from tests.fakes.observation import Backends

Json = dict[str, Any]

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TRIGGER = {"type": "compaction_trigger"}
MANAGED = [{"type": "compaction", "compact_threshold": 1000}]
LONG = "[[sim tokens=1200]] Tell me a long story of the sea."
OPENING = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.compaction.compacting",
    "response.output_item.done",
]


async def prompts(backends: Backends, response: Json) -> list[str]:
    """What backends were asked for a response, spelled."""
    rows = await backends.of_response(response["id"])
    return [vocabulary().decode(row["prompt_ids"]) for row in rows]


async def long_story(client: httpx2.AsyncClient, **fields: Any) -> Json:
    """A conversation of more than a thousand tokens, most of them the model's."""
    story = await create(client, input=LONG, instructions="Be kind.", **fields)
    assert story["usage"]["output_tokens"] > 1000
    return story


@pytest.mark.requirement("compact.trigger")
@pytest.mark.requirement("order.compaction")
async def test_a_trigger_makes_a_response_of_one_compaction(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    first = await create(client, input="My name is Alice.")
    compacted = await create(client, input=[TRIGGER], previous_response_id=first["id"])
    Response.model_validate(compacted, strict=False)
    (item,) = compacted["output"]
    assert list(item) == ["id", "type", "encrypted_content"]
    assert (item["type"], item["id"][:4]) == ("compaction", "cmp_")
    assert compacted["status"] == "completed"
    assert compacted["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    assert compacted["usage"]["output_tokens"] > 0
    assert await backends.of_response(compacted["id"]) == []
    stored = await client.get(f"/v1/responses/{compacted['id']}")
    assert stored.json() == compacted


@pytest.mark.slow
@pytest.mark.requirement("kinds.compaction")
async def test_behind_a_compaction_the_model_sees_users_and_the_summary_only(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    first = await create(
        client,
        input=[
            {"role": "developer", "content": "Call me sir."},
            {"role": "user", "content": "Use get_weather for Oslo"},
        ],
        tools=[WEATHER],
    )
    call = first["output"][-1]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "65F"}
    second = await create(client, input=[output], previous_response_id=first["id"], tools=[WEATHER])
    compacted = await create(
        client,
        input=[{"role": "user", "content": "And Rome?"}, TRIGGER],
        previous_response_id=second["id"],
    )
    third = await create(client, input="Thanks", previous_response_id=compacted["id"])
    (prompt,) = await prompts(backends, third)
    kept = ["Call me sir.", "Use get_weather for Oslo", INTRODUCTION, "And Rome?", "Thanks"]
    places = [prompt.rindex(text) for text in kept[2:]]
    assert places == sorted(places)
    assert prompt.index(kept[0]) < prompt.index(kept[1]) < places[0]
    assert "get_weather said “65F”" in prompt
    assert "<|channel|>" not in prompt.split(INTRODUCTION)[0].split("Call me sir.")[1]
    assert "functions.get_weather" not in prompt
    listing = (await client.get(f"/v1/responses/{third['id']}/input_items?order=asc")).json()
    assert compacted["output"][0] in listing["data"]
    assert "compaction_trigger" not in {item["type"] for item in listing["data"]}


async def test_a_client_without_storage_gives_the_compaction_back(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    history = [
        {"role": "user", "content": "My name is Bo."},
        {"role": "assistant", "content": "Hello, stranger from afar."},
    ]
    compacted = await create(client, input=[*history, TRIGGER], store=False)
    question = {"role": "user", "content": "What is my name?"}
    answer = await create(client, input=[*history, *compacted["output"], question], store=False)
    (prompt,) = await prompts(backends, answer)
    assert "stranger from afar" not in prompt
    assert prompt.count("My name is Bo.") == 2  # the message, and the summary of it
    assert "Bo" in texts(answer)[-1]
    alone = await create(client, input=[compacted["output"][0], question], store=False)
    assert (await prompts(backends, alone))[0].count("My name is Bo.") == 1


@pytest.mark.slow
@pytest.mark.requirement("create.context-management")
async def test_a_long_context_is_compacted_before_the_answer(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    story = await long_story(client)
    made = len(await summary_requests(backends))
    body = {"model": MODEL, "input": "Go on", "previous_response_id": story["id"]}
    events = await stream(client, {**body, "context_management": MANAGED})
    check_stream(as_events(events))
    for event in events:
        EVENT.validate_python(event)
    assert [event["type"] for event in events[:5]] == OPENING
    response = events[-1]["response"]
    assert [item["type"] for item in response["output"]] == ["compaction", "reasoning", "message"]
    asked = (await summary_requests(backends))[made:]
    (answered,) = await backends.of_response(response["id"])
    assert len(asked) == 1
    usage = response["usage"]
    assert usage["input_tokens"] == asked[0]["prompt_tokens"] + answered["prompt_tokens"]
    assert usage["output_tokens"] == asked[0]["sent_tokens"] + answered["sent_tokens"]
    assert answered["prompt_tokens"] < 1000 < asked[0]["prompt_tokens"]
    assert (await client.get(f"/v1/responses/{response['id']}")).json() == response

    after = await create(
        client, input="And then?", previous_response_id=response["id"], context_management=MANAGED
    )
    assert [item["type"] for item in after["output"]] == ["reasoning", "message"]
    (later,) = await backends.of_response(after["id"])
    said = answered["prompt_ids"] + answered["sent_ids"]
    assert later["prompt_ids"][: len(answered["prompt_ids"])] == said[: len(answered["prompt_ids"])]


@pytest.mark.slow
async def test_nothing_is_compacted_in_vain(client: httpx2.AsyncClient, backends: Backends) -> None:
    made = len(await summary_requests(backends))
    words = "A long story, told word by word by its only listener. " * 150
    only_users = await create(client, input=words, context_management=MANAGED)
    short = await create(client, input="hi", context_management=[{"type": "compaction"}])
    for response in (only_users, short):
        assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    once = await create(
        client, input="Hm", previous_response_id=only_users["id"], context_management=MANAGED
    )
    again = await create(
        client, input="Hm", previous_response_id=once["id"], context_management=MANAGED
    )
    assert once["output"][0]["type"] == "compaction"
    assert again["output"][0]["type"] == "reasoning"
    assert len(await summary_requests(backends)) == made + 1


@pytest.mark.parametrize("managed", [True, False], ids=["threshold", "trigger"])
async def test_a_background_response_replays_its_compaction(
    client: httpx2.AsyncClient, second: httpx2.AsyncClient, managed: bool
) -> None:
    story = await long_story(client)
    asked: Json = {"input": "Go on", "context_management": MANAGED}
    if not managed:
        asked = {"input": [TRIGGER]}
    frames = await listed(created(client, previous_response_id=story["id"], **asked))
    response_id = id_in(frames)
    events = parse_stream("".join(frames))
    stripped = as_events(events)
    check_stream(stripped)
    assert [event["type"] for event in events if "compact" in event["type"]] == [OPENING[3]]
    again = await listed(resumed(second, response_id, include_obfuscation="false"))
    assert as_events(parse_stream("".join(again))) == stripped
    body = await ended(second, response_id)
    assert body == events[-1]["response"]
    assert body["output"][0]["type"] == "compaction"


async def test_a_key_replays_what_was_compacted(client: httpx2.AsyncClient) -> None:
    story = await long_story(client)
    body = {"model": MODEL, "input": [TRIGGER], "previous_response_id": story["id"]}
    headers = {"idempotency-key": f"key-{story['id']}"}
    first = await client.post("/v1/responses", json=body, headers=headers)
    again = await client.post("/v1/responses", json=body, headers=headers)
    assert first.json() == again.json()
    assert again.headers["idempotent-replayed"] == "true"


async def test_backends_that_fail_are_answered_as_they_are_for_an_answer(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    async with misbehaving(backends, "status=500"):
        compacting = await refused(client, 502, input=[user("x"), TRIGGER])
        answering = await refused(client, 502, input="x")
    assert compacting == answering


@pytest.mark.requirement("compact.trigger")
async def test_a_trigger_stands_at_the_end_of_something(client: httpx2.AsyncClient) -> None:
    error = await refused(client, 400, input=[TRIGGER, user("x")])
    assert (error["param"], error["code"]) == ("input[0]", "invalid_value")
    error = await refused(client, 400, input=[TRIGGER])
    assert "nothing to compact" in error["message"]
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    error = await refused(client, 400, input=[call, TRIGGER])
    assert error["message"] == "No tool output found for function call c."


@pytest.mark.requirement("compact.sealed")
async def test_a_seal_is_for_its_tenant_alone(
    client: httpx2.AsyncClient, stranger: httpx2.AsyncClient
) -> None:
    compacted = await create(client, input=[user("x"), TRIGGER])
    item = compacted["output"][0]
    error = await refused(stranger, 400, input=[user("x"), item])
    assert error["code"] == "invalid_encrypted_content"
    assert error["param"] == "input[1].encrypted_content"
    broken = {**item, "encrypted_content": item["encrypted_content"][:-1]}
    assert (await refused(client, 400, input=[broken]))["code"] == "invalid_encrypted_content"


@pytest.mark.requirement("create.context-management")
async def test_context_management_has_one_type(client: httpx2.AsyncClient) -> None:
    error = await refused(client, 400, input="x", context_management=[{"type": "magic"}])
    assert error["param"] == "context_management[0].type"
    error = await refused(
        client, 400, input="x", context_management=[{"type": "compaction", "compact_threshold": 9}]
    )
    assert error["param"] == "context_management[0].compact_threshold"


@pytest.mark.slow
async def test_another_replica_goes_on_behind_the_compaction(
    settings: Settings, client: httpx2.AsyncClient, second: httpx2.AsyncClient, backends: Backends
) -> None:
    story = await long_story(client)
    async with (
        running_gateway(settings) as leaving,
        http_client(leaving.url, headers=client.headers) as left,
    ):
        frames = created(
            left,
            {"idempotency-key": f"left-{story['id']}"},
            background=False,
            input="[[sim tokens=300 tokens_per_s=100]] Go on",
            previous_response_id=story["id"],
            context_management=MANAGED,
        )
        begun = await taken(frames, is_delta)
        await leaving.process.begin_drain()
    response_id = id_in(begun)
    body = await ended(second, response_id)
    assert [item["type"] for item in body["output"]] == ["compaction", "reasoning", "message"]
    requests = await backends.of_response(response_id)
    assert len(requests) == 2
    events = as_events(parse_stream("".join(await listed(resumed(second, response_id)))))
    assert check_stream(events).response == body
    seen = as_events([data_of(frame) for frame in begun])
    assert events[: len(seen)] == seen


@pytest.mark.slow
async def test_a_compaction_that_is_there_already_adds_nothing(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    compacted = await create(client, input=[user("hi"), TRIGGER])
    chained = await create(
        client, input=[*compacted["output"], user("Go on")], previous_response_id=compacted["id"]
    )
    (prompt,) = await prompts(backends, chained)
    assert prompt.count(INTRODUCTION) == 1
    url = f"/v1/responses/{chained['id']}/input_items"
    kinds = [item["type"] for item in (await client.get(url)).json()["data"]]
    assert kinds.count("compaction") == 1
