"""Parameters of a chat request, and what they are called in the Responses API."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.protocol import documented
from gateway.protocol.chat_answers import ChatAdapter
from gateway.protocol.chat_conversion import CHAT_PARAMETERS, parse_chat
from gateway.protocol.hosted_tools import HostedFamily, UserLocation, WebSearchTool
from tests.fakes.cases import each
from tests.fakes.chat_bodies import CUSTOM, FUNCTION, GRAMMAR, HI, Row, chat, check_refusal
from tests.fakes.create_bodies import LIMITS, SCHEMA

Json = dict[str, Any]

F: Json = {"type": "function", "function": {"name": "f"}}
SPEC = {name: value for name, value in SCHEMA.items() if name != "type"}


def member(name: str, **fields: Any) -> Any:
    return getattr(chat(**fields).request, name)


def test_a_chat_is_not_stored_unless_it_is_asked_for() -> None:
    assert not member("store")
    assert member("store", store=True)


def test_nulls_are_as_if_they_were_left_out() -> None:
    names: Json = dict.fromkeys(CHAT_PARAMETERS - {"messages", "model"})
    assert chat(**names).request == chat().request


@each(
    "fields",
    [
        {"temperature": 0.3},
        {"top_p": 0.4},
        {"presence_penalty": 1.0},
        {"frequency_penalty": -1.0},
        {"seed": 7},
        {"top_k": 3},
        {"min_p": 0.1},
        {"metadata": {"a": "b"}},
        {"user": "u"},
        {"safety_identifier": "s"},
        {"prompt_cache_key": "k"},
        {"prompt_cache_retention": "24h"},
        {"service_tier": "flex"},
        {"parallel_tool_calls": False},
        {"stream": True},
    ],
)
def test_what_both_apis_have_is_passed_on(fields: Json) -> None:
    ((name, value),) = fields.items()
    assert member(name, **fields) == value


@pytest.mark.parametrize("stop", ["a", ["a"]])
def test_one_stop_or_several_end_the_answer(stop: object) -> None:
    assert member("stop", stop=stop) == ("a",)


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, None),
        ({"max_tokens": 1}, 1),
        ({"max_completion_tokens": 100}, 100),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
    ],
)
def test_the_bound_of_the_output_has_two_names_and_no_minimum(
    fields: Json, tokens: int | None
) -> None:
    assert member("max_output_tokens", **fields) == tokens


@pytest.mark.parametrize(
    ("fields", "effort", "tokens"),
    [
        ({}, None, None),
        ({"reasoning_effort": "low"}, "low", None),
        ({"reasoning": {"effort": "high", "max_tokens": 9}}, "high", 9),
        ({"reasoning": {"effort": "high", "max_tokens": 9}, "reasoning_effort": "low"}, "low", 9),
    ],
)
def test_the_effort_has_two_places(fields: Json, effort: str | None, tokens: int | None) -> None:
    reasoning = member("reasoning", **fields)
    assert (reasoning.effort, reasoning.max_tokens) == (effort, tokens)


def test_verbosity_is_that_of_the_text() -> None:
    assert member("text", verbosity="low").verbosity == "low"


@pytest.mark.parametrize("kind", ["text", "json_object"])
def test_a_format_without_a_schema_is_its_type(kind: str) -> None:
    assert member("text", response_format={"type": kind}).format.type == kind


def test_a_schema_is_that_of_the_answer() -> None:
    asked = {"type": "json_schema", "json_schema": {**SPEC, "strict": True}}
    answer = member("text", response_format=asked).format
    assert (answer.name, answer.schema_, answer.strict) == ("answer", SPEC["schema"], True)


def test_tools_are_functions_and_custom_ones() -> None:
    function, custom, grammar = member("tools", tools=[FUNCTION, CUSTOM, GRAMMAR])
    assert (function.type, function.name, function.parameters) == ("function", "f", {})
    assert (custom.type, custom.name, custom.description) == ("custom", "c", "Runs code.")
    assert (grammar.format.syntax, grammar.format.definition) == ("lark", 'start: "a"+')


@pytest.mark.parametrize("mode", ["none", "auto", "required"])
def test_a_mode_is_a_choice(mode: str) -> None:
    assert member("tool_choice", tools=[FUNCTION], tool_choice=mode) == mode


@pytest.mark.parametrize(
    ("choice", "kind", "name"),
    [(F, "function", "f"), ({"type": "custom", "custom": {"name": "c"}}, "custom", "c")],
)
def test_one_tool_is_a_choice(choice: Json, kind: str, name: str) -> None:
    chosen = member("tool_choice", tools=[FUNCTION, CUSTOM], tool_choice=choice)
    assert (chosen.type, chosen.name) == (kind, name)


def test_some_tools_are_a_choice() -> None:
    allowed = {"mode": "required", "tools": [F]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    chosen = member("tool_choice", tools=[FUNCTION, CUSTOM], tool_choice=choice)
    assert (chosen.mode, [tool.name for tool in chosen.tools]) == ("required", ["f"])


@pytest.mark.parametrize(
    ("call", "choice"),
    [
        (..., "auto"),
        ("none", "none"),
        ({"name": "f"}, "function"),
        ({"type": None, "name": "f"}, "function"),
    ],
)
def test_deprecated_functions_are_tools_one_at_a_time(call: object, choice: str) -> None:
    asked = chat(functions=[FUNCTION["function"]], function_call=call)
    chosen = asked.request.tool_choice
    assert [tool.type for tool in asked.request.tools] == ["function"]
    assert (chosen if isinstance(chosen, str) else chosen.type) == choice
    assert not asked.request.parallel_tool_calls
    assert asked.adapter == ChatAdapter(is_deprecated=True, include_usage=False)


def test_logprobs_are_those_of_the_answer() -> None:
    asked = chat(logprobs=True, top_logprobs=2)
    assert asked.request.wants_logprobs
    assert asked.request.top_logprobs == 2
    assert asked.adapter == ChatAdapter(logprobs=True, include_usage=False)
    assert not chat(logprobs=False, top_logprobs=0).request.wants_logprobs


def test_the_usage_of_a_stream_is_for_those_who_ask() -> None:
    options = {"include_usage": True, "include_obfuscation": False}
    asked = chat(stream=True, stream_options=options)
    assert asked.adapter == ChatAdapter(include_usage=True)
    assert not asked.request.obfuscated
    assert chat(stream=True, stream_options={}).request.obfuscated


def test_what_has_no_effect_is_named() -> None:
    unfit: Json = {"no header": 1}
    asked = chat(
        messages=[{**HI, "name": "ada"}],
        prediction={"type": "content", "content": "x"},
        audio={"voice": "alloy", "format": "wav"},
        modalities=["text"],
        chat_template_kwargs={"enable_thinking": False},
        repetition_penalty=1.1,
        **unfit,
    )
    assert asked.request.ignored == (
        "prediction",
        "audio",
        "chat_template_kwargs",
        "repetition_penalty",
        "messages.name",
    )


def test_hints_about_the_cache_are_named_as_ignored() -> None:
    hints: Json = {"prompt_cache_options": {"mode": "implicit"}, "prompt_cache_retention": "24h"}
    asked = chat(prediction={"type": "content", "content": "x"}, **hints)
    assert asked.request.ignored == ("prediction", *hints)


def test_strictly_only_what_openai_documents_is_accepted() -> None:
    asked = chat(strict=True, prediction={"type": "content", "content": "x"})
    assert asked.request.ignored == ("prediction",)


SEARCH: frozenset[HostedFamily] = frozenset({"web_search"})
SEARCHES: list[tuple[Json, WebSearchTool]] = [
    ({}, WebSearchTool()),
    (
        {"search_context_size": "low", "user_location": None},
        WebSearchTool(search_context_size="low"),
    ),
    (
        {"user_location": {"type": "approximate", "approximate": {"city": "Paris"}}},
        WebSearchTool(user_location=UserLocation(city="Paris")),
    ),
]


@pytest.mark.parametrize(("options", "tool"), SEARCHES)
def test_options_of_a_search_are_the_tool(options: Json, tool: WebSearchTool) -> None:
    request = chat(web_search_options=options, tools=[FUNCTION], served=SEARCH).request
    assert request.tools[1:] == (tool,)
    assert request.tool_choice == "auto"
    older = {"name": "f", "parameters": {}}
    request = chat(web_search_options=options, functions=[older], served=SEARCH).request
    assert request.tools[1:] == (tool,)
    dropped = chat(web_search_options=options).request
    assert dropped.dropped_tools == ("web_search",)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"search_context_size": "huge"}, "web_search_options.search_context_size"),
        ({"user_location": {"approximate": 3}}, "web_search_options.user_location.approximate"),
        (
            {"user_location": {"type": "approximate"}},
            "web_search_options.user_location.approximate",
        ),
        (
            {"user_location": {"approximate": {"city": 3}}},
            "web_search_options.user_location.approximate.city",
        ),
        ({"user_location": 3}, "web_search_options.user_location"),
    ],
)
def test_a_mistake_in_options_of_a_search_is_told_at_its_place(options: Json, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(web_search_options=options, served=SEARCH)
    assert caught.value.param == param


def test_all_that_openai_documents_is_known() -> None:
    without_effect = documented.CHAT_PARAMETERS - CHAT_PARAMETERS
    assert without_effect == {"audio", "prediction"}


ARRAY = {"type": "array"}
STRICT = {"name": "f", "strict": True, "parameters": ARRAY}
WITH_TOOL: Json = {"tools": [FUNCTION]}
ROWS: list[Row] = [
    ({"model": ...}, "missing_required_parameter", "model", "'model'"),
    ({"messages": ...}, "missing_required_parameter", "messages", "'messages'"),
    ({"model": 3}, "invalid_type", "model", "a string"),
    ({"temperature": 3}, "decimal_above_max_value", "temperature", "'temperature'"),
    ({"max_tokens": 0}, "integer_below_min_value", "max_tokens", ">= 1"),
    ({"max_completion_tokens": "9"}, "invalid_type", "max_completion_tokens", "an integer"),
    ({"max_tokens": 2**70}, "integer_above_max_value", "max_tokens", f"{2**70}"),
    ({"n": 2}, "unsupported_parameter", "n", "as often as you want answers"),
    ({"n": 0}, "integer_below_min_value", "n", ">= 1"),
    ({"logit_bias": {"50256": -100}}, "unsupported_parameter", "logit_bias", "not supported"),
    ({"modalities": "text"}, "invalid_type", "modalities", "expected an array of strings"),
    ({"modalities": ["text", "audio"]}, "unsupported_parameter", "modalities", "text only"),
    ({"moderation": {"model": "m"}}, "unsupported_parameter", "moderation", "of your own"),
    ({"top_logprobs": 3}, "invalid_value", "top_logprobs", "needs 'logprobs'"),
    ({"logprobs": True, "top_logprobs": 21}, "integer_above_max_value", "top_logprobs", "<= 20"),
    ({"logprobs": 3}, "invalid_type", "logprobs", "a boolean"),
    ({"reasoning_effort": "huge"}, "unsupported_value", "reasoning_effort", "'reasoning_effort'"),
    ({"reasoning": "huge"}, "invalid_type", "reasoning", "an object"),
    ({"reasoning": "x", "reasoning_effort": "low"}, "invalid_type", "reasoning", "an object"),
    ({"reasoning": {"effort": "x"}}, "unsupported_value", "reasoning.effort", "'reasoning.effort'"),
    ({"verbosity": "huge"}, "invalid_value", "verbosity", "'low', 'medium', and 'high'"),
    ({"stop": ["a"] * 5}, "array_above_max_length", "stop", "maximum length 4"),
    ({"stream_options": {"include_usage": True}}, None, "stream_options", "'stream' is enabled"),
    (
        {"stream": True, "stream_options": {"include_usage": "yes"}},
        "invalid_type",
        "stream_options.include_usage",
        "a boolean",
    ),
    ({"metadata": {"k" * 65: "v"}}, "property_name_above_max_length", None, "metadata"),
    ({"messages": [HI] * 1_001}, "array_above_max_length", "messages", "'messages'"),
    ({"tools": [FUNCTION] * 65}, "array_above_max_length", "tools", "'tools'"),
    ({"functions": [{"name": "f"}] * 65}, "array_above_max_length", "functions", "'functions'"),
    (
        {"tools": [{"type": "web_search"}]},
        "invalid_value",
        "tools[0].type",
        "Supported values are: 'function' and 'custom'.",
    ),
    ({"tools": [{"function": {}}]}, "missing_required_parameter", "tools[0].type", "Missing"),
    (
        {"tools": [{"type": "function", "name": "f"}]},
        "missing_required_parameter",
        "tools[0].function",
        "Missing",
    ),
    (
        {"tools": [{"type": "function", "function": {}}]},
        "missing_required_parameter",
        "tools[0].function.name",
        "'tools[0].function.name'",
    ),
    (
        {"tools": [{"type": "function", "function": STRICT}]},
        "invalid_function_parameters",
        "tools[0].function.parameters",
        "Invalid schema for function 'f'",
    ),
    (
        {"tools": [FUNCTION, FUNCTION]},
        "invalid_value",
        "tools[1].function.name",
        "'tools[1].function.name'",
    ),
    ({"functions": [STRICT]}, "invalid_function_parameters", "functions[0].parameters", "Invalid"),
    ({"functions": [{}]}, "missing_required_parameter", "functions[0].name", "functions[0].name"),
    (
        {"tools": [FUNCTION], "functions": [{"name": "f"}]},
        "mutually_exclusive_parameters",
        "functions",
        "deprecated",
    ),
    (
        {"tools": [{"type": "custom", "custom": {"name": "c", "format": {"type": "grammar"}}}]},
        "missing_required_parameter",
        "tools[0].custom.format.grammar",
        "Missing",
    ),
    (
        {
            "tools": [
                {
                    "type": "custom",
                    "custom": {"name": "c", "format": {"type": "grammar", "grammar": "x"}},
                }
            ]
        },
        "invalid_type",
        "tools[0].custom.format.grammar",
        "an object",
    ),
    (
        {
            "tools": [
                {
                    "type": "custom",
                    "custom": {"name": "c", "format": {"type": "grammar", "grammar": {}}},
                }
            ]
        },
        "missing_required_parameter",
        "tools[0].custom.format.grammar.syntax",
        "Missing",
    ),
    (
        {"tools": [{"type": "custom", "custom": {"name": "c", "format": {"type": "x"}}}]},
        "invalid_value",
        "tools[0].custom.format.type",
        "'x'",
    ),
    ({"tool_choice": "required"}, "invalid_value", "tool_choice", "must be specified with 'tools'"),
    ({"tool_choice": "some"}, "invalid_value", "tool_choice", "'none', 'auto', and 'required'"),
    ({**WITH_TOOL, "tool_choice": 3}, "invalid_type", "tool_choice", "one of an object or"),
    (
        {**WITH_TOOL, "tool_choice": {"type": "function"}},
        "missing_required_parameter",
        "tool_choice.function",
        "Missing",
    ),
    (
        {**WITH_TOOL, "tool_choice": {"type": "function", "function": {}}},
        "missing_required_parameter",
        "tool_choice.function.name",
        "Missing",
    ),
    (
        {**WITH_TOOL, "tool_choice": {"type": "custom", "custom": "c"}},
        "invalid_type",
        "tool_choice.custom",
        "an object",
    ),
    (
        {**WITH_TOOL, "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "invalid_value",
        "tool_choice",
        "not found in 'tools'",
    ),
    ({**WITH_TOOL, "tool_choice": {}}, "missing_required_parameter", "tool_choice.type", "Missing"),
    (
        {**WITH_TOOL, "tool_choice": {"type": "allowed_tools"}},
        "missing_required_parameter",
        "tool_choice.allowed_tools",
        "Missing",
    ),
    (
        {**WITH_TOOL, "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
        "missing_required_parameter",
        "tool_choice.allowed_tools.tools",
        "Missing",
    ),
    (
        {
            **WITH_TOOL,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [F, {"type": "function"}]},
            },
        },
        "missing_required_parameter",
        "tool_choice.allowed_tools.tools[1].function",
        "Missing",
    ),
    (
        {
            **WITH_TOOL,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "g"}}],
                },
            },
        },
        "invalid_value",
        "tool_choice.allowed_tools.tools[0]",
        "not found",
    ),
    (
        {"functions": [{"name": "f"}], "function_call": {"name": "g"}},
        "invalid_value",
        "function_call",
        "not found",
    ),
    (
        {"functions": [{"name": "f"}], "function_call": {}},
        "missing_required_parameter",
        "function_call.name",
        "Missing",
    ),
    (
        {"functions": [{"name": "f"}], "function_call": "some"},
        "invalid_value",
        "function_call",
        "'some'",
    ),
    ({"response_format": "json"}, "invalid_type", "response_format", "an object"),
    ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type", "'xml'"),
    ({"response_format": {}}, "missing_required_parameter", "response_format.type", "Missing"),
    (
        {"response_format": {"type": "json_schema"}},
        "missing_required_parameter",
        "response_format.json_schema",
        "Missing",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": "x"}},
        "invalid_type",
        "response_format.json_schema",
        "an object",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        "missing_required_parameter",
        "response_format.json_schema.name",
        "Missing",
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "strict": True, "schema": ARRAY},
            }
        },
        "invalid_json_schema",
        "response_format.json_schema.schema",
        "Invalid schema for response_format 'n'",
    ),
    (
        {"response_format": {"type": "json_object"}, "stop": "x"},
        "unsupported_parameter",
        "stop",
        "or 'response_format' of type 'json_object'",
    ),
]


@each("row", ROWS)
def test_a_mistake_is_told_in_the_words_of_the_chat(row: Row) -> None:
    if row[2] is None:
        row = (row[0], row[1], f"metadata.{'k' * 65}", row[3])
    check_refusal(row)


STRICTLY: list[Row] = [
    ({"best": 1}, "unknown_parameter", "best", "Unknown parameter: 'best'."),
    (
        {"web_search_options": {}},
        "unsupported_parameter",
        "web_search_options",
        "Leave the tool out",
    ),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "input_audio", "input_audio": {"data": "AA"}}],
                }
            ]
        },
        "unsupported_parameter",
        "messages[0].content[0].type",
        "no files",
    ),
]


@pytest.mark.parametrize("row", STRICTLY, ids=lambda row: f"{row[2]}")
def test_strictly_nothing_is_left_undone(row: Row) -> None:
    check_refusal(row, strict=True)


def test_what_cannot_be_read_may_be_refused_alone() -> None:
    part = {"type": "file", "file": {"file_id": "file_1"}}
    body = {"model": "m", "messages": [HI, {"role": "user", "content": [part]}]}
    limits = replace(LIMITS, rejects_media=True)
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(json.dumps(body).encode(), limits=limits)
    assert caught.value.param == "messages[1].content[0].type"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "name": "f"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom", "name": "f"}]}, "tools[0].custom"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f"}}],
                "tool_choice": {"type": "function", "name": "f"},
            },
            "tool_choice.function",
        ),
    ],
)
def test_a_tool_as_a_response_has_it_is_told_where_its_name_stands(
    fields: Json, param: str
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    with pytest.raises(InvalidRequest) as refusal:
        parse_chat(json.dumps(body).encode(), limits=LIMITS)
    assert (refusal.value.code, refusal.value.param) == ("missing_required_parameter", param)
    assert f"stand within '{param.rpartition('.')[2]}'" in refusal.value.message
