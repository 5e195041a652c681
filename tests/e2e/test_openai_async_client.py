"""openai-python's coroutines, and its parsing of tools that are pydantic models."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import openai
import pytest
from openai.types.responses import ParsedResponseFunctionToolCall
from pydantic import BaseModel

if TYPE_CHECKING:
    from openai import AsyncOpenAI

MODEL = "gpt-oss-20b"


class GetWeather(BaseModel):
    """Current weather."""

    location: str


async def test_create_and_retrieve(async_client: AsyncOpenAI) -> None:
    response = await async_client.responses.create(model=MODEL, input="Hello there")
    stored = await async_client.responses.retrieve(response.id)
    assert stored.to_dict() == response.to_dict()


@pytest.mark.client("openai (Python)", "streaming")
async def test_a_stream_is_iterated_to_its_end(async_client: AsyncOpenAI) -> None:
    async with await async_client.responses.create(
        model=MODEL, input="Hello there", stream=True
    ) as events:
        seen = [event async for event in events]
    assert (seen[0].type, seen[-1].type) == ("response.created", "response.completed")


@pytest.mark.client("openai (Python)", "streaming")
async def test_many_streams_at_once_are_not_mixed_up(async_client: AsyncOpenAI) -> None:
    async def said(number: int) -> str:
        async with async_client.responses.stream(
            model=MODEL, input=f"[[sim say=answer {number}]] go"
        ) as stream:
            return (await stream.get_final_response()).output_text

    answers = await asyncio.gather(*(said(number) for number in range(20)))
    assert answers == [f"answer {number}" for number in range(20)]


@pytest.mark.client("openai (Python)", "tools")
async def test_a_pydantic_tool_is_called_with_arguments_that_parse(
    async_client: AsyncOpenAI,
) -> None:
    tool: Any = openai.pydantic_function_tool(GetWeather, name="get_weather")
    async with async_client.responses.stream(
        model=MODEL, input="What is the weather in Paris?", tools=[tool]
    ) as stream:
        first = await stream.get_final_response()
    (call,) = [one for one in first.output if isinstance(one, ParsedResponseFunctionToolCall)]
    assert call.parsed_arguments == GetWeather(location="Paris")
    second = await async_client.responses.parse(
        model=MODEL,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "17 degrees"}],
        previous_response_id=first.id,
        tools=[tool],
    )
    assert "17 degrees" in second.output_text


@pytest.mark.slow
async def test_input_items_are_paged(async_client: AsyncOpenAI) -> None:
    first = await async_client.responses.create(model=MODEL, input="one")
    second = await async_client.responses.create(
        model=MODEL, input="two", previous_response_id=first.id
    )
    pages = async_client.responses.input_items.list(second.id, limit=1, order="asc")
    kinds = [item.type async for item in pages]
    assert kinds == ["message", "reasoning", "message", "message"]


async def test_models_and_deletion(async_client: AsyncOpenAI) -> None:
    assert MODEL in [model.id async for model in async_client.models.list()]
    response = await async_client.responses.create(model=MODEL, input="Hello there")
    await async_client.responses.delete(response.id)
