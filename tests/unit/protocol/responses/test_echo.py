from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import Response

from gateway.protocol.parameters import ToolChoice
from gateway.protocol.responses.response_object import ECHO_FIELDS, echo
from tests.fakes.create_bodies import CUSTOM, FUNCTION, NAMESPACE, SCHEMA, SHELLS, TOOLS, parse

Json = dict[str, Any]

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
    "tools": [{**FUNCTION, "description": "d", "strict": False}, {"type": "function", "name": "g"}],
}


DEMANDING: dict[str, Any] = {
    "tools": [*TOOLS, {"type": "web_search"}],
    "tool_choice": {
        "type": "allowed_tools",
        "tools": [{"type": "function", "name": "ns.m"}, {"type": "web_search"}],
    },
    "text": {"format": {**SCHEMA, "strict": True}},
    "reasoning": {"max_tokens": 100},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 3,
    "seed": 7,
    "top_k": 4,
    "min_p": 0.1,
}


@pytest.mark.parametrize("fields", [{}, FULL, DEMANDING], ids=["bare", "full", "demanding"])
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
                "strict": False,
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


def test_how_long_a_prompt_is_to_be_cached_is_repeated_to_who_says_it() -> None:
    assert "prompt_cache_retention" not in echo(parse())
    fields = echo(parse(prompt_cache_retention="24h", prompt_cache_options={"ttl": "12h"}))
    assert fields["prompt_cache_retention"] == "24h"
    assert "prompt_cache_options" not in fields
    Response.model_validate({**DYNAMIC, **fields}, strict=True)


def test_who_compares_caches_is_told_that_nobody_can() -> None:
    assert "prompt_cache_diagnostics" not in echo(parse(prompt_cache_options={"ttl": "12h"}))
    fields = echo(parse(prompt_cache_options={"comparison_response_id": "resp_1"}))
    assert fields["prompt_cache_diagnostics"] == {"type": "unavailable"}
    Response.model_validate({**DYNAMIC, **fields}, strict=True)


@pytest.mark.requirement("create.instructions")
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


@pytest.mark.requirement("choice.allowed-tools-mode")
def test_a_list_of_allowed_tools_always_says_its_mode() -> None:
    assert echo(parse(**DEMANDING))["tool_choice"] == {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "ns.m"}],
    }


def test_a_shell_is_repeated_with_its_skills() -> None:
    skill = {"name": "s", "description": "d", "path": "/s"}
    shell = {"type": "shell", "environment": {"type": "local", "skills": [skill]}}
    assert echo(parse(tools=[shell]))["tools"] == [shell]


@pytest.mark.parametrize("more", [{}, {"name": "zz", "server_label": "s", "unknown": 1}])
@pytest.mark.parametrize("kind", ["local_shell", "web_search", "web_search_2025_08_26"])
def test_a_choice_that_openai_s_types_lack_is_a_list_of_one(kind: str, more: Json) -> None:
    request = parse(
        tools=[*SHELLS, {"type": "web_search"}],
        tool_choice={"type": kind, **more},
        served=frozenset({"web_search"}),
    )
    fields = echo(request)
    assert fields["tool_choice"] == {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": kind}],
    }
    Response.model_validate({**DYNAMIC, **fields}, strict=True)


@pytest.mark.parametrize(
    ("choice", "repeated"),
    [
        ({"type": "web_search_preview", "name": "zz"}, {"type": "web_search_preview"}),
        ({"type": "shell", "namespace": "n"}, {"type": "shell"}),
        (
            {"type": "allowed_tools", "tools": [{"type": "web_search", "name": "zz"}]},
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]},
        ),
        (
            {"type": "custom", "name": CUSTOM["name"], "server_label": "s"},
            {"type": "custom", "name": CUSTOM["name"]},
        ),
    ],
)
def test_a_choice_is_repeated_without_what_means_nothing(choice: Json, repeated: Json) -> None:
    request = parse(
        tools=[CUSTOM, *SHELLS, {"type": "web_search"}],
        tool_choice=choice,
        served=frozenset({"web_search"}),
    )
    assert echo(request)["tool_choice"] == repeated


def test_tools_are_repeated_but_for_those_that_are_dropped() -> None:
    plain: dict[str, Any] = {
        "type": "function",
        "description": None,
        "parameters": {},
        "strict": None,
    }
    fields = echo(parse(tools=[CUSTOM, {"type": "mcp"}, NAMESPACE, *SHELLS]))
    assert fields["tools"] == [
        CUSTOM,
        {**NAMESPACE, "tools": [{**plain, "name": "m"}, {**CUSTOM, "name": "n"}]},
        *SHELLS,
    ]


@pytest.mark.requirement("response.text")
@pytest.mark.parametrize(
    "form",
    [{"type": "text"}, {"type": "json_object"}, {**SCHEMA, "description": "d", "strict": True}],
)
def test_the_format_is_repeated_whole(form: dict[str, Any]) -> None:
    assert echo(parse(text={"format": form}))["text"] == {"format": form}


def test_a_schema_s_format_shows_its_defaults() -> None:
    shown = echo(parse(text={"format": SCHEMA}))["text"]["format"]
    assert shown == {**SCHEMA, "description": None, "strict": False}


def test_extensions_are_shown_to_whoever_used_them() -> None:
    used: dict[str, Any] = {"seed": 7, "stop": ["a", "b"], "top_k": 4, "min_p": 0.1}
    fields = echo(parse(**used, reasoning={"max_tokens": 100}))
    assert {name: fields[name] for name in used} == used
    assert fields["reasoning"]["max_tokens"] == 100
    assert not used.keys() & echo(parse(stop=[], top_k=-1)).keys()


def test_the_tier_that_was_given_is_shown() -> None:
    assert echo(parse(service_tier="priority"))["service_tier"] == "default"
    assert echo(parse(), service_tier="flex")["service_tier"] == "flex"


def test_summaries_that_are_not_made_are_not_promised() -> None:
    request = parse(reasoning={"summary": "auto"})
    assert echo(request)["reasoning"]["summary"] == "auto"
    assert echo(request, summaries=False)["reasoning"]["summary"] is None


@pytest.mark.parametrize("asked", ["conv_1", {"id": "conv_1"}])
def test_a_conversation_is_shown_to_those_who_used_one(asked: Any) -> None:
    assert echo(parse(conversation=asked))["conversation"] == {"id": "conv_1"}
    assert "conversation" not in echo(parse())
