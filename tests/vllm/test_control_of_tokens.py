"""What a request says of single tokens: how likely they were, how many, and which ones again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.harmony_oracle import vocabulary
from tests.fakes.stream import texts
from tests.vllm.asking import (
    LONG_ASKED,
    SEARCH,
    SEARCH_ASKED,
    WEATHER,
    WEATHER_ASKED,
    answer_of,
    calls_of,
    create,
    result_of,
    streamed,
)
from tests.vllm.conftest import PREAMBLE_TOKENS_MAX
from tests.vllm.controls import ANSWERS, CALLS

if TYPE_CHECKING:
    import httpx2

    from tests.vllm.conftest import Vllm
    from tests.vllm.recording import Recorder

pytestmark = pytest.mark.vllm

LOGPROBS = "message.output_text.logprobs"
SEALED = "reasoning.encrypted_content"
SEEDS = 4
SAMPLES_MAX = 10
SEARCHES = 16
HEADER_IDS = 3
"""Channel, its name, the beginning of the text."""
FRAME_IDS = HEADER_IDS + 3
"""And the end, and what opens another message."""


def _is_part_of_a_character(entry: dict[str, Any]) -> bool:
    try:
        bytes(entry["bytes"]).decode()
    except UnicodeDecodeError:
        return True
    return False


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("alternatives", [0, 5, 20])
async def test_logprobs_spell_the_answer_byte_for_byte(
    client: httpx2.AsyncClient, model: str, alternatives: int, stream: bool
) -> None:
    body: dict[str, Any] = {"include": [LOGPROBS], "top_logprobs": alternatives, "model": model}
    body |= {"input": LONG_ASKED, "temperature": 1}
    for seed in range(4, 4 + SAMPLES_MAX):  # not all engines keep to it
        if stream:
            response = (await streamed(client, **body, seed=seed)).response
        else:
            response = await create(client, **body, seed=seed)
        part = answer_of(response)
        entries = part["logprobs"]
        assert b"".join(bytes(entry["bytes"]) for entry in entries) == part["text"].encode()
        for entry in entries:
            assert entry["logprob"] <= 0
            assert len(entry["top_logprobs"]) <= alternatives
            likely = {bytes(other["bytes"]): other["logprob"] for other in entry["top_logprobs"]}
            assert likely.get(bytes(entry["bytes"]), entry["logprob"]) == entry["logprob"]
        assert any(entry["top_logprobs"] for entry in entries) == (alternatives > 0)
        if any(map(_is_part_of_a_character, entries)):
            break
    else:
        pytest.fail("no answer had a character of several ids")


async def test_logprobs_are_told_of_an_answer_that_a_grammar_holds(
    client: httpx2.AsyncClient, model: str
) -> None:
    body = ANSWERS["json_schema"].fields
    response = await create(client, model=model, include=[LOGPROBS], top_logprobs=3, **body)
    part = answer_of(response)
    spelled = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"])
    assert spelled == part["text"].encode()
    ANSWERS["json_schema"].check(response)


@pytest.mark.parametrize("budget", [1, 3, 8, 16])
async def test_at_the_reasoning_budget_the_answer_is_opened(
    client: httpx2.AsyncClient, model: str, budget: int
) -> None:
    free = await create(client, model=model, input="Hello there")
    stream = await streamed(
        client, model=model, input="Hello there", reasoning={"max_tokens": budget}
    )
    response = stream.response
    thought = response["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert thought == min(budget, free["usage"]["output_tokens_details"]["reasoning_tokens"])
    assert response["status"] == "completed"
    assert answer_of(response)["text"]


@pytest.mark.parametrize("name", ["required, one tool", "required, unasked", "strict, several"])
@pytest.mark.parametrize("budget", [1, 8])
async def test_at_the_reasoning_budget_the_required_call_is_opened(
    client: httpx2.AsyncClient, model: str, name: str, budget: int
) -> None:
    body = {**CALLS[name].fields, "reasoning": {"max_tokens": budget}}
    response = await create(client, model=model, **body)
    assert response["status"] == "completed", response["output"]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] <= budget
    CALLS[name].check(response)


async def test_at_the_reasoning_budget_an_answer_in_json_is_opened(
    client: httpx2.AsyncClient, model: str
) -> None:
    body = {**ANSWERS["json_schema"].fields, "reasoning": {"max_tokens": 2}}
    response = await create(client, model=model, **body)
    assert response["status"] == "completed", response["output"]
    ANSWERS["json_schema"].check(response)


async def test_a_model_out_of_thoughts_may_still_call_a_tool(
    client: httpx2.AsyncClient, model: str
) -> None:
    body: dict[str, Any] = {"input": WEATHER_ASKED, "tools": [WEATHER, SEARCH]}
    response = await create(client, model=model, reasoning={"max_tokens": 2}, **body)
    assert response["status"] == "completed", response["output"]
    assert response["output"][-1]["type"] == "function_call"


async def test_what_is_said_before_a_required_call_is_bounded(
    client: httpx2.AsyncClient, brief_client: httpx2.AsyncClient, model: str
) -> None:
    """The model says something before about half of its searches, and more than this bound."""
    tools: dict[str, Any] = {"tools": [WEATHER, SEARCH], "tool_choice": "required"}
    body = {"model": model, "input": SEARCH_ASKED, "temperature": 1, **tools}
    most = []
    for asked in (client, brief_client):
        responses = await asyncio.gather(*(create(asked, seed=n, **body) for n in range(SEARCHES)))
        assert all(one["output"][-1]["type"] == "function_call" for one in responses)
        most.append(max(map(_preamble_ids, responses)))
    free, brief = most
    assert free > PREAMBLE_TOKENS_MAX >= brief > 0


def _preamble_ids(response: dict[str, Any]) -> int:
    """How many ids its first preamble took, with the markers and headers up to it; 0 without."""
    kinds = [item["type"] for item in response["output"]]
    if "message" not in kinds:
        return 0
    text = texts(response)[0]
    return len(vocabulary().encode(text)) + HEADER_IDS + kinds.index("message") * FRAME_IDS


@pytest.mark.beyond_sglang("a seed has no effect without --enable-deterministic-inference")
async def test_a_seed_gives_the_same_text_again(
    client: httpx2.AsyncClient, vllm: Vllm, model: str
) -> None:
    said = []
    for seed in [*range(SEEDS), *range(SEEDS)]:
        await vllm.until_idle()
        body = {"model": model, "input": LONG_ASKED, "temperature": 1, "max_output_tokens": 100}
        said.append(texts(await create(client, seed=seed, **body)))
    assert said[:SEEDS] == said[SEEDS:]
    assert len({tuple(one) for one in said}) > 1


async def test_a_stop_ends_the_answer_before_it(client: httpx2.AsyncClient, model: str) -> None:
    [whole] = texts(await create(client, model=model, input=LONG_ASKED))
    for stop in (whole[9:14], whole[20:21], "naïve"):
        response = await create(client, model=model, input=LONG_ASKED, stop=["never", stop])
        [said] = texts(response)
        assert said == whole.partition(stop)[0]


async def test_what_a_client_sends_back_sealed_is_the_prompt_that_the_store_gives(
    recorded_client: httpx2.AsyncClient, recorder: Recorder, model: str
) -> None:
    """Sampled, because a model orders the header of a call in more than one way."""
    body: dict[str, Any] = {"model": model, "tools": [WEATHER, SEARCH], "temperature": 1}
    body["include"] = [SEALED]
    calls = 0
    for seed in range(SEEDS):
        history: list[Any] = [{"role": "user", "content": WEATHER_ASKED}]
        response = await create(recorded_client, input=history, seed=seed, **body)
        for _ in range(3):
            news = [result_of(call) for call in calls_of(response)]
            calls += len(news)
            news = news or [{"role": "user", "content": "please search again"}]
            history += [*response["output"], *news]
            before = len(recorder.exchanges)
            more = {"input": history, "store": False, "seed": seed}
            await create(recorded_client, **more, **body)
            stateless = len(recorder.exchanges)
            more = {"input": news, "previous_response_id": response["id"], "seed": seed}
            response = await create(recorded_client, **more, **body)
            sent, stored = recorder.exchanges[before].prompt, recorder.exchanges[stateless].prompt
            assert sent == stored
    assert calls >= SEEDS


async def test_a_seal_of_somebody_else_is_refused(client: httpx2.AsyncClient, model: str) -> None:
    response = await create(client, model=model, input="Hello", include=[SEALED])
    thought = response["output"][0]
    seal = thought["encrypted_content"]
    thought["encrypted_content"] = seal[:-8] + ("A" * 8 if seal[-8:] != "A" * 8 else "B" * 8)
    body = {"model": model, "input": [thought, {"role": "user", "content": "Why?"}]}
    refused = await client.post("/v1/responses", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "invalid_encrypted_content"


async def test_where_refusals_are_not_allowed_there_are_none(
    blunt_client: httpx2.AsyncClient, vllm: Vllm
) -> None:
    body = {**ANSWERS["json_schema"].fields, "model": vllm.model, "temperature": 2}
    responses = [await create(blunt_client, seed=seed, **body) for seed in range(SEEDS)]
    completed = [one for one in responses if one["status"] == "completed"]
    if vllm.engine == "vllm":
        assert len(completed) == SEEDS
    # At this temperature thoughts may go on until the limit, and SGLang repeats none by its seed.
    assert {one["status"] for one in responses} <= {"completed", "incomplete"}
    assert completed
    for response in completed:
        ANSWERS["json_schema"].check(response)
        assert answer_of(response)["type"] == "output_text"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_frees_the_server_of_its_grammar(
    client: httpx2.AsyncClient, vllm: Vllm, stream: bool
) -> None:
    await vllm.until_idle()
    endless = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 5000}
    schema = {
        "type": "object",
        "properties": {"all": endless},
        "required": ["all"],
        "additionalProperties": False,
    }
    asked = {"type": "json_schema", "name": "all", "strict": True, "schema": schema}
    body = {"model": vllm.model, "input": "Hello", "text": {"format": asked}, "stream": stream}
    asking = asyncio.create_task(client.post("/v1/responses", json=body))
    await vllm.until_busy()
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    await vllm.until_idle()
    ANSWERS["json_schema"].check(
        await create(client, model=vllm.model, **ANSWERS["json_schema"].fields)
    )
