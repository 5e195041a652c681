"""@langchain/openai against a real process, through both APIs that it speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.client_process import ClientProcess, Clients

PARIS = {"location": "Paris"}


@pytest.fixture(scope="module")
def langchain(clients: Clients) -> Iterator[ClientProcess]:
    with clients.started("langchain_node") as process:
        yield process


@pytest.mark.client("@langchain/openai", "text")
def test_a_message_is_answered(langchain: ClientProcess) -> None:
    found = langchain.check("invoke", responses=True)
    assert "Hello there" in found["text"]
    assert found["tokens"] > 0


@pytest.mark.client("@langchain/openai", "streaming")
def test_a_message_is_answered_in_parts(langchain: ClientProcess) -> None:
    found = langchain.check("stream", responses=True)
    assert "Hello there" in found["text"]
    assert found["parts"] > 2


@pytest.mark.client("@langchain/openai", "tools")
def test_a_tool_is_called_and_quoted(langchain: ClientProcess) -> None:
    found = langchain.check("tools", responses=True, zdr=False)
    assert found["called"] == [PARIS]
    assert "17 degrees in Paris" in found["text"]


@pytest.mark.client("@langchain/openai", "replayed history")
def test_a_tool_loop_replays_its_items_where_nothing_is_stored(langchain: ClientProcess) -> None:
    found = langchain.check("tools", responses=True, zdr=True)
    assert "17 degrees in Paris" in found["text"]


@pytest.mark.client("@langchain/openai", "stored responses")
def test_a_response_is_continued(langchain: ClientProcess) -> None:
    assert "Ada" in langchain.check("previous")


@pytest.mark.client("@langchain/openai", "structured output")
@pytest.mark.parametrize("method", ["jsonSchema", "functionCalling"])
def test_a_schema_is_answered_with_its_object(langchain: ClientProcess, method: str) -> None:
    assert langchain.check("structured", responses=True, method=method) == PARIS


@pytest.mark.client("@langchain/openai", "errors")
def test_a_refusal_keeps_its_status_and_code(langchain: ClientProcess) -> None:
    assert langchain.check("refused") == {"status": 404, "code": "model_not_found"}


@pytest.mark.client("@langchain/openai", "chat completions")
def test_chat_answers_streams_and_calls(langchain: ClientProcess) -> None:
    assert "Hello there" in langchain.check("invoke", responses=False)["text"]
    assert "Hello there" in langchain.check("stream", responses=False)["text"]
    found = langchain.check("tools", responses=False, zdr=False)
    assert "17 degrees in Paris" in found["text"]


@pytest.mark.client("@langchain/openai", "chat completions")
@pytest.mark.parametrize("method", ["jsonSchema", "functionCalling"])
def test_a_schema_is_answered_with_its_object_by_chat(
    langchain: ClientProcess, method: str
) -> None:
    assert langchain.check("structured", responses=False, method=method) == PARIS
