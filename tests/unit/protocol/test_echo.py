from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import Response

from gateway.protocol.echo import echo
from gateway.protocol.parameters import ToolChoice
from gateway.protocol.responses import ECHO_FIELDS
from tests.fakes.create_bodies import FUNCTION, parse

DYNAMIC: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1.0,
    "completed_at": None,
    "status": "in_progress",
    "output": [],
    "usage": None,
    "error": None,
    "incomplete_details": None,
}
NEVER_NULL = (
    *("metadata", "model", "parallel_tool_calls", "presence_penalty", "frequency_penalty"),
    *("reasoning", "service_tier", "store", "background", "temperature", "text", "tool_choice"),
    *("tools", "top_logprobs", "top_p", "truncation"),
)
FULL: dict[str, Any] = {
    "instructions": "Be brief.",
    "previous_response_id": "resp_0",
    "store": False,
    "metadata": {"a": "b"},
    "max_output_tokens": 16,
    "max_tool_calls": 2,
    "parallel_tool_calls": False,
    "presence_penalty": 0.5,
    "frequency_penalty": -1,
    "temperature": 0,
    "top_p": 0.5,
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "user": "u",
    "service_tier": "flex",
    "truncation": "auto",
    "text": {"format": {"type": "text"}, "verbosity": "high"},
    "reasoning": {"effort": "minimal", "summary": "detailed"},
    "tool_choice": "none",
    "tools": [{**FUNCTION, "description": "d", "strict": True}, {"type": "function", "name": "g"}],
}


@pytest.mark.parametrize("fields", [{}, FULL], ids=["bare", "full"])
def test_it_completes_a_response_that_openais_type_accepts(fields: dict[str, Any]) -> None:
    body = {**DYNAMIC, **echo(parse(**fields))}
    Response.model_validate(body, strict=True)
    assert json.loads(json.dumps(body)) == body


def test_it_holds_every_field_that_follows_from_the_request() -> None:
    assert set(echo(parse())) == {*ECHO_FIELDS, "background"}


def test_what_must_not_be_null_is_not() -> None:
    fields = echo(parse())
    assert [name for name in NEVER_NULL if fields[name] is None] == []


def test_a_bare_request_shows_the_values_in_effect() -> None:
    fields = echo(parse())
    assert fields["reasoning"] == {"effort": "medium", "summary": None}
    assert fields["text"] == {"format": {"type": "text"}}
    assert fields["tools"] == []
    assert fields["tool_choice"] == "auto"
    assert fields["metadata"] == {}
    assert fields["service_tier"] == "default"
    assert fields["truncation"] == "disabled"
    assert (fields["temperature"], fields["top_p"], fields["top_logprobs"]) == (1.0, 1.0, 0)
    assert fields["instructions"] is None


def test_a_full_request_is_repeated() -> None:
    fields = echo(parse(**FULL))
    shown = {name: fields[name] for name in FULL}
    assert shown == {
        **FULL,
        "service_tier": "default",
        "reasoning": {"effort": "low", "summary": "detailed"},
        "tools": [
            {
                "type": "function",
                "name": "f",
                "description": "d",
                "parameters": {},
                "strict": True,
            },
            {
                "type": "function",
                "name": "g",
                "description": None,
                "parameters": None,
                "strict": None,
            },
        ],
    }


def test_an_empty_instruction_stays_empty() -> None:
    assert echo(parse(instructions=""))["instructions"] == ""


def test_the_older_name_of_the_summary_counts() -> None:
    fields = echo(parse(reasoning={"generate_summary": "concise"}))
    assert fields["reasoning"]["summary"] == "concise"


def test_of_context_and_mode_the_one_in_effect_is_shown_to_whoever_asked() -> None:
    fields = echo(parse(reasoning={"context": "auto", "mode": "pro"}))
    assert fields["reasoning"]["context"] == "current_turn"
    assert fields["reasoning"]["mode"] == "standard"


def test_the_model_that_answers_and_the_default_effort_are_the_server_s() -> None:
    fields = echo(parse(), model="gpt-oss-120b", default_effort="high")
    assert fields["model"] == "gpt-oss-120b"
    assert fields["reasoning"]["effort"] == "high"


def test_a_choice_that_is_an_object_is_repeated_as_one() -> None:
    request = parse().model_copy(update={"tool_choice": ToolChoice(type="function", name="f")})
    assert echo(request)["tool_choice"] == {"type": "function", "name": "f"}
