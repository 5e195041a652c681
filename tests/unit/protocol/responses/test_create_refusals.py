"""What is missing or of the wrong type, in OpenAI's words: body → code, param, message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.protocol.responses.create_request import parse_create
from tests.fakes.cases import each
from tests.fakes.create_bodies import FUNCTION, LIMITS, Row, body_of, refusal

MISSING: list[Row] = [
    ({"model": ...}, "missing_required_parameter", "model", "Missing required parameter: 'model'."),
    (
        {"model": None},
        "missing_required_parameter",
        "model",
        "Missing required parameter: 'model'.",
    ),
    ({"input": ...}, "missing_required_parameter", "input", "Missing required parameter: 'input'."),
    (
        {"input": None},
        "missing_required_parameter",
        "input",
        "Missing required parameter: 'input'.",
    ),
    (
        {"input": []},
        "missing_required_parameter",
        None,
        "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation' must be "
        "provided.",
    ),
    (
        {"input": ""},
        "missing_required_parameter",
        None,
        "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation' must be "
        "provided.",
    ),
    (
        {"input": [{"role": "user"}]},
        "missing_required_parameter",
        "input[0].content",
        "Missing required parameter: 'input[0].content'.",
    ),
    (
        {"input": [{"role": "user", "content": None}]},
        "missing_required_parameter",
        "input[0].content",
        "Missing required parameter: 'input[0].content'.",
    ),
    (
        {"input": [{}]},
        "missing_required_parameter",
        "input[0].type",
        "Missing required parameter: 'input[0].type'.",
    ),
    (
        {
            "input": [
                {"role": "user", "content": "x"},
                {"role": "user", "content": [{"type": "input_text"}]},
            ]
        },
        "missing_required_parameter",
        "input[1].content[0].text",
        "Missing required parameter: 'input[1].content[0].text'.",
    ),
    (
        {"input": [{"role": "user", "content": [{"text": "x"}]}]},
        "missing_required_parameter",
        "input[0].content[0].type",
        "Missing required parameter: 'input[0].content[0].type'.",
    ),
    (
        {"input": [{"type": "function_call_output", "name": "f to=system", "output": "x"}]},
        "invalid_value",
        "input[0].name",
        "Invalid 'input[0].name': string does not match pattern. Expected a string that matches "
        "the pattern '^[A-Za-z0-9_.-]{1,128}$'.",
    ),
    (
        {"input": [{"type": "custom_tool_call_output", "output": "x"}]},
        "missing_required_parameter",
        "input[0].call_id",
        "Missing required parameter: 'input[0].call_id'.",
    ),
    (
        {"tools": [{}]},
        "missing_required_parameter",
        "tools[0].type",
        "Missing required parameter: 'tools[0].type'.",
    ),
    (
        {"tools": [FUNCTION, {"type": "function", "function": {"name": "f"}}]},
        "missing_required_parameter",
        "tools[1].name",
        "Missing required parameter: 'tools[1].name'. Here what stands within 'function' stands "
        "beside 'type': move it up one level.",
    ),
    (
        {"tools": [{"type": "custom", "name": "c", "format": {"type": "grammar"}}]},
        "missing_required_parameter",
        "tools[0].format.syntax",
        "Missing required parameter: 'tools[0].format.syntax'.",
    ),
    (
        {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}]},
        "missing_required_parameter",
        "tools[0].tools[0].name",
        "Missing required parameter: 'tools[0].tools[0].name'.",
    ),
    (
        {"input": [{"type": "local_shell_call_output", "output": "x"}]},
        "missing_required_parameter",
        "input[0].call_id",
        "Missing required parameter: 'input[0].call_id'.",
    ),
    (
        {"input": [{"type": "shell_call", "call_id": "c", "action": {}}]},
        "missing_required_parameter",
        "input[0].action.commands",
        "Missing required parameter: 'input[0].action.commands'.",
    ),
    (
        {
            "input": [
                {
                    "type": "apply_patch_call",
                    "call_id": "c",
                    "operation": {"type": "update_file", "path": "p"},
                }
            ]
        },
        "missing_required_parameter",
        "input[0].operation.diff",
        "Missing required parameter: 'input[0].operation.diff'.",
    ),
    (
        {"tool_choice": {"type": "allowed_tools", "tools": [{"type": "function"}]}},
        "missing_required_parameter",
        "tool_choice.tools[0].name",
        "Missing required parameter: 'tool_choice.tools[0].name'.",
    ),
    (
        {"tool_choice": {"type": "function"}, "tools": [FUNCTION]},
        "missing_required_parameter",
        "tool_choice.name",
        "Missing required parameter: 'tool_choice.name'.",
    ),
    (
        {"tool_choice": {}},
        "missing_required_parameter",
        "tool_choice.type",
        "Missing required parameter: 'tool_choice.type'.",
    ),
    (
        {"prompt": {}},
        "missing_required_parameter",
        "prompt.id",
        "Missing required parameter: 'prompt.id'.",
    ),
]


def _type(fields: dict[str, Any], param: str, expected: str, got: str) -> Row:
    message = f"Invalid type for '{param}': expected {expected}, but got {got} instead."
    return fields, "invalid_type", param, message


TYPES: list[Row] = [
    _type({"model": 7}, "model", "a string", "an integer"),
    _type({"input": {"a": 1}}, "input", "one of a string or array of input items", "an object"),
    _type({"input": [7]}, "input[0]", "an input item", "an integer"),
    _type({"input": [None]}, "input[0]", "an input item", "null"),
    _type({"input": [{"type": 7}]}, "input[0].type", "a string", "an integer"),
    _type(
        {"input": [{"role": "user", "content": 7}]},
        "input[0].content",
        "one of a string or array of objects",
        "an integer",
    ),
    _type(
        {"input": [{"role": "user", "content": [True]}]},
        "input[0].content[0]",
        "an object",
        "a boolean",
    ),
    _type(
        {"input": [{"role": "user", "content": [{"type": 1, "text": "x"}]}]},
        "input[0].content[0].type",
        "a string",
        "an integer",
    ),
    _type(
        {"input": [{"type": "function_call_output", "call_id": "c", "output": [True]}]},
        "input[0].output[0]",
        "an object",
        "a boolean",
    ),
    _type({"input": [{"type": ["message"]}]}, "input[0].type", "a string", "an array"),
    _type(
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": []}]}]},
        "input[0].content[0].text",
        "a string",
        "an array",
    ),
    _type(
        {"input": [{"type": "reasoning", "content": {}}]},
        "input[0].content",
        "an array of objects",
        "an object",
    ),
    _type(
        {"input": [{"type": "reasoning", "summary": ["x"]}]},
        "input[0].summary[0]",
        "an object",
        "a string",
    ),
    _type(
        {"input": [{"type": "function_call_output", "call_id": "c", "output": {}}]},
        "input[0].output",
        "one of a string or array of objects",
        "an object",
    ),
    _type(
        {
            "input": [
                {
                    "type": "function_call_output",
                    "call_id": "c",
                    "output": [{"type": "input_text", "text": 1}],
                }
            ]
        },
        "input[0].output[0].text",
        "a string",
        "an integer",
    ),
    _type({"temperature": "hot"}, "temperature", "a decimal", "a string"),
    _type({"temperature": True}, "temperature", "a decimal", "a boolean"),
    _type({"top_p": "wide"}, "top_p", "a decimal", "a string"),
    _type({"presence_penalty": "x"}, "presence_penalty", "a decimal", "a string"),
    _type({"frequency_penalty": "x"}, "frequency_penalty", "a decimal", "a string"),
    _type({"max_output_tokens": "x"}, "max_output_tokens", "an integer", "a string"),
    _type({"max_output_tokens": 20.5}, "max_output_tokens", "an integer", "a decimal number"),
    _type({"max_tool_calls": "x"}, "max_tool_calls", "an integer", "a string"),
    _type({"top_logprobs": "x"}, "top_logprobs", "an integer", "a string"),
    _type({"stream": "yes"}, "stream", "a boolean", "a string"),
    _type({"store": 1}, "store", "a boolean", "an integer"),
    _type({"background": "yes"}, "background", "a boolean", "a string"),
    _type({"parallel_tool_calls": "x"}, "parallel_tool_calls", "a boolean", "a string"),
    _type({"instructions": {"a": 1}}, "instructions", "a string", "an object"),
    _type({"user": 7}, "user", "a string", "an integer"),
    _type({"safety_identifier": 7}, "safety_identifier", "a string", "an integer"),
    _type({"prompt_cache_key": {}}, "prompt_cache_key", "a string", "an object"),
    _type({"previous_response_id": {}}, "previous_response_id", "a string", "an object"),
    _type({"conversation": 7}, "conversation", "one of a string or object", "an integer"),
    _type({"conversation": ["c"]}, "conversation", "one of a string or object", "an array"),
    _type({"prompt": "x"}, "prompt", "an object", "a string"),
    _type({"moderation": "x"}, "moderation", "an object", "a string"),
    _type({"reasoning": "low"}, "reasoning", "an object", "a string"),
    _type({"stream_options": "x"}, "stream_options", "an object", "a string"),
    _type({"prompt_cache_options": "x"}, "prompt_cache_options", "an object", "a string"),
    _type({"text": "x"}, "text", "an object", "a string"),
    _type({"tools": "x"}, "tools", "an array of tools", "a string"),
    _type({"tools": [7]}, "tools[0]", "an object", "an integer"),
    _type(
        {"tools": [{**FUNCTION, "parameters": []}]}, "tools[0].parameters", "an object", "an array"
    ),
    _type({"stop": 7}, "stop", "one of a string or array of strings", "an integer"),
    _type({"stop": ["a", 7]}, "stop[1]", "a string", "an integer"),
    *(
        _type(
            {
                "input": [
                    {
                        "type": "shell_call",
                        "call_id": "c",
                        "action": {"commands": [], "timeout_ms": value},
                    }
                ]
            },
            "input[0].action.timeout_ms",
            "an integer",
            kind,
        )
        for value, kind in (("x", "a string"), ("9" * 5_000, "a string"), (0.5, "a decimal number"))
    ),
    _type({"seed": 1.5}, "seed", "an integer", "a decimal number"),
    _type({"top_k": True}, "top_k", "an integer", "a boolean"),
    _type(
        {"tools": [{"type": "custom", "name": "c", "format": "x"}]},
        "tools[0].format",
        "an object",
        "a string",
    ),
    _type(
        {"tools": [{"type": "namespace", "name": "n", "tools": {}}]},
        "tools[0].tools",
        "an array of objects",
        "an object",
    ),
    _type({"include": "x"}, "include", "an array of strings", "a string"),
    _type({"metadata": "x"}, "metadata", "a metadata object", "a string"),
    _type({"metadata": {"k": 1}}, "metadata.k", "a string", "an integer"),
    _type({"metadata": {"k": None}}, "metadata.k", "a string", "null"),
    _type({"context_management": "x"}, "context_management", "an array of objects", "a string"),
    _type({"truncation": {}}, "truncation", "one of 'auto' or 'disabled'", "an object"),
    _type(
        {"reasoning": {"effort": 5}},
        "reasoning.effort",
        "one of 'none', 'minimal', 'low', 'medium', 'high', 'xhigh', or 'max'",
        "an integer",
    ),
    _type(
        {"tool_choice": 7},
        "tool_choice",
        "one of an object or 'none', 'auto', or 'required'",
        "an integer",
    ),
]


@each(("fields", "code", "param", "message"), [*MISSING, *TYPES])
def test_a_mistake_is_answered_in_openais_words(
    fields: dict[str, Any], code: str | None, param: str | None, message: str
) -> None:
    assert refusal(**fields) == (code, param, message)


@pytest.mark.requirement("create.validation-order")
@each(
    ("fields", "param"),
    [
        ({"model": ..., "input": ..., "bogus": 1}, "model"),
        ({"input": ..., "bogus": 1, "truncation": "x"}, "input"),
        ({"bogus": 1, "input": 7}, "bogus"),
        ({"input": [{}], "truncation": "x"}, "input[0].type"),
        ({"previous_response_id": 7, "include": "x"}, "previous_response_id"),
        ({"moderation": "x", "include": ["x"]}, "moderation"),
        ({"include": ["x"], "tools": "x"}, "include[0]"),
        ({"tools": "x", "metadata": "x"}, "tools"),
        ({"metadata": "x", "text": "x"}, "metadata"),
        ({"text": "x", "temperature": "x"}, "text"),
        ({"temperature": "x", "top_p": "x"}, "temperature"),
        ({"parallel_tool_calls": "x", "stream": "x"}, "parallel_tool_calls"),
        ({"stream": "x", "stream_options": "x"}, "stream"),
        ({"stream_options": "x", "background": "x"}, "stream_options"),
        ({"background": "x", "max_output_tokens": "x"}, "background"),
        ({"max_tool_calls": "x", "reasoning": "x"}, "max_tool_calls"),
        ({"reasoning": "x", "user": 7}, "reasoning"),
        ({"user": 7, "safety_identifier": 7}, "user"),
        ({"prompt_cache_options": "x", "prompt_cache_key": 7}, "prompt_cache_options"),
        ({"truncation": "x", "instructions": 7}, "truncation"),
        ({"store": "x", "service_tier": "bogus"}, "store"),
        ({"top_logprobs": "x", "context_management": "x"}, "top_logprobs"),
        ({"background": True, "truncation": "x"}, "truncation"),
        ({"conversation": "c", "temperature": 3}, "temperature"),
    ],
)
def test_of_two_mistakes_the_first_in_openais_order_is_reported(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_create(json.dumps(body_of(fields)).encode(), limits=LIMITS, strict=True)
    assert caught.value.param == param


@pytest.mark.requirement("error.unknown-parameter")
@pytest.mark.requirement("create.unknown-parameters")
def test_an_unknown_parameter_is_refused_only_when_strict() -> None:
    body = json.dumps(body_of({"reasoning_effort": "low", "image": {}})).encode()
    assert parse_create(body, limits=LIMITS).ignored == ("reasoning_effort", "image")
    with pytest.raises(InvalidRequest) as caught:
        parse_create(body, limits=LIMITS, strict=True)
    assert caught.value.code == "unknown_parameter"
    assert str(caught.value) == "Unknown parameter: 'reasoning_effort'."


@pytest.mark.requirement("create.access-programs")
@pytest.mark.requirement("create.image")
def test_a_documented_parameter_without_effect_is_no_mistake_when_strict() -> None:
    body = json.dumps(body_of({"image": {}, "access_programs": {}})).encode()
    request = parse_create(body, limits=LIMITS, strict=True)
    assert request.ignored == ("image", "access_programs")


def test_no_message_about_a_caller_s_text_is_longer_than_it_needs_to_be() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_create(
            json.dumps(body_of({"metadata": {"k" * 100_000: "v"}})).encode(), limits=LIMITS
        )
    assert len(str(caught.value)) < 400
    assert len(caught.value.param or "") < 200


@pytest.mark.parametrize(
    ("fields", "param", "kind"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name", "function"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].name", "custom"),
        (
            {
                "tools": [{"type": "function", "name": "f"}],
                "tool_choice": {"type": "function", "function": {"name": "f"}},
            },
            "tool_choice.name",
            "function",
        ),
    ],
)
def test_a_tool_as_a_chat_has_it_is_told_where_its_name_stands(
    fields: dict[str, Any], param: str, kind: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_create(json.dumps(body_of(fields)).encode(), limits=LIMITS)
    assert (refusal.value.code, refusal.value.param) == ("missing_required_parameter", param)
    assert f"what stands within '{kind}' stands beside 'type'" in refusal.value.message


def test_a_tool_without_a_name_is_told_that_alone() -> None:
    body = json.dumps(body_of({"tools": [{"type": "function", "function": "f"}]})).encode()
    with pytest.raises(InvalidRequest) as refusal:
        parse_create(body, limits=LIMITS)
    assert refusal.value.message == "Missing required parameter: 'tools[0].name'."
