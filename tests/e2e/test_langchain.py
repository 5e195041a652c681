"""langchain-openai against a real process, through both APIs that it speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.client_process import ClientProcess, Clients


@pytest.fixture(scope="module")
def langchain(clients: Clients) -> Iterator[ClientProcess]:
    with clients.started("langchain") as process:
        yield process


@pytest.mark.client("langchain-openai", "text")
def test_a_message_is_answered(langchain: ClientProcess) -> None:
    found = langchain.check("invoke", responses=True)
    assert "Hello there" in found["text"]
    assert found["id"].startswith("resp_")
    assert found["usage"]["output_token_details"]["reasoning"] > 0


@pytest.mark.client("langchain-openai", "chat completions")
def test_a_message_is_answered_by_chat(langchain: ClientProcess) -> None:
    found = langchain.check("invoke", responses=False)
    assert "Hello there" in found["text"]
    assert found["usage"]["total_tokens"] > 0


@pytest.mark.client("langchain-openai", "streaming")
def test_a_stream_adds_up_to_the_answer(langchain: ClientProcess) -> None:
    found = langchain.check("stream", responses=True)
    assert "Hello there" in found["text"]
    assert found["chunks"] > 2
    assert found["usage"]["output_tokens"] > 0
    assert langchain.check("astream")["text"] == found["text"]


@pytest.mark.client("langchain-openai", "chat completions")
def test_a_stream_of_chat_adds_up_to_the_answer(langchain: ClientProcess) -> None:
    found = langchain.check("stream", responses=False)
    assert "Hello there" in found["text"]
    assert found["chunks"] > 2


@pytest.mark.client("langchain-openai", "tools")
@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_is_called_and_quoted(langchain: ClientProcess, streamed: bool) -> None:
    found = langchain.check("tools", responses=True, streamed=streamed)
    assert found["called"] == [{"name": "get_weather", "args": {"location": "Paris"}}]
    assert "17 degrees in Paris" in found["text"]


@pytest.mark.client("langchain-openai", "chat completions")
@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_is_called_and_quoted_by_chat(langchain: ClientProcess, streamed: bool) -> None:
    found = langchain.check("tools", responses=False, streamed=streamed)
    assert found["called"] == [{"name": "get_weather", "args": {"location": "Paris"}}]
    assert "17 degrees in Paris" in found["text"]


@pytest.mark.client("langchain-openai", "stored responses")
def test_only_what_is_new_is_sent_behind_the_previous_response(langchain: ClientProcess) -> None:
    found = langchain.check("previous_response")
    assert "17 degrees" in found["second"]
    assert "Ada" in found["third"]


@pytest.mark.client("langchain-openai", "structured output")
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_a_model_is_answered_with_its_object(langchain: ClientProcess, method: str) -> None:
    found = langchain.check("structured", responses=True, method=method)
    assert found == {"location": "Paris"}


@pytest.mark.client("langchain-openai", "chat completions")
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_a_model_is_answered_with_its_object_by_chat(langchain: ClientProcess, method: str) -> None:
    found = langchain.check("structured", responses=False, method=method)
    assert found == {"location": "Paris"}


@pytest.mark.client("langchain-openai", "reasoning")
def test_reasoning_is_shown_as_a_block(langchain: ClientProcess) -> None:
    assert langchain.check("reasoning")["reasoning"]


@pytest.mark.client("langchain-openai", "errors")
def test_a_refusal_keeps_its_code(langchain: ClientProcess) -> None:
    kind = "OpenAIModelNotFoundError"
    assert langchain.check("refused") == {"kind": kind, "code": "model_not_found"}
