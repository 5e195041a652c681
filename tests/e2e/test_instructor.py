"""instructor against a real process: it sends a text format *and* a forced call of its schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.client_process import ClientProcess, Clients


@pytest.fixture(scope="module")
def instructor(clients: Clients) -> Iterator[ClientProcess]:
    with clients.started("instructor") as process:
        yield process


@pytest.mark.client("instructor", "structured output")
def test_a_model_is_answered_with_its_object(instructor: ClientProcess) -> None:
    assert instructor.check("extract", mode="responses") == {"location": "Paris"}


@pytest.mark.client("instructor", "chat completions")
def test_a_model_is_answered_with_its_object_by_chat(instructor: ClientProcess) -> None:
    assert instructor.check("extract", mode="chat") == {"location": "Paris"}
