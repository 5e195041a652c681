"""Refusals as openai-python raises them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from openai import (
    APIError,
    APIStatusError,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    OpenAI,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MODEL = "gpt-oss-20b"
MISSING = "resp_019a0000000070008000000000000000"

REFUSALS: list[tuple[Callable[[OpenAI], object], type[APIStatusError], tuple[Any, Any]]] = [
    (
        lambda client: client.with_options(api_key="gw-wrong").models.list(),
        AuthenticationError,
        ("invalid_api_key", None),
    ),
    (
        lambda client: client.responses.create(model="gpt-9", input="x"),
        NotFoundError,
        ("model_not_found", "model"),
    ),
    (
        lambda client: client.models.retrieve("vendor/gpt-9"),
        NotFoundError,
        ("model_not_found", "model"),
    ),
    (
        lambda client: client.responses.create(
            model=MODEL, input="x", previous_response_id=MISSING
        ),
        BadRequestError,
        ("previous_response_not_found", "previous_response_id"),
    ),
    (
        lambda client: client.responses.create(
            model=MODEL, input="x", background=True, store=False
        ),
        BadRequestError,
        ("unsupported_parameter", "background"),
    ),
    (
        lambda client: client.responses.create(model=MODEL, input="x", temperature=3),
        BadRequestError,
        ("decimal_above_max_value", "temperature"),
    ),
    (lambda client: client.responses.retrieve(MISSING), NotFoundError, (None, None)),
    (lambda client: client.responses.input_items.list(MISSING), NotFoundError, (None, None)),
]


@pytest.mark.requirement("retry.classes")
@pytest.mark.client("openai (Python)", "errors")
@pytest.mark.parametrize(("ask", "kind", "told"), REFUSALS)
def test_a_refusal_is_typed_and_names_its_cause(
    client: OpenAI, ask: Callable[[OpenAI], object], kind: type[APIStatusError], told: Any
) -> None:
    with pytest.raises(kind) as caught:
        ask(client)
    error = caught.value
    assert type(error) is kind
    assert (error.code, error.param) == told
    assert error.type == "invalid_request_error"
    assert error.request_id == error.response.headers["x-request-id"]


@pytest.mark.client("openai (Python)", "errors")
def test_a_refused_stream_is_an_http_error(client: OpenAI) -> None:
    with pytest.raises(NotFoundError) as caught:
        client.responses.create(model="gpt-9", input="x", stream=True)
    assert caught.value.code == "model_not_found"


@pytest.mark.client("openai (Python)", "errors")
def test_a_stream_that_breaks_off_raises(client: OpenAI) -> None:
    text = "[[sim tokens=100 think=none die_after=20]] go"
    events = client.responses.create(model=MODEL, input=text, stream=True)
    with events, pytest.raises(APIError, match="broke off while generating"):
        list(events)


def test_the_stream_helper_raises_what_broke_it_off(client: OpenAI) -> None:
    text = "[[sim tokens=100 think=none die_after=20]] go"
    with (
        client.responses.stream(model=MODEL, input=text) as stream,
        pytest.raises(APIError, match="broke off while generating"),
    ):
        stream.until_done()
