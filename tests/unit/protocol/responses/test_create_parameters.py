"""Every parameter of a create request: null, the values at its bounds, and those beyond."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.protocol.documented import CREATE_PARAMETERS, EFFORTS, INCLUDE_VALUES
from gateway.protocol.responses.create_request import HINTS, PARAMETERS
from tests.fakes.cases import each
from tests.fakes.create_bodies import CALL, FUNCTION, SCHEMA, Row, parse, refusal

OWN = {
    *("presence_penalty", "frequency_penalty"),
    *("seed", "stop", "top_k", "min_p", "enable_response_messages"),
}
"""Not OpenAI's: of Open Responses, and common among servers of open models."""
WITHOUT_EFFECT = {"image", "access_programs", "background_options"}
"""OpenAI's, and read as what is unknown: accepted and listed in a header."""
TIERS = ("auto", "default", "flex", "scale", "priority", "fast", "ultrafast")


def test_every_documented_parameter_is_read() -> None:
    assert {*PARAMETERS} == {*CREATE_PARAMETERS} - WITHOUT_EFFECT | OWN


@each("name", sorted(PARAMETERS - {"model", "input"}))
def test_null_is_the_same_as_nothing(name: str) -> None:
    unset: dict[str, Any] = {name: None}
    assert parse(**unset) == parse()


ACCEPTED: list[dict[str, Any]] = [
    {"model": "m" * 256},
    *({"include": [value]} for value in INCLUDE_VALUES),
    *({"reasoning": {"effort": effort}} for effort in EFFORTS),
    *({"reasoning": {"summary": word}} for word in ("auto", "concise", "detailed")),
    *({"reasoning": {"context": word}} for word in ("auto", "current_turn")),
    *({"service_tier": tier} for tier in TIERS),
    *({"text": {"verbosity": word}} for word in ("low", "medium", "high")),
    *({"text": {"format": {**SCHEMA, "name": name}}} for name in ("a", "A-9_" * 16)),
    *({"truncation": word} for word in ("auto", "disabled")),
    *({"prompt_cache_retention": word} for word in ("in_memory", "24h")),
    *({"prompt_cache_options": {"mode": word}} for word in ("implicit", "explicit")),
    *({"temperature": number} for number in (0, 2, 0.5)),
    *({"top_p": number} for number in (0, 1, 0.5)),
    *({name: number} for name in ("presence_penalty", "frequency_penalty") for number in (-2, 2)),
    *({"min_p": number} for number in (0, 1)),
    *({"seed": number} for number in (-(2**63), 2**63 - 1)),
    *({"top_k": number} for number in (-1, 1, 2**31 - 1)),
    *({"top_logprobs": number} for number in (0, 20)),
    *({"max_output_tokens": number} for number in (16, 2**62)),
    {"max_tool_calls": 1},
    {"stop": ["s" * 256] * 4},
    {"metadata": {"k" * 64: "v" * 512}},
    {"metadata": {f"k{number}": "" for number in range(16)}},
    {"prompt_cache_key": "k" * 64},
    {"safety_identifier": "s" * 128},
    {"previous_response_id": "r" * 512},
    {"instructions": ""},
    {"input": [{**CALL, "call_id": "c" * 64}]},
    {"input": [{"role": "user", "id": "i" * 512, "content": "x"}]},
    {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "f"}},
    {"tools": [{**FUNCTION, "name": "x" * 128}]},
    {"stream": True, "stream_options": {"include_obfuscation": None}},
]


@pytest.mark.requirement("create.include")
@pytest.mark.requirement("create.max-tool-calls")
@pytest.mark.requirement("create.safety-identifier")
@pytest.mark.requirement("create.service-tier")
@pytest.mark.requirement("create.text-format")
@pytest.mark.requirement("create.prompt-cache-retention")
@each("fields", ACCEPTED)
def test_what_is_within_bounds_is_accepted(fields: dict[str, Any]) -> None:
    assert parse(**fields).ignored == tuple(name for name in HINTS if name in fields)


def _number(name: str, value: float, *, least: str = "", most: str = "") -> Row:
    kind = "integer" if isinstance(value, int) else "decimal"
    side, sign, bound = ("below minimum", ">=", least) if least else ("above maximum", "<=", most)
    code = f"{kind}_{'below_min' if least else 'above_max'}_value"
    message = (
        f"Invalid '{name}': {kind} {side} value. Expected a value {sign} {bound}, but got {value} "
        "instead."
    )
    return {name: value}, code, name, message


def _long(name: str, maximum: int) -> Row:
    message = (
        f"Invalid '{name}': string too long. Expected a string with maximum length {maximum}, but "
        f"got a string with length {maximum + 1} instead."
    )
    return {name: "x" * (maximum + 1)}, "string_above_max_length", name, message


def _word(fields: dict[str, Any], param: str, *supported: str) -> Row:
    listed = " and ".join(f"'{word}'" for word in supported)
    if len(supported) > 2:
        listed = ", ".join(f"'{word}'" for word in supported[:-1]) + f", and '{supported[-1]}'"
    return (
        fields,
        "invalid_value",
        param,
        f"Invalid value: 'bogus'. Supported values are: {listed}.",
    )


REFUSED: list[Row] = [
    _number("temperature", -0.1, least="0"),
    _number("top_p", 1.1, most="1"),
    _number("presence_penalty", 2.1, most="2"),
    _number("frequency_penalty", -2.1, least="-2"),
    _number("min_p", -0.1, least="0"),
    _number("top_logprobs", -1, least="0"),
    _number("max_output_tokens", -1, least="16"),
    _number("top_k", 2**31, most=str(2**31 - 1)),
    _long("model", 256),
    _long("previous_response_id", 512),
    _word({"service_tier": "bogus"}, "service_tier", *TIERS),
    _word(
        {"reasoning": {"context": "bogus"}},
        "reasoning.context",
        *("auto", "current_turn", "all_turns"),
    ),
    _word(
        {"reasoning": {"generate_summary": "bogus"}},
        "reasoning.generate_summary",
        *("auto", "concise", "detailed"),
    ),
    _word(
        {"prompt_cache_options": {"mode": "bogus"}},
        "prompt_cache_options.mode",
        *("implicit", "explicit"),
    ),
    _word({"prompt_cache_options": {"ttl": "bogus"}}, "prompt_cache_options.ttl", "30m", "12h"),
    _word(
        {"input": [{"role": "user", "content": [{"type": "input_image", "detail": "bogus"}]}]},
        "input[0].content[0].detail",
        *("low", "high", "auto", "original"),
    ),
    (
        {"context_management": [{"type": "compaction", "compact_threshold": 999}]},
        "integer_below_min_value",
        "context_management[0].compact_threshold",
        "Invalid 'context_management[0].compact_threshold': integer below minimum value. Expected "
        "a value >= 1000, but got 999 instead.",
    ),
]


@pytest.mark.requirement("create.prompt-cache-options")
@pytest.mark.requirement("create.text-verbosity")
@pytest.mark.requirement("create.temperature")
@pytest.mark.requirement("create.top-p")
@pytest.mark.requirement("create.penalties")
@pytest.mark.requirement("create.service-tier")
@pytest.mark.requirement("create.context-management")
@each(("fields", "code", "param", "message"), REFUSED)
def test_what_is_beyond_a_bound_is_refused(
    fields: dict[str, Any], code: str | None, param: str | None, message: str
) -> None:
    assert refusal(**fields) == (code, param, message)
