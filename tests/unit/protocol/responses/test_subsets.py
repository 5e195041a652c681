"""Requests with some of a response's parameters: which they are, and what becomes of others."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.errors import InvalidRequest
from gateway.protocol.responses.create_request import COMPACTION, COUNTING, Parameters, parse_subset
from tests.fakes.create_bodies import LIMITS

COUNTED = {
    *("conversation", "input", "instructions", "model", "parallel_tool_calls"),
    *("previous_response_id", "reasoning", "text", "tool_choice", "tools", "truncation"),
}
COMPACTED = {
    *("input", "instructions", "model", "previous_response_id", "prompt_cache_key"),
    *("prompt_cache_options", "prompt_cache_retention", "service_tier"),
}


def refusal(
    subset: Parameters, body: bytes, *, strict: bool = False
) -> tuple[str | None, str | None]:
    with pytest.raises(InvalidRequest) as caught:
        parse_subset(body, subset, limits=LIMITS, strict=strict)
    return caught.value.code, caught.value.param


def body_of(**fields: Any) -> bytes:
    return orjson.dumps({"model": "m", "input": "x", **fields})


def test_the_parameters_are_those_of_the_sdk() -> None:
    assert COUNTING.served == {*COUNTED, "max_output_tokens"}
    assert COUNTING.documented - COUNTED == {"personality"}
    assert COMPACTION.served == COMPACTED
    assert COMPACTION.documented - COMPACTED == {"image"}


@pytest.mark.parametrize("subset", [COUNTING, COMPACTION])
def test_other_parameters_have_no_effect_and_are_named(subset: Parameters) -> None:
    request = parse_subset(body_of(stream=True, image={}, user=None), subset, limits=LIMITS)
    assert (request.stream, request.ignored) == (False, ("stream", "image"))


def test_hints_about_the_cache_are_named_as_ignored() -> None:
    hint = {"prompt_cache_retention": "24h"}
    for subset in (COUNTING, COMPACTION):
        assert parse_subset(body_of(**hint), subset, limits=LIMITS).ignored == tuple(hint)


def test_with_strict_only_what_is_documented_may_have_no_effect() -> None:
    assert refusal(COMPACTION, body_of(stream=True), strict=True) == ("unknown_parameter", "stream")
    request = parse_subset(body_of(image={}), COMPACTION, limits=LIMITS, strict=True)
    assert request.ignored == ("image",)


@pytest.mark.parametrize("subset", [COUNTING, COMPACTION])
def test_mistakes_are_found_in_the_order_of_a_response(subset: Parameters) -> None:
    assert refusal(subset, b'{"input": 5}') == ("missing_required_parameter", "model")
    assert refusal(subset, b'{"model": 5}') == ("missing_required_parameter", "input")
    assert refusal(subset, b'{"model": 5, "input": 5}') == ("invalid_type", "model")
    assert refusal(subset, b'{"model": "m", "input": 5}') == ("invalid_type", "input")
    assert refusal(subset, b"{") == (None, None)


def test_a_conversation_stands_for_input_only_where_it_is_served() -> None:
    body = b'{"model": "m", "conversation": "conv_1"}'
    assert refusal(COMPACTION, body) == ("unsupported_parameter", "conversation")
    request = parse_subset(body, COUNTING, limits=LIMITS)
    assert request.conversation is not None


def test_a_compaction_is_not_prewarmed() -> None:
    body = body_of(prompt_cache_options={"prewarm": True})
    expected = ("unsupported_parameter", "prompt_cache_options.prewarm")
    assert refusal(COMPACTION, body) == expected
    assert parse_subset(body, COUNTING, limits=LIMITS).ignored == ("prompt_cache_options",)
