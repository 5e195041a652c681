"""Completions: a prompt, and what a model of conversations cannot do with it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.protocol.chat_answers import CompletionAdapter
from tests.fakes.cases import each
from tests.fakes.chat_bodies import Row, check_refusal, completion

Json = dict[str, Any]


@pytest.mark.parametrize("prompt", ["x", ["x"]])
def test_a_prompt_is_what_a_user_says(prompt: object) -> None:
    (item,) = completion(prompt=prompt).request.input
    assert item.model_dump(exclude_none=True) == {
        "type": "message",
        "role": "user",
        "content": ({"type": "input_text", "text": "x"},),
    }


def test_no_bound_is_none() -> None:
    assert completion().request.max_output_tokens is None
    assert completion(max_tokens=3).request.max_output_tokens == 3


def test_what_asks_for_nothing_special_is_accepted() -> None:
    plain: Json = {"n": 1, "best_of": 1, "echo": False, "suffix": "", "logit_bias": {}}
    assert completion(**plain).request == completion().request


def test_a_completion_is_not_stored_unless_it_is_asked_for() -> None:
    assert not completion().request.store
    assert completion(store=True).request.store


def test_the_effort_is_that_of_the_reasoning() -> None:
    assert completion(reasoning_effort="low").request.reasoning.effort == "low"


def test_the_usage_of_a_stream_is_for_those_who_ask() -> None:
    options = {"include_usage": True, "include_obfuscation": False}
    asked = completion(stream=True, stream_options=options)
    assert asked.adapter == CompletionAdapter(include_usage=True)
    assert not asked.request.obfuscated


def test_what_has_no_effect_is_named() -> None:
    assert completion(guided_json={}).request.ignored == ("guided_json",)


ROWS: list[Row] = [
    ({"model": ...}, "missing_required_parameter", "model", "Missing"),
    ({"prompt": ...}, "missing_required_parameter", "prompt", "Missing"),
    ({"prompt": ""}, "empty_string", "prompt", "empty string"),
    ({"prompt": []}, "empty_array", "prompt", "empty array"),
    ({"prompt": ["a", "b"]}, "unsupported_parameter", "prompt", "a request for each"),
    ({"prompt": [""]}, "unsupported_parameter", "prompt", "Send one text"),
    ({"prompt": [1, 2]}, "unsupported_parameter", "prompt", "not its token ids"),
    ({"prompt": [[1, 2]]}, "unsupported_parameter", "prompt", "not its token ids"),
    ({"prompt": 3}, "invalid_type", "prompt", "one of a string or array with one string"),
    ({"prompt": "x" * 5_001}, "string_above_max_length", "prompt", "Invalid 'prompt'"),
    ({"max_tokens": 0}, "integer_below_min_value", "max_tokens", ">= 1"),
    ({"n": 2}, "unsupported_parameter", "n", "as often"),
    ({"best_of": 2}, "unsupported_parameter", "best_of", "as often"),
    ({"echo": True}, "unsupported_parameter", "echo", "yourself"),
    ({"suffix": "x"}, "unsupported_parameter", "suffix", "in the prompt"),
    ({"logprobs": 0}, "unsupported_parameter", "logprobs", "/v1/chat/completions"),
    ({"logit_bias": {"1": 1}}, "unsupported_parameter", "logit_bias", "in the prompt"),
    ({"reasoning_effort": "x"}, "unsupported_value", "reasoning_effort", "'reasoning_effort'"),
    ({"temperature": "x"}, "invalid_type", "temperature", "a decimal"),
]


@each("row", ROWS)
def test_a_mistake_is_told_in_the_words_of_the_completion(row: Row) -> None:
    check_refusal(row, of_completion=True)


def test_strictly_unknown_names_are_refused() -> None:
    row: Row = ({"guided_json": {}}, "unknown_parameter", "guided_json", "Unknown")
    check_refusal(row, strict=True, of_completion=True)
