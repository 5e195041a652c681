"""Pydantic models through OpenAI's client and openai-agents, against a real process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest
from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool
from openai import pydantic_function_tool
from pydantic import BaseModel

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

MODEL = "gpt-oss-20b"


class Tag(BaseModel):
    """One of several."""

    label: str
    kind: Literal["a", "b"]


class Person(BaseModel):
    """With a list, a choice, and something that may be missing."""

    name: str
    age: int
    tags: list[Tag]
    nickname: str | None


class GetWeather(BaseModel):
    """Arguments of a strict tool."""

    city: str
    unit: Literal["celsius", "fahrenheit"]


class Report(BaseModel):
    """What an agent ends with."""

    summary: str
    degrees: int


@function_tool
def get_weather(location: str) -> str:
    """Current weather of a place."""
    return f"17 degrees in {location}"


@pytest.mark.client("openai (Python)", "structured output")
def test_parse_gives_an_object(client: OpenAI) -> None:
    response = client.responses.parse(model=MODEL, input="Describe Ada.", text_format=Person)
    assert isinstance(response.output_parsed, Person)
    assert Person.model_validate_json(response.output_text) == response.output_parsed


@pytest.mark.client("openai (Python)", "structured output")
def test_stream_gives_the_same_object(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="Describe Ada.", text_format=Person) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert isinstance(final.output_parsed, Person)
    assert "response.output_text.delta" in kinds
    again = client.responses.parse(model=MODEL, input="Describe Ada.", text_format=Person)
    assert final.output_parsed == again.output_parsed


@pytest.mark.client("openai (Python)", "structured output")
def test_parse_tells_a_refusal(client: OpenAI) -> None:
    response = client.responses.parse(
        model=MODEL, input="Describe Ada. [[sim drift=refusal]]", text_format=Person
    )
    assert response.output_parsed is None
    message = response.output[-1]
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "refusal"
    assert part.refusal.startswith("I'm sorry")


def test_stream_tells_a_refusal(client: OpenAI) -> None:
    with client.responses.stream(
        model=MODEL, input="Describe Ada. [[sim drift=refusal]]", text_format=Person
    ) as stream:
        said = [event.delta for event in stream if event.type == "response.refusal.delta"]
        final = stream.get_final_response()
    assert "".join(said).startswith("I'm sorry")
    assert final.output_parsed is None


@pytest.mark.client("openai (Python)", "tools")
def test_a_strict_tool_is_called_with_its_arguments(client: OpenAI) -> None:
    response = client.responses.parse(
        model=MODEL,
        input="How is the weather in Paris?",
        tools=[pydantic_function_tool(GetWeather, name="get_weather")],
        tool_choice="required",
    )
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert isinstance(call.parsed_arguments, GetWeather)


@pytest.mark.client("openai (Python)", "structured output")
async def test_the_async_client_parses(async_client: AsyncOpenAI) -> None:
    response = await async_client.responses.parse(
        model=MODEL, input="Describe Ada.", text_format=Person, store=False
    )
    assert isinstance(response.output_parsed, Person)


@pytest.mark.client("openai-agents", "structured output")
async def test_an_agent_calls_a_strict_tool_and_ends_with_its_output_type(
    async_client: AsyncOpenAI,
) -> None:
    agent = Agent(
        "Reporter",
        instructions="Be brief.",
        model=OpenAIResponsesModel(MODEL, async_client),
        tools=[get_weather],
        output_type=Report,
    )
    result = await Runner.run(agent, "What is the weather in Paris?")
    assert isinstance(result.final_output, Report)
    assert len(result.raw_responses) == 2
    streamed = Runner.run_streamed(agent, "What is the weather in Paris?")
    async for _ in streamed.stream_events():
        pass
    assert isinstance(streamed.final_output, Report)


async def test_an_agent_is_made_to_call_its_tool(async_client: AsyncOpenAI) -> None:
    agent = Agent(
        "Caller",
        model=OpenAIResponsesModel(MODEL, async_client),
        tools=[get_weather],
        model_settings=ModelSettings(tool_choice="required", parallel_tool_calls=False),
        tool_use_behavior="stop_on_first_tool",
    )
    result = await Runner.run(agent, "Greet me.")
    assert "17 degrees" in str(result.final_output)
