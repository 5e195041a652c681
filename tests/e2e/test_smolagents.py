"""smolagents against a real process: it speaks Chat Completions alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.client_process import ClientProcess, Clients


@pytest.fixture(scope="module")
def smolagents(clients: Clients) -> Iterator[ClientProcess]:
    with clients.started("smolagents") as process:
        yield process


@pytest.mark.client("smolagents", "chat completions")
def test_a_model_answers(smolagents: ClientProcess) -> None:
    assert "Hello there" in smolagents.check("generate")


@pytest.mark.client("smolagents", "chat completions")
def test_an_agent_calls_its_tools_until_the_final_answer(smolagents: ClientProcess) -> None:
    assert smolagents.check("agent")
