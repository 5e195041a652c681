"""openai-python's chat completions and completions against a real process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from openai import BadRequestError, LengthFinishReasonError, pydantic_function_tool
from pydantic import BaseModel

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

MODEL = "gpt-oss-20b"


class Person(BaseModel):
    """What is asked for."""

    name: str
    age: int


class GetWeather(BaseModel):
    """Current weather of a place."""

    location: str


WEATHER = pydantic_function_tool(GetWeather, name="get_weather")
PATCH: Any = {
    "type": "custom",
    "custom": {
        "name": "patch",
        "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-c]{1,8}"}},
    },
}


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.mark.client("openai (Python)", "chat completions")
def test_create_answers_with_text_and_reasoning(client: OpenAI) -> None:
    completion = client.chat.completions.create(model=MODEL, messages=user("Hello there"))
    (choice,) = completion.choices
    assert choice.finish_reason == "stop"
    assert "Hello there" in (choice.message.content or "")
    assert choice.message.to_dict()["reasoning_content"]
    assert completion.usage is not None
    assert completion.usage.completion_tokens_details is not None
    assert completion.usage.completion_tokens_details.reasoning_tokens


@pytest.mark.client("openai (Python)", "chat completions")
def test_a_stream_is_iterated_to_its_end(client: OpenAI) -> None:
    with client.chat.completions.create(
        model=MODEL,
        messages=user("Hello there"),
        stream=True,
        stream_options={"include_usage": True},
    ) as chunks:
        *seen, last = list(chunks)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in seen)
    assert "Hello there" in said
    assert [chunk.choices[0].finish_reason for chunk in seen][-1] == "stop"
    assert (last.choices, last.usage is not None) == ([], True)


async def test_a_stream_is_iterated_by_coroutines(async_client: AsyncOpenAI) -> None:
    chunks = await async_client.chat.completions.create(
        model=MODEL, messages=user("Hello there"), stream=True
    )
    said = [chunk.choices[0].delta.content or "" async for chunk in chunks]
    assert "Hello there" in "".join(said)


@pytest.mark.client("openai (Python)", "chat completions")
def test_parse_gives_an_object(client: OpenAI) -> None:
    completion = client.chat.completions.parse(
        model=MODEL, messages=user("Describe Ada."), response_format=Person
    )
    assert isinstance(completion.choices[0].message.parsed, Person)


def test_parse_tells_that_an_answer_was_cut_off(client: OpenAI) -> None:
    with pytest.raises(LengthFinishReasonError):
        client.chat.completions.parse(
            model=MODEL, messages=user("Describe Ada."), response_format=Person, max_tokens=5
        )


def test_parse_gives_the_arguments_of_a_call(client: OpenAI) -> None:
    completion = client.chat.completions.parse(
        model=MODEL, messages=user("What is the weather in Paris?"), tools=[WEATHER]
    )
    (call,) = completion.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, GetWeather)


def test_the_stream_helper_gathers_an_object(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=user("Describe Ada."), response_format=Person
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= set(kinds)
    assert isinstance(final.choices[0].message.parsed, Person)


@pytest.mark.client("openai (Python)", "chat completions")
def test_the_stream_helper_gathers_calls_and_logprobs(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL,
        messages=user("What is the weather in Paris? With a preamble."),
        tools=[WEATHER],
        logprobs=True,
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    assert "logprobs.content.done" in kinds
    choice = final.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content
    (call,) = choice.message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, GetWeather)


@pytest.mark.slow
@pytest.mark.client("openai (Python)", "chat completions")
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop_ends_in_an_answer_that_quotes_the_tool(client: OpenAI, stream: bool) -> None:
    messages = user("What is the weather in Paris?")
    if stream:
        with client.chat.completions.stream(
            model=MODEL, messages=messages, tools=[WEATHER]
        ) as chunks:
            said: Any = chunks.get_final_completion().choices[0].message
    else:
        completion = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])
        said = completion.choices[0].message
    (call,) = said.tool_calls
    assert set(json.loads(call.function.arguments)) == {"location"}
    output: Any = {"role": "tool", "tool_call_id": call.id, "content": "17 degrees"}
    # What a client was given it gives back as it is, `parsed` and all.
    second = client.chat.completions.create(
        model=MODEL, messages=[*messages, said.to_dict(), output], tools=[WEATHER]
    )
    assert "17 degrees" in (second.choices[0].message.content or "")


def test_a_custom_tool_takes_text_of_its_grammar(client: OpenAI) -> None:
    messages = user("[[sim call=patch]] Go")
    completion = client.chat.completions.create(model=MODEL, messages=messages, tools=[PATCH])
    (call,) = completion.choices[0].message.tool_calls or []
    assert call.type == "custom"
    assert set(call.custom.input) <= set("abc")
    with client.chat.completions.create(
        model=MODEL, messages=messages, tools=[PATCH], stream=True
    ) as chunks:
        deltas = [chunk.choices[0].delta.to_dict() for chunk in chunks]
    calls: Any = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert "".join(each["custom"]["input"] for (each,) in calls) == call.custom.input


def test_a_deprecated_function_is_called(client: OpenAI) -> None:
    completion = client.chat.completions.create(
        model=MODEL,
        messages=user("What is the weather in Paris?"),
        functions=[{"name": "get_weather", "parameters": GetWeather.model_json_schema()}],
        function_call={"name": "get_weather"},
    )
    (choice,) = completion.choices
    assert choice.finish_reason == "function_call"
    assert choice.message.function_call is not None
    assert choice.message.function_call.name == "get_weather"


def test_a_refusal_is_raised_with_its_parameter(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=user("Hi"), n=2)
    assert (caught.value.param, caught.value.code) == ("n", "unsupported_parameter")


@pytest.mark.client("openai (Python)", "chat completions")
def test_a_completion_is_answered_and_streamed(client: OpenAI) -> None:
    completion = client.completions.create(model=MODEL, prompt="Hello there")
    assert "Hello there" in completion.choices[0].text
    with client.completions.create(model=MODEL, prompt="Hello there", stream=True) as chunks:
        said = "".join(chunk.choices[0].text for chunk in chunks)
    assert said == completion.choices[0].text
