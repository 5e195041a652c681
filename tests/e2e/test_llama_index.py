"""llama-index against a real process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.client_process import ClientProcess, Clients


@pytest.fixture(scope="module")
def llama_index(clients: Clients) -> Iterator[ClientProcess]:
    with clients.started("llama_index") as process:
        yield process


@pytest.mark.client("llama-index-llms-openai", "text")
def test_a_message_is_answered(llama_index: ClientProcess) -> None:
    assert "Hello there" in llama_index.check("chat")


@pytest.mark.client("llama-index-llms-openai", "streaming")
def test_a_message_is_answered_in_parts(llama_index: ClientProcess) -> None:
    found = llama_index.check("stream")
    assert "Hello there" in found["text"]
    assert found["parts"] > 2


@pytest.mark.client("llama-index-llms-openai", "tools")
def test_a_tool_is_called_and_quoted(llama_index: ClientProcess) -> None:
    assert "17 degrees in Paris" in llama_index.check("tools")


@pytest.mark.client("llama-index-llms-openai", "structured output")
def test_a_model_is_answered_with_its_object(llama_index: ClientProcess) -> None:
    assert llama_index.check("structured") == {"location": "Paris"}
