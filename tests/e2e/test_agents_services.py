"""openai-agents with what the gateway keeps for it: conversations, connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from agents import Agent, OpenAIConversationsSession, Runner, function_tool, set_tracing_disabled
from agents.models.openai_responses import OpenAIResponsesModel, OpenAIResponsesWSModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from openai import AsyncOpenAI

MODEL = "gpt-oss-20b"
ASKED = "My name is Ada. What is the weather in Paris?"

set_tracing_disabled(disabled=True)


@function_tool
def get_weather(location: str) -> str:
    """Current weather of a place."""
    return f"17 degrees in {location}"


@pytest.fixture
async def connected(async_client: AsyncOpenAI) -> AsyncIterator[OpenAIResponsesWSModel]:
    """A model that speaks over one WebSocket."""
    model = OpenAIResponsesWSModel(MODEL, async_client)
    yield model
    await model.close()


@pytest.mark.slow
@pytest.mark.client("openai-agents", "conversations")
async def test_a_session_is_a_conversation(async_client: AsyncOpenAI) -> None:
    model = OpenAIResponsesModel(MODEL, async_client)
    agent: Agent[None] = Agent("Helper", model=model, tools=[get_weather])
    session = OpenAIConversationsSession(openai_client=async_client)
    await Runner.run(agent, ASKED, session=session)
    result = await Runner.run(agent, "What is my name?", session=session)
    assert "Ada" in result.final_output
    items: list[Any] = list(await session.get_items())
    assert [item["role"] for item in items if "role" in item] == ["user", "assistant"] * 2
    last = await session.pop_item()
    assert last is not None
    assert len(await session.get_items()) == len(items) - 1
    await session.clear_session()


@pytest.mark.client("openai-agents", "conversations")
async def test_a_run_goes_on_in_a_conversation(async_client: AsyncOpenAI) -> None:
    model = OpenAIResponsesModel(MODEL, async_client)
    agent: Agent[None] = Agent("Helper", model=model, tools=[get_weather])
    conversation = await async_client.conversations.create()
    await Runner.run(agent, ASKED, conversation_id=conversation.id)
    result = await Runner.run(agent, "What is my name?", conversation_id=conversation.id)
    assert "Ada" in result.final_output


@pytest.mark.client("openai-agents", "WebSocket")
async def test_an_agent_streams_and_goes_on_over_a_connection(
    connected: OpenAIResponsesWSModel,
) -> None:
    agent: Agent[None] = Agent("Helper", model=connected, tools=[get_weather])
    result = Runner.run_streamed(agent, ASKED)
    kinds = {event.type async for event in result.stream_events()}
    assert "17 degrees in Paris" in result.final_output
    assert "raw_response_event" in kinds
    again = await Runner.run(
        agent, "What is my name?", previous_response_id=result.last_response_id
    )
    assert "Ada" in again.final_output
