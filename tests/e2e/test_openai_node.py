"""openai for Node.js against a real process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.client_process import ClientProcess, Clients


@pytest.fixture(scope="module")
def openai(clients: Clients) -> Iterator[ClientProcess]:
    with clients.started("openai_node") as process:
        yield process


@pytest.mark.client("openai (npm)", "text")
def test_create_answers(openai: ClientProcess) -> None:
    found = openai.check("create")
    assert found["status"] == "completed"
    assert "Hello there" in found["text"]
    assert found["request"].startswith("req_")


@pytest.mark.client("openai (npm)", "streaming")
def test_the_stream_helper_ends_with_what_is_stored(openai: ClientProcess) -> None:
    found = openai.check("stream")
    assert found["numbers"] == list(range(len(found["numbers"])))
    assert found["said"] == found["final"] == found["stored"] != ""


@pytest.mark.client("openai (npm)", "background")
def test_a_stream_is_resumed_where_it_broke_off(openai: ClientProcess) -> None:
    found = openai.check("resume")
    assert found["numbers"] == list(range(len(found["numbers"])))
    assert found["last"] == "response.completed"
    assert "Hello there" in found["final"]


@pytest.mark.client("openai (npm)", "background")
def test_a_background_response_is_cancelled(openai: ClientProcess) -> None:
    assert openai.check("cancel") == {"queued": "queued", "cancelled": "cancelled"}


@pytest.mark.client("openai (npm)", "tools")
@pytest.mark.client("openai (npm)", "replayed history")
@pytest.mark.parametrize("stateful", [True, False])
def test_a_tool_loop_ends_in_an_answer_that_quotes_the_tool(
    openai: ClientProcess, stateful: bool
) -> None:
    found = openai.check("tools", stateful=stateful)
    assert found["arguments"] == {"location": "Paris"}
    assert "17 degrees" in found["text"]


@pytest.mark.client("openai (npm)", "structured output")
def test_a_zod_schema_is_answered_with_its_object(openai: ClientProcess) -> None:
    assert openai.check("parse") == {"location": "Paris"}


@pytest.mark.client("openai (npm)", "conversations")
def test_a_conversation_is_made_continued_listed_and_deleted(openai: ClientProcess) -> None:
    found = openai.check("conversations")
    assert "Ada" in found["text"]
    assert found["kinds"] == ["message", "message", "reasoning", "message"]
    assert found["deleted"] is True


@pytest.mark.client("openai (npm)", "stored responses")
def test_input_items_are_paged_until_the_response_is_deleted(openai: ClientProcess) -> None:
    found = openai.check("inputItems")
    assert found["texts"] == ["text 1", "text 2", "text 3"]
    assert found["gone"]["kind"] == "NotFoundError"


@pytest.mark.client("openai (npm)", "errors")
def test_refusals_are_typed_and_name_their_cause(openai: ClientProcess) -> None:
    found = openai.check("errors")
    assert {name: (one["kind"], one["code"], one["param"]) for name, one in found.items()} == {
        "key": ("AuthenticationError", "invalid_api_key", None),
        "model": ("NotFoundError", "model_not_found", "model"),
        "value": ("BadRequestError", "decimal_above_max_value", "temperature"),
    }
    assert {one["type"] for one in found.values()} == {"invalid_request_error"}
    assert all(one["named"] for one in found.values())


@pytest.mark.client("openai (npm)", "errors")
def test_a_stream_that_breaks_off_raises(openai: ClientProcess) -> None:
    assert openai.check("broken")["kind"] == "APIError"


@pytest.mark.requirement("retry.delay")
@pytest.mark.requirement("retry.statuses")
@pytest.mark.client("openai (npm)", "retries")
def test_a_busy_fleet_is_asked_again_when_it_said(openai: ClientProcess) -> None:
    found = openai.check("retried")
    assert found["tries"][0] == {"status": 503, "wait": "2"}
    assert found["tries"][-1]["status"] == 200
    assert found["status"] == "completed"


@pytest.mark.client("openai (npm)", "models")
def test_models_are_listed_and_found_by_name(openai: ClientProcess) -> None:
    found = openai.check("models")
    assert found["one"] in found["known"]


@pytest.mark.client("openai (npm)", "token counts")
def test_input_tokens_are_counted_as_they_are_used(openai: ClientProcess) -> None:
    found = openai.check("count")
    assert found["counted"] == found["used"] > 0


@pytest.mark.client("openai (npm)", "compaction")
def test_what_compact_returns_is_taken_as_input(openai: ClientProcess) -> None:
    found = openai.check("compact")
    assert found["kinds"] == ["message", "compaction"]
    assert "Ada" in found["text"]


@pytest.mark.client("openai (npm)", "chat completions")
def test_chat_answers_whole_and_streamed(openai: ClientProcess) -> None:
    found = openai.check("chat")
    assert found["whole"] == found["streamed"]
    assert "Hello there" in found["whole"]
    assert found["reason"] == "stop"


@pytest.mark.client("openai (npm)", "chat completions")
def test_the_tool_runner_of_chat_ends_in_an_answer(openai: ClientProcess) -> None:
    assert "17 degrees in Paris" in openai.check("chatTools")
