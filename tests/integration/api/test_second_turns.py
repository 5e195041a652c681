"""Second turns as real clients send them, and everything that is listed sent back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from gateway.models.harmony.tokenizer import END
from tests.fakes.harmony_oracle import spelled, well_formed
from tests.fakes.stream import texts
from tests.integration.api.bodies import MODEL, WEATHER, create

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.observation import Backends

LISTED: TypeAdapter[Any] = TypeAdapter(ResponseItem)
QUESTION = {"role": "user", "content": "Use get_weather for Oslo"}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "high"}


async def called(client: httpx2.AsyncClient, **body: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A response that ends with a call, and the output of that call."""
    response = await create(client, input=[QUESTION], tools=[WEATHER], **body)
    call_id = response["output"][-1]["call_id"]
    return response, {"type": "function_call_output", "call_id": call_id, "output": "65F"}


async def test_codex_replays_its_turn_with_ids_and_encrypted_reasoning(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    body: dict[str, Any] = {
        "tools": [{**WEATHER, "strict": False}],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199-session",
        "client_metadata": {"x": "y"},
    }
    rules = {"type": "input_text", "text": "Be brief."}
    turn = [
        {"type": "message", "id": "msg_0d5c-9a71", "role": "developer", "content": [rules]},
        {"type": "message", **QUESTION},
    ]
    first = await create(client, input=turn, **body)
    reasoning, call = first["output"]
    output = {
        "type": "function_call_output",
        "id": "fco_0d5c-9a71",
        "call_id": call["call_id"],
        "output": [{"type": "input_text", "text": "65F"}, IMAGE],
    }
    second = await create(client, input=[*turn, reasoning, call, output], **body)
    assert "65F" in texts(second)[-1]
    (one,), (two,) = [await backends.of_response(r["id"]) for r in (first, second)]
    thought = one["sent_ids"][: one["sent_ids"].index(END) + 1]
    said = one["prompt_ids"] + thought
    assert two["prompt_ids"][: len(said)] == said


async def test_reasoning_that_another_provider_encrypted_is_refused(
    client: httpx2.AsyncClient,
) -> None:
    foreign = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    body = {"model": MODEL, "input": [QUESTION, foreign]}
    answer = await client.post("/v1/responses", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "invalid_encrypted_content"
    assert error["param"] == "input[1].encrypted_content"


async def test_the_ai_sdk_refers_to_items_by_id(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    first, output = await called(client)
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    second = await create(client, input=[QUESTION, *references, output], tools=[WEATHER])
    assert "65F" in texts(second)[-1]
    (one,), (two,) = [await backends.of_response(r["id"]) for r in (first, second)]
    said = one["prompt_ids"] + one["sent_ids"]
    assert two["prompt_ids"][: len(said)] == said
    # Some of its releases name the response before, too.
    both = await create(
        client, input=[*references, output], previous_response_id=first["id"], tools=[WEATHER]
    )
    (three,) = await backends.of_response(both["id"])
    assert three["prompt_ids"] == two["prompt_ids"]


async def test_agent_framework_sends_the_output_alone(client: httpx2.AsyncClient) -> None:
    first, output = await called(client, include=["reasoning.encrypted_content"])
    second = await create(
        client,
        input=[output],
        previous_response_id=first["id"],
        include=["reasoning.encrypted_content"],
        tools=[WEATHER],
    )
    assert "65F" in texts(second)[-1]


@pytest.mark.parametrize(
    "body",
    [
        {"text": {}, "tools": [{**WEATHER, "strict": None}]},
        {"text": {}, "tools": [], "metadata": {}, "previous_response_id": None, "store": True},
        {"include": None, "instructions": None, "metadata": None, "user": None, "tools": None},
        {"include": [], "tools": [], "instructions": "", "stream": False},
        {"model": "openai/gpt-oss-20b"},
        {"reasoning_effort": "high"},
    ],
    ids=["langchain-js", "semantic-kernel", "llama-index", "agents-js", "crewai", "open-webui"],
)
async def test_what_clients_send_besides_is_no_obstacle(
    client: httpx2.AsyncClient, body: dict[str, Any]
) -> None:
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]}
    history = [{"role": "user", "content": "Hello"}, said, {"role": "user", "content": "Bye"}]
    assert (await create(client, input=history, **body))["status"] == "completed"


@pytest.mark.requirement("input-items.ids")
async def test_everything_that_is_listed_is_valid_and_accepted_again(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    text = {"type": "input_text", "text": "look"}
    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [text, {"type": "input_image", "image_url": "u"}]},
        {"role": "assistant", "content": [text]},
        {"role": "user", "content": "same id", "id": "msg_same"},
        {"role": "user", "content": "same id", "id": "msg_same"},
    ]
    first = await create(client, input=[*history, QUESTION], tools=[WEATHER])
    output = {
        "type": "function_call_output",
        "call_id": first["output"][-1]["call_id"],
        "output": [text, IMAGE],
    }
    second = await create(client, input=[output], previous_response_id=first["id"], tools=[WEATHER])
    path = f"/v1/responses/{second['id']}/input_items"
    listed = (await client.get(path, params={"order": "asc", "limit": "100"})).json()["data"]
    assert len(listed) == len(history) + 1 + len(first["output"]) + 1
    for item in listed:
        LISTED.validate_python(item)
    again = await create(client, input=listed, tools=[WEATHER], store=False)
    (one,), (two,) = [await backends.of_response(r["id"]) for r in (second, again)]
    assert sorted(one["prompt_ids"]) == sorted(two["prompt_ids"])


@pytest.mark.parametrize("case", ["T15", "E05"])
async def test_a_turn_that_was_cut_off_is_accepted_again(
    client: httpx2.AsyncClient, case: str
) -> None:
    first = await create(client, input=f"corpus:{case} [[sim think=none]]", tools=[WEATHER])
    assert first["status"] == "incomplete"
    replayed = [QUESTION, *first["output"], {"role": "user", "content": "Go on"}]
    second = await create(client, input=replayed, tools=[WEATHER], store=False)
    assert second["status"] == "completed"


@pytest.mark.slow
async def test_a_call_that_the_length_cut_off_can_be_answered_like_any_other(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    cut: dict[str, Any] = {}
    for size in range(30, 200, 5):
        cut = await create(client, input=[QUESTION], tools=[WEATHER], max_output_tokens=size)
        if cut["output"][-1]["type"] == "function_call":
            break
    call = cut["output"][-1]
    assert (call["status"], cut["status"]) == ("incomplete", "incomplete")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "Cut off."}

    continued = await create(
        client, previous_response_id=cut["id"], input=[output], tools=[WEATHER]
    )
    replayed = await create(client, input=[QUESTION, *cut["output"], output], tools=[WEATHER])
    went_on = await create(
        client, previous_response_id=continued["id"], input="And now?", tools=[WEATHER]
    )

    (one,), (two,) = [await backends.of_response(r["id"]) for r in (continued, replayed)]
    assert one["prompt_ids"] == two["prompt_ids"]
    assert well_formed(one["prompt_ids"]) == 6
    (three,) = await backends.of_response(went_on["id"])
    assert call["arguments"] in spelled(three["prompt_ids"])
    assert "Cut off." in spelled(three["prompt_ids"])
    well_formed(three["prompt_ids"])
