"""litellm's SDK against a real process, through both APIs that it speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.client_process import ClientProcess, Clients


@pytest.fixture(scope="module")
def litellm(clients: Clients) -> Iterator[ClientProcess]:
    with clients.started("litellm") as process:
        yield process


@pytest.mark.client("litellm", "text")
def test_an_input_is_answered(litellm: ClientProcess) -> None:
    assert "Hello there" in litellm.check("responses")


@pytest.mark.client("litellm", "streaming")
def test_a_stream_ends_with_its_response(litellm: ClientProcess) -> None:
    assert litellm.check("streamed")[-1] == "response.completed"


@pytest.mark.client("litellm", "stored responses")
def test_a_response_is_continued_by_the_id_that_litellm_makes_of_it(litellm: ClientProcess) -> None:
    assert "Ada" in litellm.check("continued")


@pytest.mark.client("litellm", "tools")
def test_a_tool_loop_ends_in_an_answer_that_quotes_the_tool(litellm: ClientProcess) -> None:
    assert "17 degrees" in litellm.check("tools")


@pytest.mark.client("litellm", "chat completions")
def test_chat_answers_whole_and_streamed(litellm: ClientProcess) -> None:
    found = litellm.check("chat")
    assert found["whole"] == found["streamed"]
    assert "Hello there" in found["whole"]
