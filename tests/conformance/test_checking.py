"""The checker does object, so that its silence means something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from tests.fakes.stream import stream

if TYPE_CHECKING:
    import httpx2

    from tests.conformance.checking import Checker

BODY = {"model": "gpt-oss-20b", "input": "Hello there"}


@pytest.fixture
async def events(client: httpx2.AsyncClient) -> list[dict[str, Any]]:
    return await stream(client, BODY)


async def test_a_response_without_usage_is_refused(
    checker: Checker, events: list[dict[str, Any]]
) -> None:
    response = events[-1]["response"]
    del response["usage"]
    with pytest.raises(AssertionError, match="usage"):
        checker.response(response)


async def test_an_item_of_no_known_type_is_refused(
    checker: Checker, events: list[dict[str, Any]]
) -> None:
    response = events[-1]["response"]
    response["output"][0]["type"] = "thought"
    with pytest.raises(AssertionError, match="output"):
        checker.response(response)


async def test_an_event_of_no_known_type_or_shape_is_refused(
    checker: Checker, events: list[dict[str, Any]]
) -> None:
    with pytest.raises(ValidationError):
        checker.event({**events[0], "type": "response.started"})
    done = next(event for event in events if event["type"] == "response.output_text.done")
    with pytest.raises((AssertionError, ValidationError), match="text"):
        checker.event({**done, "text": 1})
