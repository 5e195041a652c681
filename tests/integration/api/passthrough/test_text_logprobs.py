"""Log probabilities of models whose servers return text: as these tell them."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from openai import AsyncOpenAI

from tests.fakes.stream import stream, texts
from tests.fakes.text_server import DIALECTS, Said, call, text
from tests.integration.api.bodies import WEATHER, create, refused
from tests.integration.api.following import created, id_in, listed, resumed

if TYPE_CHECKING:
    from tests.integration.api.passthrough.conftest import Passing

LOGPROBS = "message.output_text.logprobs"
ANSWER = "Cold, né? 🙂 It is."
THOUGHT = Said("thought", "Let me think.")
ASKED: dict[str, Any] = {"include": [LOGPROBS], "top_logprobs": 2}


def part(response: dict[str, Any]) -> dict[str, Any]:
    """The text of the last message."""
    found: dict[str, Any] = response["output"][-1]["content"][0]
    return found


def joined(tokens: list[dict[str, Any]]) -> str:
    return bytes(chain.from_iterable(token["bytes"] for token in tokens)).decode()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_they_come_with_the_text_and_stand_in_the_item(
    passing: Passing, dialect: str
) -> None:
    server = passing.servers[f"toy-{dialect}"]
    server.script = lambda _: [THOUGHT, *text(ANSWER)]
    body = {"model": server.model, "input": "Oslo?", **ASKED}
    events = await stream(passing.client, body)
    deltas = [one for one in events if one["type"] == "response.output_text.delta"]
    assert "".join(one["delta"] for one in deltas) == ANSWER
    assert joined([token for one in deltas for token in one["logprobs"]]) == ANSWER
    done = next(one for one in events if one["type"] == "response.output_text.done")
    response = events[-1]["response"]
    assert joined(part(response)["logprobs"]) == ANSWER
    assert [one["token"] for one in done["logprobs"]][:3] == ["Co", "ld", ","]
    first = part(response)["logprobs"][0]
    assert (first["token"], first["logprob"], first["bytes"]) == ("Co", -0.5, [67, 111])
    assert first["top_logprobs"] == [{"token": "?", "logprob": -2.0, "bytes": [63]}] * 2
    assert response["top_logprobs"] == 2
    asked = server.asked[0]
    assert (asked["logprobs"], asked["top_logprobs"]) == (True, 2)
    assert (
        await passing.client.get(f"/v1/responses/{response['id']}?include[]={LOGPROBS}")
    ).json() == response


@pytest.mark.slow
async def test_a_resumed_stream_has_the_same_ones(passing: Passing) -> None:
    passing.servers["toy-vllm"].script = lambda _: [THOUGHT, *text(ANSWER)]
    frames = await listed(created(passing.client, model="toy-vllm", input="Oslo?", **ASKED))
    assert await listed(resumed(passing.client, id_in(frames), 3)) == frames[4:]
    assert any('"logprobs":[{"token"' in frame for frame in frames)


async def test_text_before_a_call_has_its_own(passing: Passing) -> None:
    passing.servers["toy-vllm"].script = lambda _: [
        *text("I look."),
        call("get_weather", location="Oslo"),
    ]
    made = await create(
        passing.client, model="toy-vllm", input="Oslo?", tools=[WEATHER], include=[LOGPROBS]
    )
    message, asked = made["output"]
    assert joined(message["content"][0]["logprobs"]) == "I look."
    assert asked["type"] == "function_call"
    assert message["content"][0]["logprobs"][0]["top_logprobs"] == []
    assert "top_logprobs" not in passing.servers["toy-vllm"].asked[0]


async def test_an_answer_in_a_format_has_some(passing: Passing) -> None:
    passing.servers["toy-vllm"].script = lambda _: text('{"n": 1}')
    made = await create(
        passing.client,
        model="toy-vllm",
        input="One? JSON.",
        text={"format": {"type": "json_object"}},
        **ASKED,
    )
    assert joined(part(made)["logprobs"]) == texts(made)[0] == '{"n": 1}'


async def test_a_server_that_leaves_them_out_is_shown_as_it_is(passing: Passing) -> None:
    passing.servers["toy-ollama"].tells_logprobs = False
    passing.servers["toy-ollama"].script = lambda _: text(ANSWER)
    made = await create(passing.client, model="toy-ollama", input="Oslo?", **ASKED)
    assert (part(made)["text"], part(made)["logprobs"]) == (ANSWER, [])


async def test_a_server_that_refuses_them_says_so(passing: Passing) -> None:
    server = passing.servers["toy-tgi"]
    server.refuses = 422, {"error": "`top_n_tokens` or logprobs are not supported here"}
    error = await refused(passing.client, 400, model="toy-tgi", input="go", **ASKED)
    assert (error["code"], error["param"]) == ("unsupported_parameter", "include")
    server.refuses = 422, {"error": "`top_n_tokens` or logprobs are not supported here"}
    body = {"model": "toy-tgi", "messages": [{"role": "user", "content": "go"}], "logprobs": True}
    chat = await passing.client.post("/v1/chat/completions", json=body)
    assert (chat.status_code, chat.json()["error"]["param"]) == (400, "logprobs")


@pytest.mark.slow
async def test_the_sdk_reads_them_in_chat_completions(passing: Passing) -> None:
    passing.servers["toy-vllm"].script = lambda _: [THOUGHT, *text(ANSWER)]
    async with AsyncOpenAI(
        base_url=f"{passing.gateway.url}/v1", api_key=passing.gateway.key
    ) as openai:
        whole = await openai.chat.completions.create(
            model="toy-vllm",
            messages=[{"role": "user", "content": "Oslo?"}],
            logprobs=True,
            top_logprobs=1,
        )
        chunks = await openai.chat.completions.create(
            model="toy-vllm",
            messages=[{"role": "user", "content": "Oslo?"}],
            logprobs=True,
            top_logprobs=1,
            stream=True,
        )
        said = [
            token
            async for chunk in chunks
            for choice in chunk.choices
            if choice.logprobs
            for token in choice.logprobs.content or ()
        ]
    told = whole.choices[0].logprobs
    assert told is not None
    assert told.content == said
    assert bytes(chain.from_iterable(token.bytes or () for token in said)).decode() == ANSWER
