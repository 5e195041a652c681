"""What becomes of the strange things that real clients send (all of them: `test_client_rows`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.harmony.vocabulary import Vocabulary
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
        "/v1/responses",
        json={"model": MODEL, "input": [*extra, output], "tools": tools},
    )
    assert answer.status_code == 200, answer.text
    assert texts(answer.json())
