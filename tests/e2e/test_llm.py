"""llm, the command line tool, against a real process, through both APIs that it speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.client_process import ClientProcess, Clients


@pytest.fixture(scope="module")
def llm(clients: Clients) -> Iterator[ClientProcess]:
    with clients.started("llm") as process:
        yield process


@pytest.mark.client("llm", "text")
@pytest.mark.client("llm", "streaming")
def test_a_prompt_is_answered_streamed_and_whole(llm: ClientProcess) -> None:
    assert "Hello there" in llm.check("prompt", model="responses")
    assert "Hello there" in llm.check("unstreamed", model="responses")


@pytest.mark.client("llm", "chat completions")
def test_a_prompt_is_answered_streamed_and_whole_by_chat(llm: ClientProcess) -> None:
    assert "Hello there" in llm.check("prompt", model="chat")
    assert "Hello there" in llm.check("unstreamed", model="chat")


@pytest.mark.client("llm", "replayed history")
def test_a_conversation_goes_on(llm: ClientProcess) -> None:
    assert "Ada" in llm.check("goes_on", model="responses")


@pytest.mark.client("llm", "structured output")
def test_a_schema_is_answered_with_its_object(llm: ClientProcess) -> None:
    assert llm.check("schema", model="responses") == {"location": "Paris"}


@pytest.mark.client("llm", "tools")
def test_a_function_is_called_and_quoted(llm: ClientProcess) -> None:
    assert "17 degrees in Paris" in llm.check("tools", model="responses")


@pytest.mark.client("llm", "chat completions")
def test_schemas_functions_and_conversations_work_by_chat(llm: ClientProcess) -> None:
    assert "Ada" in llm.check("goes_on", model="chat")
    assert llm.check("schema", model="chat") == {"location": "Paris"}
    assert "17 degrees in Paris" in llm.check("tools", model="chat")
