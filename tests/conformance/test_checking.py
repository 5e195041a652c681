"""The checker does object, so that its silence means something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from tests.fakes.stream import stream

if TYPE_CHECKING:
    import httpx2

    from gateway.tenancy import Dialect
    from tests.conformance.checking import Document

BODY = {"model": "gpt-oss-20b", "input": "Hello there"}


@pytest.fixture
async def events(client: httpx2.AsyncClient) -> list[dict[str, Any]]:
    return await stream(client, BODY)


async def test_a_response_without_usage_is_refused(
    checker: Document, events: list[dict[str, Any]]
) -> None:
    response = events[-1]["response"]
    del response["usage"]
    with pytest.raises(AssertionError, match="usage"):
        checker.response(response)


async def test_an_item_of_no_known_type_is_refused(
    checker: Document, events: list[dict[str, Any]]
) -> None:
    response = events[-1]["response"]
    response["output"][0]["type"] = "thought"
    with pytest.raises(AssertionError, match="output"):
        checker.response(response)


async def test_an_event_of_no_known_type_or_shape_is_refused(
    checker: Document, events: list[dict[str, Any]]
) -> None:
    with pytest.raises(ValidationError):
        checker.event({**events[0], "type": "response.started"})
    done = next(event for event in events if event["type"] == "response.output_text.done")
    with pytest.raises((AssertionError, ValidationError), match="text"):
        checker.event({**done, "text": 1})


async def test_the_document_alone_takes_no_name_and_no_null_of_openai(
    checkers: dict[Dialect, Document], events: list[dict[str, Any]]
) -> None:
    document = checkers["openresponses"]
    thought = next(event for event in events if event["type"] == "response.reasoning_text.done")
    with pytest.raises(AssertionError, match="reasoning_text"):
        document.event(thought)
    response = events[-1]["response"]
    response["output"][-1]["phase"] = None
    with pytest.raises(AssertionError, match="phase"):
        document.response(response)


async def test_an_item_without_a_status_and_a_cut_one_before_others_are_refused(
    checker: Document, events: list[dict[str, Any]]
) -> None:
    response = events[-1]["response"]
    first, *_ = response["output"]
    with pytest.raises(AssertionError, match="not the last"):
        checker.response({**response, "output": [{**first, "status": "incomplete"}, first]})
    del first["status"]
    with pytest.raises((AssertionError, KeyError)):
        checker.items([first])


async def test_a_stream_that_says_two_things_is_refused(
    checker: Document, events: list[dict[str, Any]]
) -> None:
    checker.stream(events)
    at = next(at for at, one in enumerate(events) if one["type"] == "response.output_text.delta")
    with pytest.raises(AssertionError, match="output_text"):
        checker.stream([*events[:at], {**events[at], "delta": "!"}, *events[at + 1 :]])
    with pytest.raises(AssertionError, match="numbers"):
        checker.stream([events[0], *events])


async def test_a_failure_may_have_a_code_that_openai_does_not_list_but_must_have_one(
    checkers: dict[Dialect, Document], events: list[dict[str, Any]]
) -> None:
    checker = checkers["openai"]
    error = {"code": "invalid_tool_call", "message": "The model does not obey."}
    failed = {**events[-1]["response"], "status": "failed", "completed_at": None, "error": error}
    checker.response(failed)
    checker.event({**events[-1], "type": "response.failed", "response": failed})
    del error["code"]
    with pytest.raises(AssertionError, match="error"):
        checker.response(failed)
