"""Contexts made short by a real model, whatever it writes, and the counting of tokens."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from gateway.context.shortening import INSTRUCTION, INTRODUCTION
from tests.fakes.event_grammar import check_stream
from tests.fakes.harmony_oracle import vocabulary
from tests.fakes.stream import as_events, parse_stream
from tests.integration.api.following import ended
from tests.vllm.asking import ENDED_WELL, SEARCH, WEATHER, WEATHER_ASKED, create
from tests.vllm.controls import ALL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import httpx2

    from tests.vllm.recording import Exchange, Recorder

pytestmark = pytest.mark.vllm

Json = dict[str, Any]

TRIGGER = {"type": "compaction_trigger"}
THRESHOLD = 1000
MANAGED = [{"type": "compaction", "compact_threshold": THRESHOLD}]
NO_SUMMARY = "The model wrote no summary"
ATTEMPTS = 5
USERS = [
    {"role": "user", "content": "My bicycle is red."},
    {"role": "user", "content": "And naïve: 東京 🎉?"},
]
ANSWERS = [
    {"role": "assistant", "content": "Noted: a red bicycle."},
    {"role": "assistant", "content": "It has a bell, a basket and two wheels. " * 120},
]
HISTORY = [USERS[0], ANSWERS[0], USERS[1], ANSWERS[1]]


async def summarised(ask: Callable[[], Awaitable[httpx2.Response]]) -> httpx2.Response:
    """The answer once the model writes a summary; until then it must say that there is none."""
    for _ in range(ATTEMPTS):
        answer = await ask()
        if answer.status_code == 200:
            return answer
        assert answer.status_code == 502, answer.text
        assert answer.json()["error"]["message"].startswith(NO_SUMMARY)
    raise AssertionError("the model never writes a summary")


def prompt_of(exchange: Exchange) -> str:
    """What the model was given, spelled."""
    return vocabulary().decode(exchange.prompt)


def is_summary(exchange: Exchange) -> bool:
    """It was to write a summary."""
    return INSTRUCTION in prompt_of(exchange)


@pytest.fixture
async def compacted(recorded_client: httpx2.AsyncClient, model: str) -> Json:
    """The answer of /compact to the history."""
    body = {"model": model, "input": HISTORY}
    ask = partial(recorded_client.post, "/v1/responses/compact", json=body)
    answered: Json = (await summarised(ask)).json()
    return answered


async def test_a_compaction_stands_for_what_was_said(
    recorded_client: httpx2.AsyncClient, recorder: Recorder, model: str, compacted: Json
) -> None:
    *users, item = compacted["output"]
    assert [one["content"][0]["text"] for one in users] == [one["content"] for one in USERS]
    assert (item["type"], compacted["object"]) == ("compaction", "response.compaction")
    asked = recorder.exchanges[-1]
    assert is_summary(asked)
    assert compacted["usage"]["output_tokens"] >= len(asked.output) > 0

    before = len(recorder.exchanges)
    question = {"role": "user", "content": "What colour is it?"}
    body = {"model": model, "input": [*compacted["output"], question], "store": False}
    response = await create(recorded_client, **body)
    assert response["status"] in ENDED_WELL
    prompt = prompt_of(recorder.exchanges[before])
    assert prompt.count(INTRODUCTION) == 1
    assert ANSWERS[0]["content"] not in prompt.split(INTRODUCTION)[0]
    kept = [prompt.index(one["content"]) for one in (*USERS, question)]
    assert kept == sorted(kept)
    assert prompt.index(INTRODUCTION) < kept[-1]
    assert "<|" not in prompt, "markers that the model wrote into its summary"


async def test_a_seal_that_was_touched_is_refused(
    recorded_client: httpx2.AsyncClient, model: str, compacted: Json
) -> None:
    item = compacted["output"][-1]
    broken = {**item, "encrypted_content": item["encrypted_content"][:-4]}
    body = {"model": model, "input": [broken, USERS[0]]}
    refused = await recorded_client.post("/v1/responses", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "invalid_encrypted_content"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_long_context_is_compacted_before_the_answer(
    recorded_client: httpx2.AsyncClient, recorder: Recorder, model: str, stream: bool
) -> None:
    limits = {"max_output_tokens": 100, "context_management": MANAGED}
    body = {"model": model, "input": [*HISTORY, USERS[0]], "stream": stream, **limits}
    answer = await summarised(partial(recorded_client.post, "/v1/responses", json=body))
    if stream:
        response = check_stream(as_events(parse_stream(answer.text))).response
    else:
        response = answer.json()
    assert response["output"][0]["type"] == "compaction"
    assert response["status"] in ENDED_WELL
    made = max(i for i, one in enumerate(recorder.exchanges) if is_summary(one))
    summary, answered = recorder.exchanges[made : made + 2]
    assert len(answered.prompt) < THRESHOLD < len(summary.prompt)
    assert response["usage"]["input_tokens"] >= len(answered.prompt) + THRESHOLD
    assert prompt_of(answered).count(INTRODUCTION) == 1
    assert (await recorded_client.get(f"/v1/responses/{response['id']}")).json() == response

    before = len(recorder.exchanges)
    more = {"model": model, "previous_response_id": response["id"], "input": "And then?"}
    after = await create(recorded_client, **more, **limits)
    assert "compaction" not in {item["type"] for item in after["output"]}
    prompt = recorder.exchanges[before].prompt
    assert prompt[: len(answered.prompt)] == answered.prompt
    counted = await recorded_client.post("/v1/responses/input_tokens", json=more)
    assert counted.json()["input_tokens"] == after["usage"]["input_tokens"] == len(prompt)


@pytest.mark.parametrize("background", [True, False])
async def test_a_trigger_is_answered_with_one_compaction(
    recorded_client: httpx2.AsyncClient, model: str, background: bool
) -> None:
    first = await create(recorded_client, model=model, input=HISTORY)
    more = {"previous_response_id": first["id"], "background": background}
    body = {"model": model, "input": [TRIGGER], **more}
    answer = await summarised(partial(recorded_client.post, "/v1/responses", json=body))
    response = await ended(recorded_client, answer.json()["id"])
    assert [item["type"] for item in response["output"]] == ["compaction"]
    assert response["status"] == "completed"
    assert response["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    after = await create(
        recorded_client, model=model, input="Hm?", previous_response_id=response["id"]
    )
    assert after["status"] in ENDED_WELL


@pytest.mark.parametrize("name", ALL)
async def test_what_is_counted_is_what_is_billed(
    client: httpx2.AsyncClient, model: str, name: str
) -> None:
    fields = {**ALL[name].fields, "model": model}
    billed = await create(client, **{**fields, "max_output_tokens": 16})
    counted = await client.post("/v1/responses/input_tokens", json=fields)
    assert counted.json()["input_tokens"] == billed["usage"]["input_tokens"]


async def test_the_prompt_that_is_counted_is_the_one_that_is_sent(
    recorded_client: httpx2.AsyncClient, recorder: Recorder, model: str
) -> None:
    before = len(recorder.exchanges)
    fields: Json = {"model": model, "input": WEATHER_ASKED, "tools": [WEATHER, SEARCH]}
    await create(recorded_client, **fields)
    counted = await recorded_client.post("/v1/responses/input_tokens", json=fields)
    assert counted.json()["input_tokens"] == len(recorder.exchanges[before].prompt)
