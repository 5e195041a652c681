"""pydantic-ai against a real process, through both APIs that it speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.client_process import ClientProcess, Clients


@pytest.fixture(scope="module")
def pydantic_ai(clients: Clients) -> Iterator[ClientProcess]:
    with clients.started("pydantic_ai") as process:
        yield process


def _answers(pydantic_ai: ClientProcess, api: str) -> None:
    found = pydantic_ai.check("run", api=api)
    assert "Hello there" in found["text"]
    assert found["tokens"] > 0
    streamed = pydantic_ai.check("stream", api=api)
    assert streamed == {"text": found["text"], "grew": True}


def _calls_tools(pydantic_ai: ClientProcess, api: str) -> None:
    found = pydantic_ai.check("tools", api=api)
    assert "17 degrees in Paris" in found["text"]
    assert found["requests"] == 2


@pytest.mark.client("pydantic-ai-slim", "text")
@pytest.mark.client("pydantic-ai-slim", "streaming")
def test_an_agent_answers_whole_and_streamed(pydantic_ai: ClientProcess) -> None:
    _answers(pydantic_ai, "responses")


@pytest.mark.client("pydantic-ai-slim", "chat completions")
def test_an_agent_on_chat_answers_whole_and_streamed(pydantic_ai: ClientProcess) -> None:
    _answers(pydantic_ai, "chat")


@pytest.mark.client("pydantic-ai-slim", "tools")
def test_an_agent_calls_its_tool_and_answers(pydantic_ai: ClientProcess) -> None:
    _calls_tools(pydantic_ai, "responses")


@pytest.mark.client("pydantic-ai-slim", "chat completions")
def test_an_agent_on_chat_calls_its_tool_and_answers(pydantic_ai: ClientProcess) -> None:
    _calls_tools(pydantic_ai, "chat")


@pytest.mark.client("pydantic-ai-slim", "replayed history")
def test_a_history_with_reasoning_and_calls_is_replayed(pydantic_ai: ClientProcess) -> None:
    assert "Ada" in pydantic_ai.check("replayed", api="responses")["text"]


@pytest.mark.client("pydantic-ai-slim", "stored responses")
def test_a_history_is_continued_from_its_last_response(pydantic_ai: ClientProcess) -> None:
    found = pydantic_ai.check("stored")
    assert "17 degrees in Paris" in found["first"]
    assert "Ada" in found["second"]


@pytest.mark.client("pydantic-ai-slim", "structured output")
@pytest.mark.parametrize("by", ["native", "tool"])
def test_an_output_type_is_answered_with_its_object(pydantic_ai: ClientProcess, by: str) -> None:
    assert pydantic_ai.check("structured", api="responses", by=by) == {"location": "Paris"}


@pytest.mark.client("pydantic-ai-slim", "chat completions")
@pytest.mark.parametrize("by", ["native", "tool"])
def test_an_output_type_is_answered_with_its_object_by_chat(
    pydantic_ai: ClientProcess, by: str
) -> None:
    assert pydantic_ai.check("structured", api="chat", by=by) == {"location": "Paris"}


@pytest.mark.client("pydantic-ai-slim", "reasoning")
def test_reasoning_is_shown_as_thoughts(pydantic_ai: ClientProcess) -> None:
    assert any(pydantic_ai.check("thinking")["thoughts"])


@pytest.mark.client("pydantic-ai-slim", "errors")
def test_a_refusal_keeps_its_code(pydantic_ai: ClientProcess) -> None:
    assert pydantic_ai.check("refused") == {"status": 404, "code": "model_not_found"}
