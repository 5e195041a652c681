"""openai-agents against a real process: tools, streams, sessions, handoffs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from agents import (
    Agent,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openai import AsyncOpenAI

set_tracing_disabled(disabled=True)


@function_tool
def get_weather(location: str) -> str:
    """Current weather of a place."""
    return f"17 degrees in {location}"


@pytest.fixture
def model(async_client: AsyncOpenAI) -> OpenAIResponsesModel:
    return OpenAIResponsesModel("gpt-oss-20b", async_client)


@pytest.fixture
def session() -> Iterator[SQLiteSession]:
    """In memory."""
    memory = SQLiteSession("conversation")
    yield memory
    memory.close()


@pytest.fixture
def agent(model: OpenAIResponsesModel) -> Agent[None]:
    return Agent("Helper", instructions="Be brief.", model=model, tools=[get_weather])


@pytest.mark.client("openai-agents", "tools")
async def test_an_agent_calls_its_tool_and_answers(agent: Agent[None]) -> None:
    result = await Runner.run(agent, "What is the weather in Paris?")
    assert "17 degrees in Paris" in result.final_output
    assert len(result.raw_responses) == 2


@pytest.mark.client("openai-agents", "streaming")
async def test_an_agent_streams(agent: Agent[None]) -> None:
    result = Runner.run_streamed(agent, "What is the weather in Paris?")
    kinds = [event.type async for event in result.stream_events()]
    assert "17 degrees in Paris" in result.final_output
    assert {"raw_response_event", "run_item_stream_event"} <= set(kinds)


@pytest.mark.client("openai-agents", "replayed history")
async def test_a_session_is_replayed(agent: Agent[None], session: SQLiteSession) -> None:
    await Runner.run(agent, "My name is Ada. What is the weather in Paris?", session=session)
    result = await Runner.run(agent, "What is my name?", session=session)
    assert "Ada" in result.final_output


@pytest.mark.client("openai-agents", "stored responses")
async def test_a_conversation_goes_on_from_its_last_response(agent: Agent[None]) -> None:
    first = await Runner.run(agent, "My name is Ada. What is the weather in Paris?")
    second = await Runner.run(
        agent, "What is my name?", previous_response_id=first.last_response_id
    )
    assert "Ada" in second.final_output


@pytest.mark.client("openai-agents", "handoffs")
async def test_an_agent_hands_over(agent: Agent[None], model: OpenAIResponsesModel) -> None:
    front: Agent[None] = Agent("Front", model=model, handoffs=[agent])
    result = await Runner.run(front, "Please transfer_to_helper.")
    assert result.last_agent is agent
    assert result.final_output
