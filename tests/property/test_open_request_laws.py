"""Laws of what Open Responses lets a client send: it is taken, and what is said of it validates."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.items import ItemReference
from gateway.protocol.json_body import InputLimits
from gateway.protocol.responses import open_responses
from gateway.protocol.responses.create_request import parse_create
from gateway.protocol.responses.response_object import Outcome, ResponseHead, echo, response_body
from tests.conformance.checking import Document, read_specification
from tests.fakes.open_requests import bodies, with_tools
from tests.fakes.response_heads import CREATED_AT, UUID_OF_TEST

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

laws = settings(deadline=None)
Json = dict[str, Any]
LIMITS: Final = InputLimits(
    json_depth_max=128,
    items_max=100,
    tools_max=100,
    schema_bytes_max=10_000,
    text_chars_max=1_000_000,
    json_containers_max=10_000,
)


@cache
def document() -> Document:
    return Document(read_specification())


@cache
def request_schema() -> Draft202012Validator:
    return document().validator("CreateResponseBody")


@pytest.mark.slow
@laws
@given(bodies | with_tools)
def test_what_the_document_allows_is_taken_and_echoed_as_it_demands(body: Json) -> None:
    assert [error.message for error in request_schema().iter_errors(body)] == []
    request = parse_create(json.dumps(body).encode(), limits=LIMITS)
    assert request.ignored == ()
    head = ResponseHead(UUID_OF_TEST, CREATED_AT, request.background, echo(request))
    document().response(open_responses.body(response_body(head, Outcome("queued"), [])))


@pytest.mark.slow
@laws
@given(bodies, st.integers(0))
def test_every_item_that_is_taken_is_listed_as_the_document_demands(body: Json, at: int) -> None:
    items = parse_create(json.dumps(body).encode(), limits=LIMITS).input
    item = items[at % len(items)]
    if not isinstance(item, ItemReference):
        stored = item.model_dump(mode="json", exclude_none=True) | {
            "id": "a",
            "status": "completed",
        }
        document().items(open_responses.items([stored]))
