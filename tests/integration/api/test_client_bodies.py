"""What becomes of the strange things that real clients send (all of them: `test_client_rows`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.models.harmony.tokenizer import Vocabulary
from tests.fakes.client_rows import ROWS
from tests.fakes.stream import texts
from tests.integration.api.bodies import MODEL, create

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.observation import Backends

VOCABULARY = Vocabulary.load()
CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
SECOND_TURN_OF_CODEX = {
    "store": False,
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "hello", "annotations": []}],
        },
        CALL,
        {"type": "function_call_output", "call_id": "call_1", "output": "fine-output"},
        {"role": "user", "content": "go on"},
    ],
    "tools": [{"type": "function", "name": "f", "parameters": {}}],
}


@pytest.mark.requirement("items.easy-message")
async def test_items_replayed_without_ids_are_all_in_the_prompt(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    response = await create(client, **SECOND_TURN_OF_CODEX)
    (seen, *_) = await backends.of_response(response["id"])
    prompt = VOCABULARY.decode(seen["prompt_ids"])
    places = [prompt.index(text) for text in ("hi", "to=functions.f", "fine-output", "go on")]
    assert places == sorted(places)


@pytest.mark.requirement("parts.input-image")
@pytest.mark.requirement("parts.input-file")
async def test_parts_that_a_text_model_cannot_see_are_named_to_it(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    parts = [
        {"type": "input_text", "text": "seen"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
    ]
    items = [
        {"role": "user", "content": parts},
        CALL,
        {"type": "function_call_output", "call_id": "call_1", "output": parts},
    ]
    response = await create(client, input=items)
    (seen, *_) = await backends.of_response(response["id"])
    prompt = VOCABULARY.decode(seen["prompt_ids"])
    assert prompt.count("[image omitted") == 2
    assert "AAAA" not in prompt
    listed = (await client.get(f"/v1/responses/{response['id']}/input_items")).json()["data"]
    assert listed[-1]["content"][1]["image_url"] == "data:image/png;base64,AAAA"


@pytest.mark.requirement("items.unknown-keys")
@pytest.mark.requirement("items.output-message")
async def test_a_response_can_be_sent_back_as_input_unchanged(client: httpx2.AsyncClient) -> None:
    tools = ROWS["AI SDK: not stored"]["tools"]
    first = await create(client, input="Use f please", tools=tools)
    call = first["output"][-1]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}
    extra = [{**item, "unknown": {"kept": "no"}} for item in first["output"]]
    answer = await client.post(
        "/v1/responses", json={"model": MODEL, "input": [*extra, output], "tools": tools}
    )
    assert answer.status_code == 200, answer.text
    assert texts(answer.json())


GOAL = {
    "type": "function_call_output",
    "id": "fco_01a203de-8b1b-7e22-8882-69f7813bb7b9",
    "name": "goal_objective",
    "namespace": "agent",
    "output": "Say hello thrice",
}
"""What Codex 0.169 says of itself once the model has called `create_goal`."""


@pytest.mark.requirement("items.function-output-without-call")
async def test_the_goal_of_codex_is_in_the_prompt_as_what_a_tool_said(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    created = {**CALL, "name": "create_goal", "arguments": '{"objective":"Say hello thrice"}'}
    answered = {"type": "function_call_output", "call_id": "call_1", "output": "{}"}
    shown = {"type": "function_call", "call_id": "call_2", "name": "exec", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_2", "output": "fine"}
    asked = [{"role": "user", "content": "go"}, created, shown, answered, GOAL, output]
    response = await create(client, store=True, input=asked)
    (seen, *_) = await backends.of_response(response["id"])
    prompt = VOCABULARY.decode(seen["prompt_ids"])
    said = "functions.agent.goal_objective to=assistantcommentarySay hello thrice"
    assert said in prompt
    assert prompt.index("fine") < prompt.index(said)  # each output stands behind its call
    listed = (await client.get(f"/v1/responses/{response['id']}/input_items?order=asc")).json()
    assert {**GOAL, "status": "completed"} in listed["data"]
    again = await create(client, input="go on", previous_response_id=response["id"])
    (seen, *_) = await backends.of_response(again["id"])
    assert said in VOCABULARY.decode(seen["prompt_ids"])


@pytest.mark.requirement("items.function-output-without-call")
async def test_an_output_that_only_names_its_function_answers_the_call(
    client: httpx2.AsyncClient, backends: Backends
) -> None:
    output = {"type": "function_call_output", "name": "f", "output": "fine-output"}
    response = await create(client, input=[{"role": "user", "content": "go"}, CALL, output])
    (seen, *_) = await backends.of_response(response["id"])
    said = "functions.f to=assistantcommentaryfine-output"
    assert said in VOCABULARY.decode(seen["prompt_ids"])
    listed = (await client.get(f"/v1/responses/{response['id']}/input_items")).json()
    assert listed["data"][0]["call_id"] == CALL["call_id"]
