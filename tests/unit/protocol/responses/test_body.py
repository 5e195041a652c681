"""The Response object against the two published descriptions of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from openai.types.responses import Response

from gateway import ids
from gateway.generation import TokenUsage
from gateway.protocol.responses.response_object import (
    ECHO_FIELDS,
    Outcome,
    encoded_body,
    response_body,
    spelled_echo,
    usage_body,
)
from tests.fakes.response_heads import CREATED_AT, ECHO, UUID_OF_TEST, response_head

REQUIRED_BY_OPEN_RESPONSES = {
    *("id", "object", "created_at"),
    *("completed_at", "status", "incomplete_details"),
    *("model", "previous_response_id", "instructions"),
    *("output", "error", "tools"),
    *("tool_choice", "truncation", "parallel_tool_calls"),
    *("text", "top_p", "presence_penalty"),
    *("frequency_penalty", "top_logprobs", "temperature"),
    *("reasoning", "usage", "max_output_tokens"),
    *("max_tool_calls", "store", "background"),
    *("service_tier", "metadata", "safety_identifier"),
    "prompt_cache_key",
}


def test_a_log_whose_format_was_not_kept_is_taken_for_that_of_its_model() -> None:
    kept = replace(response_head(), format="chat")
    assert [kept.is_logged_in(name) for name in ("chat", "harmony")] == [True, False]
    assert response_head().is_logged_in("harmony")


def test_every_field_is_there_in_its_order() -> None:
    body = response_body(response_head(), Outcome(), [])
    assert list(body) == [
        "id",
        "object",
        "created_at",
        "status",
        "background",
        "completed_at",
        "error",
        "incomplete_details",
        "output",
        *ECHO_FIELDS,
        "usage",
    ]
    assert set(body) >= REQUIRED_BY_OPEN_RESPONSES


@pytest.mark.requirement("response.object")
def test_it_is_strictly_a_response_of_the_openai_sdk() -> None:
    body = response_body(response_head(), Outcome(usage=TokenUsage(5, 4, 3, 2)), [])
    parsed = Response.model_validate(body, strict=True)
    assert (parsed.id, parsed.created_at) == (ids.response_id(UUID_OF_TEST), CREATED_AT)


def test_the_order_of_the_echo_does_not_matter() -> None:
    head = response_head()
    shuffled = replace(head, echo=dict(reversed(ECHO.items())))
    bodies = [response_body(each, Outcome(), []) for each in (head, shuffled)]
    assert list(bodies[0]) == list(bodies[1])


def test_what_else_the_request_brought_is_shown_before_the_usage() -> None:
    head = replace(response_head(), echo={**ECHO, "conversation": {"id": "conv_1"}})
    body = response_body(head, Outcome(), [])
    assert list(body)[-2:] == ["conversation", "usage"]


def test_an_echo_that_lacks_a_field_is_refused() -> None:
    echo = {name: value for name, value in ECHO.items() if name != "model"}
    with pytest.raises(KeyError, match="model"):
        response_body(replace(response_head(), echo=echo), Outcome(), [])


@pytest.mark.parametrize("more", [{}, {"background": True, "conversation": {"id": "conv_1"}}])
@pytest.mark.parametrize("usage", [None, TokenUsage(5, 4, 3, 2)])
def test_what_is_spelled_in_two_parts_is_the_same_object(
    more: dict[str, Any], usage: TokenUsage | None
) -> None:
    head, outcome = replace(response_head(), echo=ECHO | more), Outcome(usage=usage)
    output = [{"type": "message", "content": []}]
    spelled = encoded_body(head, outcome, output, echo=spelled_echo(head.echo))
    assert spelled == orjson.dumps(response_body(head, outcome, output))


@pytest.mark.requirement("usage.adds-up")
def test_usage_adds_up() -> None:
    assert usage_body(TokenUsage(5, 4, 3, 2)) == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 8,
    }
