"""The core of the API in front of a real vLLM with a model that knows Harmony, however small."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from gateway.models.harmony.tokenizer import MESSAGE, RETURN, START
from tests.fakes.stream import texts
from tests.vllm.asking import ENDED_WELL, ENDLESS, WEATHER, WEATHER_ASKED, create, streamed

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.event_grammar import Stream
    from tests.vllm.conftest import Vllm
    from tests.vllm.recording import Recorder

pytestmark = pytest.mark.vllm

AT_ONCE = 32
SAMPLES = 200
TOOL_LOOPS = 6
WAIT_S = 10.0
STEP_S = 0.05
PROMPTS = ("Hello there", "a long story", WEATHER_ASKED, "naïve 東京 🎉?", "please search", "why?")


async def test_a_response_is_what_its_stream_and_its_stored_form_say(
    client: httpx2.AsyncClient, model: str
) -> None:
    response = await create(client, model=model, input="Hello there")
    assert response["status"] == "completed"
    assert response["output"][-1]["phase"] == "final_answer"
    stream = await streamed(client, model=model, input="Hello there")
    assert texts(stream.response) == texts(response)
    for said in (response, stream.response):
        assert (await client.get(f"/v1/responses/{said['id']}")).json() == said


async def test_a_conversation_goes_on(client: httpx2.AsyncClient, model: str) -> None:
    response = await create(client, model=model, input="My name is Ada.")
    tokens = 0
    for _ in range(5):
        assert response["usage"]["input_tokens"] > tokens
        tokens = response["usage"]["input_tokens"]
        response = await create(
            client, model=model, input="And then?", previous_response_id=response["id"]
        )
    assert response["status"] == "completed"


@pytest.mark.parametrize("stateful", [True, False])
async def test_a_tool_loop_ends_in_an_answer(
    client: httpx2.AsyncClient, model: str, stateful: bool
) -> None:
    asked: list[Any] = [{"role": "user", "content": WEATHER_ASKED}]
    body: dict[str, Any] = {"model": model, "tools": [WEATHER], "store": stateful}
    first = await create(client, input=asked, **body)
    call = first["output"][-1]
    assert (call["type"], call["name"]) == ("function_call", "get_weather")
    assert isinstance(json.loads(call["arguments"]), dict)
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "17 degrees"}
    if stateful:
        second = await create(client, input=[output], previous_response_id=first["id"], **body)
    else:
        second = await create(client, input=[*asked, *first["output"], output], **body)
    assert second["output"][-1]["type"] == "message"


async def test_tool_loops_extend_the_prompt_id_for_id(
    recorded_client: httpx2.AsyncClient, recorder: Recorder, model: str
) -> None:
    """Sampled, because a model orders the header of a call in more than one way."""
    body: dict[str, Any] = {"model": model, "tools": [WEATHER], "temperature": 1}
    loops = 0
    for _ in range(TOOL_LOOPS):
        before = len(recorder.exchanges)
        first = await create(recorded_client, input=WEATHER_ASKED, **body)
        call, (one, *more) = first["output"][-1], recorder.exchanges[before:]
        if call["type"] != "function_call" or more:  # a sampled turn may need another
            continue
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "17 C"}
        await create(recorded_client, input=[output], previous_response_id=first["id"], **body)
        two = recorder.exchanges[before + 1]
        said = one.prompt + one.output
        assert first["usage"]["output_tokens"] == len(one.output)
        assert two.prompt[: len(said)] == said
        loops += 1
    assert loops


async def test_an_answer_stays_in_the_prompt_id_for_id(
    recorded_client: httpx2.AsyncClient, recorder: Recorder, model: str
) -> None:
    before = len(recorder.exchanges)
    first = await create(recorded_client, model=model, input="naïve 東京 🎉?", temperature=1)
    await create(recorded_client, model=model, input="Why?", previous_response_id=first["id"])
    one, *_, two = recorder.exchanges[before:]
    assert one.output[-1] == RETURN
    answer = one.output[len(one.output) - one.output[::-1].index(MESSAGE) : -1]
    after_question = two.prompt[len(one.prompt) :]
    start = after_question.index(MESSAGE) + 1
    assert after_question[start : start + len(answer)] == answer
    assert START in after_question[start + len(answer) :]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_frees_the_server(
    blunt_client: httpx2.AsyncClient, vllm: Vllm, stream: bool
) -> None:
    await vllm.until_idle()
    body = {"model": vllm.model, "stream": stream, **ENDLESS}
    asking = asyncio.create_task(blunt_client.post("/v1/responses", json=body))
    await vllm.until_busy()
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    await vllm.until_idle()


async def test_a_stream_that_is_left_is_stored_as_cancelled(
    blunt_client: httpx2.AsyncClient, vllm: Vllm
) -> None:
    body = {"model": vllm.model, "stream": True, **ENDLESS}
    async with blunt_client.stream("POST", "/v1/responses", json=body) as answer:
        received = ""
        async for text in answer.aiter_text():
            received += text
            if ".delta" in received:
                break
    created = json.loads(received.split("\n", 2)[1].removeprefix("data: "))
    path = f"/v1/responses/{created['response']['id']}"
    async with asyncio.timeout(WAIT_S):
        while (got := await blunt_client.get(path)).status_code == 404:  # noqa: ASYNC110 - another process
            await asyncio.sleep(STEP_S)
    assert got.json()["status"] == "cancelled"
    await vllm.until_idle()


@pytest.mark.parametrize("stream", [True, False])
async def test_the_length_limit_is_exact(
    client: httpx2.AsyncClient, model: str, stream: bool
) -> None:
    body: dict[str, Any] = {"model": model, "input": "A long story", "max_output_tokens": 16}
    if stream:
        response = (await streamed(client, **body)).response
    else:
        response = await create(client, **body)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] == 16


@pytest.mark.beyond_sglang("its prompts are at least six tokens shorter than its context")
async def test_the_context_window_is_exact(client: httpx2.AsyncClient, vllm: Vllm) -> None:
    """One token of room is enough; a full window is refused before the server is asked."""
    short = await create(client, model=vllm.model, input="a", max_output_tokens=16)
    room = vllm.context_length - short["usage"]["input_tokens"]
    response = await create(client, model=vllm.model, input="a" + " a" * (room - 1))
    assert response["usage"]["input_tokens"] == vllm.context_length - 1
    assert response["usage"]["output_tokens"] == 1
    assert response["status"] == "incomplete"
    for stream in (True, False):
        body = {"model": vllm.model, "input": "a" + " a" * room, "stream": stream}
        refused = await client.post("/v1/responses", json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"


async def test_many_streams_at_once_are_all_well_formed(
    client: httpx2.AsyncClient, vllm: Vllm
) -> None:
    streams = await asyncio.gather(
        *(
            streamed(client, model=vllm.model, input=PROMPTS[number % len(PROMPTS)], temperature=1)
            for number in range(AT_ONCE)
        )
    )
    assert {stream.response["status"] for stream in streams} <= ENDED_WELL
    assert all(stream.items for stream in streams)
    await vllm.until_idle()


@pytest.mark.timeout(900)
async def test_sampled_responses_hardly_ever_fail_and_never_show_the_format(
    client: httpx2.AsyncClient, model: str
) -> None:
    places = asyncio.Semaphore(AT_ONCE)

    async def sample(number: int) -> Stream:
        text = PROMPTS[number % len(PROMPTS)]
        tools = [WEATHER] if number // len(PROMPTS) % 2 else []
        async with places:
            return await streamed(client, model=model, input=text, tools=tools, temperature=1)

    streams = await asyncio.gather(*(sample(number) for number in range(SAMPLES)))
    failed = [one.response for one in streams if one.response["status"] not in ENDED_WELL]
    # One of hundreds may break its call as often as it is asked again.
    assert len(failed) <= 1, failed
    assert {one["error"]["code"] for one in failed} <= {"invalid_tool_call"}
    leaks = [stream.items for stream in streams if "<|" in json.dumps(stream.items)]
    assert not leaks
