"""Every parameter of a create request over HTTP: accepted and echoed, refused, or named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.asking import MODEL, post

if TYPE_CHECKING:
    import httpx2

    from tests.conformance.checking import Json

requirement = pytest.mark.requirement

SCHEMA: Json = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
INCLUDES = [
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        pytest.param(
            {"model": f"openai/{MODEL}"}, {"model": MODEL}, marks=requirement("create.model")
        ),
        pytest.param(
            {"instructions": ""}, {"instructions": ""}, marks=requirement("create.instructions")
        ),
        pytest.param({}, {"instructions": None, "store": True}, marks=requirement("create.store")),
        pytest.param({"store": False}, {"store": False}, marks=requirement("create.store")),
        pytest.param({"include": INCLUDES}, {}, marks=requirement("create.include")),
        pytest.param(
            {"max_output_tokens": 16},
            {"max_output_tokens": 16},
            marks=requirement("create.max-output-tokens"),
        ),
        pytest.param(
            {"max_tool_calls": 1}, {"max_tool_calls": 1}, marks=requirement("create.max-tool-calls")
        ),
        pytest.param(
            {"metadata": {"k" * 64: "v" * 512}},
            {"metadata": {"k" * 64: "v" * 512}},
            marks=requirement("create.metadata"),
        ),
        pytest.param(
            {}, {"parallel_tool_calls": True}, marks=requirement("create.parallel-tool-calls")
        ),
        pytest.param(
            {"parallel_tool_calls": False},
            {"parallel_tool_calls": False},
            marks=requirement("create.parallel-tool-calls"),
        ),
        pytest.param(
            {"prompt_cache_key": "k" * 64},
            {"prompt_cache_key": "k" * 64},
            marks=requirement("create.prompt-cache-key"),
        ),
        pytest.param(
            {"reasoning": {"effort": "max"}},
            {"reasoning": {"effort": "high", "summary": None}},
            marks=requirement("create.reasoning-effort"),
        ),
        pytest.param(
            {"reasoning": {"effort": "none"}},
            {"reasoning": {"effort": "low", "summary": None}},
            marks=requirement("create.reasoning-effort"),
        ),
        pytest.param(
            {},
            {"reasoning": {"effort": "medium", "summary": None}},
            marks=requirement("traps.default-effort"),
        ),
        pytest.param(
            {"reasoning": {"context": "auto"}},
            {"reasoning": {"effort": "medium", "summary": None, "context": "current_turn"}},
            marks=requirement("create.reasoning-context"),
        ),
        pytest.param(
            {"safety_identifier": "s" * 128},
            {"safety_identifier": "s" * 128},
            marks=requirement("create.safety-identifier"),
        ),
        pytest.param(
            {"service_tier": "ultrafast"},
            {"service_tier": "default"},
            marks=requirement("create.service-tier"),
        ),
        pytest.param(
            {}, {"temperature": 1.0, "top_p": 1.0}, marks=requirement("create.temperature")
        ),
        pytest.param(
            {"temperature": 2}, {"temperature": 2.0}, marks=requirement("create.temperature")
        ),
        pytest.param({"top_p": 0.5}, {"top_p": 0.5}, marks=requirement("create.top-p")),
        pytest.param(
            {"top_logprobs": 20}, {"top_logprobs": 20}, marks=requirement("create.top-logprobs")
        ),
        pytest.param(
            {},
            {"presence_penalty": 0.0, "frequency_penalty": 0.0},
            marks=requirement("create.penalties"),
        ),
        pytest.param(
            {"presence_penalty": -2, "frequency_penalty": 2},
            {"presence_penalty": -2.0, "frequency_penalty": 2.0},
            marks=requirement("create.penalties"),
        ),
        pytest.param(
            {}, {"text": {"format": {"type": "text"}}}, marks=requirement("create.text-format")
        ),
        pytest.param(
            {"text": {"verbosity": "low"}},
            {"text": {"format": {"type": "text"}, "verbosity": "low"}},
            marks=requirement("create.text-verbosity"),
        ),
        pytest.param(
            {}, {"tool_choice": "auto", "tools": []}, marks=requirement("create.tool-choice")
        ),
        pytest.param(
            {"truncation": "auto"}, {"truncation": "auto"}, marks=requirement("create.truncation")
        ),
        pytest.param({}, {"truncation": "disabled"}, marks=requirement("create.truncation")),
        pytest.param(
            {"context_management": [{"type": "compaction", "compact_threshold": 1000}]},
            {},
            marks=requirement("create.context-management"),
        ),
        pytest.param({"user": "somebody"}, {"user": "somebody"}, marks=requirement("create.user")),
    ],
)
async def test_a_parameter_is_accepted_and_echoed(
    client: httpx2.AsyncClient, fields: Json, shown: Json
) -> None:
    answer = await post(client, **fields)
    assert answer.status_code == 200, answer.text
    response = answer.json()
    assert response["status"] in {"completed", "incomplete"}
    assert {name: response[name] for name in shown} == shown
    assert "x-ignored-parameters" not in answer.headers


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        pytest.param(
            {"model": None},
            "missing_required_parameter",
            "model",
            marks=requirement("create.model"),
        ),
        pytest.param(
            {"input": None},
            "missing_required_parameter",
            "input",
            marks=requirement("create.input.absent"),
        ),
        pytest.param({"input": {}}, "invalid_type", "input", marks=requirement("create.input")),
        pytest.param(
            {"instructions": 1},
            "invalid_type",
            "instructions",
            marks=requirement("create.instructions"),
        ),
        pytest.param(
            {"conversation": "conv_1", "previous_response_id": "resp_1"},
            "mutually_exclusive_parameters",
            None,
            marks=requirement("create.previous-response-id"),
        ),
        pytest.param({"store": "no"}, "invalid_type", "store", marks=requirement("create.store")),
        pytest.param(
            {"background": True, "store": False},
            "unsupported_parameter",
            "background",
            marks=requirement("create.background"),
        ),
        pytest.param(
            {"stream": "yes"}, "invalid_type", "stream", marks=requirement("create.stream")
        ),
        pytest.param(
            {"stream_options": {"include_obfuscation": False}},
            None,
            "stream_options",
            marks=requirement("create.stream-options"),
        ),
        pytest.param(
            {"include": ["web_search_call.results", "everything"]},
            "invalid_value",
            "include[1]",
            marks=requirement("create.include"),
        ),
        pytest.param(
            {"max_output_tokens": 15},
            "integer_below_min_value",
            "max_output_tokens",
            marks=requirement("create.max-output-tokens"),
        ),
        pytest.param(
            {"max_tool_calls": 0},
            "integer_below_min_value",
            "max_tool_calls",
            marks=requirement("create.max-tool-calls"),
        ),
        pytest.param(
            {"metadata": {str(number): "" for number in range(17)}},
            "object_above_max_properties",
            "metadata",
            marks=requirement("create.metadata"),
        ),
        pytest.param(
            {"moderation": {"model": "m"}},
            "unsupported_parameter",
            "moderation",
            marks=requirement("create.moderation"),
        ),
        pytest.param(
            {"prompt": {"id": "p"}},
            "unsupported_parameter",
            "prompt",
            marks=requirement("create.prompt"),
        ),
        pytest.param(
            {"prompt_cache_key": "k" * 65},
            "string_above_max_length",
            "prompt_cache_key",
            marks=requirement("create.prompt-cache-key"),
        ),
        pytest.param(
            {"prompt_cache_retention": "1h"},
            "invalid_value",
            "prompt_cache_retention",
            marks=requirement("create.prompt-cache-retention"),
        ),
        pytest.param(
            {"prompt_cache_options": {"ttl": "1h"}},
            "invalid_value",
            "prompt_cache_options.ttl",
            marks=requirement("create.prompt-cache-options"),
        ),
        pytest.param(
            {"reasoning": {"effort": "huge"}},
            "unsupported_value",
            "reasoning.effort",
            marks=requirement("create.reasoning-effort.unknown"),
        ),
        pytest.param(
            {"reasoning": {"context": "all_turns"}},
            "unsupported_value",
            "reasoning.context",
            marks=requirement("create.reasoning-context"),
        ),
        pytest.param(
            {"safety_identifier": "s" * 129},
            "string_above_max_length",
            "safety_identifier",
            marks=requirement("create.safety-identifier"),
        ),
        pytest.param(
            {"service_tier": "slow"},
            "invalid_value",
            "service_tier",
            marks=requirement("create.service-tier"),
        ),
        pytest.param(
            {"temperature": 2.1},
            "decimal_above_max_value",
            "temperature",
            marks=requirement("create.temperature"),
        ),
        pytest.param(
            {"top_p": -0.1}, "decimal_below_min_value", "top_p", marks=requirement("create.top-p")
        ),
        pytest.param(
            {"top_logprobs": 21},
            "integer_above_max_value",
            "top_logprobs",
            marks=requirement("create.top-logprobs"),
        ),
        pytest.param(
            {"presence_penalty": 2.1},
            "decimal_above_max_value",
            "presence_penalty",
            marks=requirement("create.penalties"),
        ),
        pytest.param(
            {"text": {"format": {**SCHEMA, "name": "n" * 65}}},
            "string_above_max_length",
            "text.format.name",
            marks=requirement("create.text-format"),
        ),
        pytest.param(
            {"text": {"verbosity": "loud"}},
            "invalid_value",
            "text.verbosity",
            marks=requirement("create.text-verbosity"),
        ),
        pytest.param(
            {"tools": [{}]},
            "missing_required_parameter",
            "tools[0].type",
            marks=requirement("create.tools"),
        ),
        pytest.param(
            {"tool_choice": "any"},
            "invalid_value",
            "tool_choice",
            marks=requirement("create.tool-choice"),
        ),
        pytest.param(
            {"truncation": "some"},
            "invalid_value",
            "truncation",
            marks=requirement("create.truncation"),
        ),
        pytest.param(
            {"context_management": [{"type": "compaction", "compact_threshold": 999}]},
            "integer_below_min_value",
            "context_management[0].compact_threshold",
            marks=requirement("create.context-management"),
        ),
        pytest.param({"user": 1}, "invalid_type", "user", marks=requirement("create.user")),
    ],
)
async def test_a_parameter_is_refused_and_named(
    client: httpx2.AsyncClient, fields: Json, code: str | None, param: str | None
) -> None:
    answer = await post(client, **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        pytest.param(
            {"prompt_cache_retention": "24h"},
            {"prompt_cache_retention": "24h"},
            marks=requirement("create.prompt-cache-retention"),
        ),
        pytest.param(
            {"prompt_cache_options": {"mode": "explicit", "ttl": "12h"}},
            {},
            marks=requirement("create.prompt-cache-options"),
        ),
    ],
)
async def test_a_hint_about_the_cache_is_named_as_ignored(
    client: httpx2.AsyncClient, fields: Json, shown: Json
) -> None:
    answer = await post(client, **fields)
    assert answer.headers["x-ignored-parameters"] == ", ".join(fields)
    response = answer.json()
    assert {name: response[name] for name in fields if name in response} == shown


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("image", marks=requirement("create.image")),
        pytest.param("access_programs", marks=requirement("create.access-programs")),
        pytest.param("background_options", marks=requirement("create.background-options")),
        pytest.param("stream_id", marks=requirement("create.stream-id")),
        pytest.param("nobody_knows_it", marks=requirement("create.unknown-parameters")),
    ],
)
async def test_what_has_no_effect_is_named(client: httpx2.AsyncClient, name: str) -> None:
    answer = await post(client, **{name: {}})
    assert answer.headers["x-ignored-parameters"] == name
    assert answer.json()["status"] == "completed"


@requirement("create.prewarm")
async def test_a_prewarmed_response_has_no_output(client: httpx2.AsyncClient) -> None:
    answer = await post(client, prompt_cache_options={"prewarm": True})
    assert "x-ignored-parameters" not in answer.headers
    response = answer.json()
    assert (response["status"], response["output"]) == ("completed", [])
    assert response["usage"]["total_tokens"] == 0


@requirement("create.generate")
async def test_a_warm_up_of_connections_is_refused_over_http(client: httpx2.AsyncClient) -> None:
    answer = await post(client, generate=False)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "generate")
    assert "'prompt_cache_options' with 'prewarm'" in error["message"]
    assert (await post(client, generate=True)).json()["output"]


@requirement("create.comparison-response")
async def test_a_comparison_of_caches_is_told_to_be_unavailable(client: httpx2.AsyncClient) -> None:
    options = {"comparison_response_id": "resp_1"}
    answer = await post(client, prompt_cache_options=options)
    assert answer.json()["prompt_cache_diagnostics"] == {"type": "unavailable"}
    stored = await client.get(f"/v1/responses/{answer.json()['id']}")
    assert stored.json()["prompt_cache_diagnostics"] == {"type": "unavailable"}
