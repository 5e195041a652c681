"""@openai/agents against a real process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.client_process import ClientProcess, Clients


@pytest.fixture(scope="module")
def agents(clients: Clients) -> Iterator[ClientProcess]:
    with clients.started("agents_node") as process:
        yield process


@pytest.mark.client("@openai/agents", "tools")
def test_an_agent_calls_its_tool_and_answers(agents: ClientProcess) -> None:
    found = agents.check("run")
    assert "17 degrees in Paris" in found["text"]
    assert found["turns"] == 2


@pytest.mark.client("@openai/agents", "streaming")
def test_an_agent_streams(agents: ClientProcess) -> None:
    found = agents.check("stream")
    assert "17 degrees in Paris" in found["text"]
    assert {"raw_model_stream_event", "run_item_stream_event"} <= set(found["kinds"])


@pytest.mark.client("@openai/agents", "handoffs")
def test_an_agent_hands_over(agents: ClientProcess) -> None:
    found = agents.check("handover")
    assert found["last"] == "Helper"
    assert found["text"]


@pytest.mark.client("@openai/agents", "structured output")
def test_an_output_type_is_answered_with_its_object(agents: ClientProcess) -> None:
    assert agents.check("structured") == {"location": "Paris"}


@pytest.mark.client("@openai/agents", "stored responses")
def test_a_run_goes_on_from_the_last_response(agents: ClientProcess) -> None:
    assert "Ada" in agents.check("stored")


@pytest.mark.client("@openai/agents", "replayed history")
def test_a_history_is_replayed(agents: ClientProcess) -> None:
    assert "Ada" in agents.check("replayed")


@pytest.mark.client("@openai/agents", "conversations")
def test_a_session_is_a_conversation(agents: ClientProcess) -> None:
    found = agents.check("session")
    assert "Ada" in found["text"]
    assert found["items"] >= 6


@pytest.mark.client("@openai/agents", "traces")
def test_what_an_agent_did_is_kept(agents: ClientProcess) -> None:
    statuses = agents.check("traces")
    assert statuses
    assert set(statuses) == {204}
