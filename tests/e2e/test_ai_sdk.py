"""The AI SDK against a real process, through both APIs that its provider speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.client_process import ClientProcess, Clients


@pytest.fixture(scope="module")
def ai_sdk(clients: Clients) -> Iterator[ClientProcess]:
    with clients.started("ai_sdk") as process:
        yield process


@pytest.mark.client("@ai-sdk/openai", "text")
def test_a_prompt_is_answered(ai_sdk: ClientProcess) -> None:
    found = ai_sdk.check("text", api="responses")
    assert "Hello there" in found["text"]
    assert found["tokens"] > 0


@pytest.mark.client("@ai-sdk/openai", "streaming")
def test_a_prompt_is_answered_in_parts(ai_sdk: ClientProcess) -> None:
    found = ai_sdk.check("streamed", api="responses")
    assert "Hello there" in found["text"]
    assert found["parts"] > 2


@pytest.mark.client("@ai-sdk/openai", "tools")
def test_a_tool_loop_goes_on_from_references_to_stored_items(ai_sdk: ClientProcess) -> None:
    found = ai_sdk.check("tools", api="responses", store=True)
    assert "17 degrees in Paris" in found["text"]
    assert found["steps"] == 2
    assert "item_reference" in found["kinds"]


@pytest.mark.client("@ai-sdk/openai", "replayed history")
def test_a_tool_loop_replays_its_items_where_nothing_is_stored(ai_sdk: ClientProcess) -> None:
    found = ai_sdk.check("tools", api="responses", store=False)
    assert "17 degrees in Paris" in found["text"]
    assert {"reasoning", "function_call", "function_call_output"} <= set(found["kinds"])


@pytest.mark.client("@ai-sdk/openai", "tools")
def test_a_streamed_tool_loop_ends_in_an_answer(ai_sdk: ClientProcess) -> None:
    found = ai_sdk.check("toolsStreamed", api="responses")
    assert "17 degrees in Paris" in found["text"]
    assert found["steps"] == 2


@pytest.mark.client("@ai-sdk/openai", "structured output")
def test_a_schema_is_answered_with_its_object(ai_sdk: ClientProcess) -> None:
    paris = {"location": "Paris"}
    assert ai_sdk.check("object", api="responses") == {"object": paris, "output": paris}


@pytest.mark.client("@ai-sdk/openai", "reasoning")
def test_reasoning_is_shown_as_its_summary(ai_sdk: ClientProcess) -> None:
    assert ai_sdk.check("reasoning")


@pytest.mark.client("@ai-sdk/openai", "stored responses")
def test_a_response_is_continued(ai_sdk: ClientProcess) -> None:
    assert "Ada" in ai_sdk.check("previous")


@pytest.mark.client("@ai-sdk/openai", "errors")
def test_a_refusal_keeps_its_status_and_code(ai_sdk: ClientProcess) -> None:
    found = ai_sdk.check("errors")
    assert found == {"name": "AI_APICallError", "status": 404, "code": "model_not_found"}


@pytest.mark.client("@ai-sdk/openai", "errors")
def test_a_stream_that_breaks_off_is_an_error(ai_sdk: ClientProcess) -> None:
    assert "broke off while generating" in ai_sdk.check("broken")


@pytest.mark.client("@ai-sdk/openai", "chat completions")
def test_chat_answers_streams_calls_and_keeps_to_a_schema(ai_sdk: ClientProcess) -> None:
    paris = {"location": "Paris"}
    assert "Hello there" in ai_sdk.check("text", api="chat")["text"]
    assert "Hello there" in ai_sdk.check("streamed", api="chat")["text"]
    assert "17 degrees in Paris" in ai_sdk.check("tools", api="chat", store=False)["text"]
    assert "17 degrees in Paris" in ai_sdk.check("toolsStreamed", api="chat")["text"]
    assert ai_sdk.check("object", api="chat") == {"object": paris, "output": paris}
