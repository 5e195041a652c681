"""Bodies that real clients send, and what becomes of them."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from gateway.protocol.base import IGNORED_NAMES_MAX
from gateway.protocol.hosted_tools import FAMILIES
from gateway.protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    ItemReference,
    LocalShellCallOutput,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
)
from gateway.protocol.parameters import Effort
from gateway.protocol.responses.create_request import (
    ENCRYPTED_REASONING,
    HINTS,
    CreateResponse,
    parse_create,
)
from gateway.protocol.responses.response_object import echo
from gateway.protocol.tool_types import (
    ApplyPatchTool,
    CustomTool,
    FunctionTool,
    HostedTool,
    LocalShellTool,
    NamespaceTool,
    PlainFormat,
    ShellTool,
)
from tests.fakes.cases import each
from tests.fakes.client_requests import CLIENTS, SECOND_TURN
from tests.fakes.create_bodies import CALL, FUNCTION, LIMITS, TOOLS, parse


@each("fields", CLIENTS.values())
def test_what_real_clients_send_is_accepted(fields: dict[str, Any]) -> None:
    assert parse(**fields).model == "gpt-oss-20b"
    assert parse(served=frozenset(FAMILIES.values()), **fields).model == "gpt-oss-20b"


def test_a_string_is_one_user_message() -> None:
    assert parse(input="hi").input == (Message(role="user", content=(InputText(text="hi"),)),)


def test_content_is_always_parts() -> None:
    request = parse(
        input=[
            {"role": "system", "content": "a"},
            {"role": "assistant", "content": "b", "phase": "commentary"},
            {"role": "assistant", "content": [{"type": "input_text", "text": "c"}]},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "d"}]},
            {"role": "user", "content": [{"type": "input_image"}, {"type": "input_file"}]},
        ]
    )
    assert request.input == (
        Message(role="system", content=(InputText(text="a"),)),
        Message(role="assistant", content=(OutputText(text="b"),), phase="commentary"),
        Message(role="assistant", content=(OutputText(text="c"),)),
        Message(role="assistant", content=(Refusal(refusal="d"),)),
        Message(role="user", content=(InputImage(), InputFile())),
    )


@pytest.mark.requirement("items.input-message")
def test_text_is_kept_under_the_name_that_its_role_has() -> None:
    request = parse(
        input=[
            {"role": "user", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
            {"role": "developer", "content": [{"type": "refusal", "refusal": "b"}]},
            {"role": "user", "content": "c", "phase": "commentary"},
        ]
    )
    assert request.input == (
        Message(role="user", content=(InputText(text="a"),)),
        Message(role="developer", content=(InputText(text="b"),)),
        Message(role="user", content=(InputText(text="c"),)),
    )


def test_an_image_without_a_detail_has_openais_default() -> None:
    images = [{"type": "input_image", "image_url": "u"}, {"type": "input_image", "detail": None}]
    (message,) = parse(input=[{"role": "user", "content": images}]).input
    assert isinstance(message, Message)
    assert [part.detail for part in message.content if isinstance(part, InputImage)] == ["auto"] * 2


def test_items_of_every_kind_are_told_apart() -> None:
    request = parse(input=[*SECOND_TURN, {"id": "rs_1"}])
    assert [type(item) for item in request.input] == [
        Message,
        Reasoning,
        Message,
        FunctionCall,
        FunctionCallOutput,
        Message,
        ItemReference,
    ]


def test_reasoning_keeps_its_text_and_what_was_encrypted() -> None:
    (item,) = parse(
        input=[
            {
                "type": "reasoning",
                "id": "rs_1",
                "content": [{"type": "reasoning_text", "text": "Hm."}],
                "encrypted_content": "x",
            }
        ]
    ).input
    assert item == Reasoning(id="rs_1", content=(ReasoningText(text="Hm."),), encrypted_content="x")


@pytest.mark.requirement("items.output-of-a-call")
def test_a_tool_s_output_is_a_text_or_parts() -> None:
    outputs = ["ok", [{"type": "input_text", "text": "x"}], ""]
    items = parse(
        input=[
            {"type": "function_call_output", "call_id": "c", "output": output} for output in outputs
        ]
    ).input
    assert [getattr(item, "output", None) for item in items] == ["ok", (InputText(text="x"),), ""]


def test_nul_survives() -> None:
    request = parse_create(b'{"model": "m", "input": "a\\u0000b"}', limits=LIMITS)
    assert request.input == (Message(role="user", content=(InputText(text="a\0b"),)),)


def test_absent_parameters_have_openais_defaults() -> None:
    request = parse()
    assert (request.store, request.stream, request.background) == (True, False, False)
    assert (request.temperature, request.top_p) == (1.0, 1.0)
    assert (request.presence_penalty, request.frequency_penalty) == (0.0, 0.0)
    assert (request.tool_choice, request.truncation) == ("auto", "disabled")
    assert request.parallel_tool_calls
    assert request.metadata == {}
    assert request.max_output_tokens is None
    assert request.previous_response_id is None
    assert request.ignored == ()


@pytest.mark.requirement("create.input.absent")
def test_input_may_be_missing_when_a_response_is_continued() -> None:
    assert parse(input=..., previous_response_id="resp_1").input == ()
    assert parse(input="", previous_response_id="resp_1").input == ()
    assert parse(input=[], previous_response_id="resp_1").input == ()


@each(
    ("asked", "effective"),
    [
        ("none", "low"),
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "medium"),
        ("high", "high"),
        ("xhigh", "high"),
        ("max", "high"),
        (None, "medium"),
    ],
)
def test_every_effort_becomes_one_that_gpt_oss_has(asked: str | None, effective: str) -> None:
    assert echo(parse(reasoning={"effort": asked}))["reasoning"]["effort"] == effective


@pytest.mark.parametrize("default", get_args(Effort))
def test_the_default_effort_is_the_caller_s(default: Effort) -> None:
    assert echo(parse(), default_effort=default)["reasoning"]["effort"] == default
    asked = parse(reasoning={"effort": "max"})
    assert echo(asked, default_effort=default)["reasoning"]["effort"] == "high"


def test_tools_are_hidden_from_the_model_when_it_must_not_call_them() -> None:
    assert parse(tools=[FUNCTION]).offered_tools == (FunctionTool(name="f", parameters={}),)
    hidden = parse(tools=[FUNCTION], tool_choice="none")
    assert hidden.offered_tools == ()
    assert len(hidden.tools) == 1


def test_deltas_are_padded_unless_the_client_says_otherwise() -> None:
    assert parse(stream=True).obfuscated
    assert parse(stream=True, stream_options={}).obfuscated
    assert not parse(stream=True, stream_options={"include_obfuscation": False}).obfuscated


def test_unknown_parameters_are_reported_if_their_names_fit_into_a_header() -> None:
    names = ["reasoning_effort", "ignored", "x\r\nset-cookie: a", "é", "y" * 65, ""]
    body = {"model": "m", "input": "hi", **dict.fromkeys(names, 1)}
    request = parse_create(json.dumps(body).encode(), limits=LIMITS)
    assert request.ignored == ("reasoning_effort", "ignored")


def test_only_so_many_unknown_parameters_are_reported() -> None:
    unknown: dict[str, Any] = {f"key{number}": 1 for number in range(1_000)}
    assert len(parse(**unknown).ignored) == IGNORED_NAMES_MAX


@pytest.mark.parametrize("strict", [False, True])
def test_hints_about_the_cache_are_named_as_ignored(strict: bool) -> None:
    hints: dict[str, Any] = {
        "prompt_cache_retention": "24h",
        "prompt_cache_options": {"ttl": "12h"},
    }
    assert parse(strict=strict, image={}, **hints).ignored == ("image", *HINTS)
    nulls: dict[str, Any] = dict.fromkeys(hints)
    assert parse(**nulls).ignored == ()


def test_function_names_may_have_dots_and_dashes() -> None:
    name = "mcp.server-1_" + "x" * 115
    assert parse(tools=[{"type": "function", "name": name}]).tools == (FunctionTool(name=name),)


@pytest.mark.requirement("create.tools")
def test_tools_of_every_type_are_told_apart() -> None:
    assert [type(tool) for tool in parse(tools=TOOLS).tools] == [
        FunctionTool,
        FunctionTool,
        CustomTool,
        CustomTool,
        NamespaceTool,
        LocalShellTool,
        ShellTool,
        ApplyPatchTool,
    ]


def test_a_typed_tool_is_one_too() -> None:
    tools = (
        CustomTool(name="c", format=PlainFormat()),
        NamespaceTool(name="n", tools=(FunctionTool(name="f"),)),
        HostedTool(type="mcp"),
    )
    assert CreateResponse(model="m", tools=tools).tools == tools


@pytest.mark.requirement("control.hosted-tools")
def test_hosted_tools_are_listed_as_dropped_in_their_order() -> None:
    hosted: list[dict[str, Any]] = [
        {"type": "web_search", "filters": None},
        {"type": "shell", "environment": {"type": "container_reference", "container_id": "c"}},
        {"type": "mcp", "server_label": "s", "require_approval": "never"},
        {"type": "web_search"},
    ]
    request = parse(tools=[hosted[0], FUNCTION, *hosted[1:]])
    assert request.dropped_tools == ("web_search", "shell", "mcp", "web_search")
    assert parse(tools=TOOLS).dropped_tools == ()


def test_a_shell_of_the_client_s_own_is_served() -> None:
    shell = {"type": "shell", "environment": {"type": "local"}}
    assert parse(tools=[shell, FUNCTION], tool_choice={"type": "shell"}).dropped_tools == ()


def test_a_call_keeps_its_namespace() -> None:
    (call,) = parse(input=[{**CALL, "namespace": "ns"}]).input
    assert isinstance(call, FunctionCall)
    assert call.namespace == "ns"


@pytest.mark.parametrize(
    ("raw", "ids"),
    [
        ({"id": "call_1"}, (None, "call_1")),
        ({"call_id": "call_1"}, (None, "call_1")),
        ({"id": "call_1", "call_id": "call_1"}, (None, "call_1")),
        ({"id": "lsho_1", "call_id": "call_1"}, ("lsho_1", "call_1")),
    ],
)
def test_the_output_of_a_local_shell_names_its_call_by_either_id(
    raw: dict[str, Any], ids: tuple[str | None, str]
) -> None:
    (output,) = parse(input=[{"type": "local_shell_call_output", "output": "", **raw}]).input
    assert isinstance(output, LocalShellCallOutput)
    assert (output.id, output.call_id) == ids


@pytest.mark.requirement("create.top-logprobs")
def test_probabilities_are_wanted_when_they_are_included_or_counted() -> None:
    included = parse(include=["message.output_text.logprobs"])
    assert (included.wants_logprobs, included.top_logprobs) == (True, 0)
    counted = parse(top_logprobs=20)
    assert (counted.wants_logprobs, counted.top_logprobs) == (True, 20)
    assert not parse(top_logprobs=0).wants_logprobs


def test_sealed_reasoning_is_wanted_when_it_is_included() -> None:
    assert ENCRYPTED_REASONING in parse(include=["reasoning.encrypted_content"]).include
    assert ENCRYPTED_REASONING not in parse().include


def test_servers_of_open_models_have_parameters_of_their_own() -> None:
    request = parse(seed=-(2**63), stop="x", top_k=1, min_p=1, reasoning={"max_tokens": 1})
    assert (request.seed, request.stop, request.top_k, request.min_p) == (-(2**63), ("x",), 1, 1.0)
    assert request.reasoning.max_tokens == 1
    assert request.ignored == ()
    off = parse(top_k=-1, stop=[], seed=None)
    assert (off.top_k, off.stop, off.seed, off.min_p) == (None, (), None, None)


@pytest.mark.parametrize("fields", [{}, {"input": []}, {"input": ""}, {"input": None}])
def test_a_conversation_may_stand_for_the_input(fields: dict[str, Any]) -> None:
    asked = parse(**{"input": ..., "conversation": "conv_1", **fields})
    assert (asked.input, asked.conversation and asked.conversation.id) == ((), "conv_1")


def test_tools_that_a_client_runs_are_accepted_when_strict() -> None:
    assert parse(strict=True, tools=[FUNCTION]).dropped_tools == ()


@pytest.mark.parametrize(
    ("asked", "with_input_ids", "with_output_ids"),
    [
        ({"enable_response_messages": True}, False, False),
        ({"include": ["input_messages.token_ids"]}, True, False),
        ({"include": ["output_messages.token_ids"]}, False, True),
    ],
)
def test_harmony_messages_come_to_who_asks_for_them_or_their_ids(
    asked: dict[str, Any], with_input_ids: bool, with_output_ids: bool
) -> None:
    request = parse(**asked)
    assert request.wants_messages
    assert (request.wants_input_ids, request.wants_output_ids) == (with_input_ids, with_output_ids)
    assert not parse().wants_messages
    assert not parse(include=["message.output_text.logprobs"]).wants_messages


@pytest.mark.parametrize(
    ("fields", "behind", "phase"),
    [
        ({}, CALL, "commentary"),
        ({"phase": "final_answer"}, CALL, "final_answer"),
        ({}, {"role": "user", "content": "b"}, None),
    ],
)
def test_a_message_right_before_a_call_is_a_preamble(
    fields: dict[str, Any], behind: dict[str, Any], phase: str | None
) -> None:
    said = {"role": "assistant", "content": "a", **fields}
    request = parse(input=[said, behind])
    assert isinstance(request.input[0], Message)
    assert request.input[0].phase == phase


@pytest.mark.parametrize(
    "history", [{"previous_response_id": "resp_1"}, {"conversation": "conv_1"}]
)
def test_what_may_be_a_copy_gets_no_phase(history: dict[str, Any]) -> None:
    request = parse(input=[{"role": "assistant", "content": "a"}, CALL], **history)
    assert isinstance(request.input[0], Message)
    assert request.input[0].phase is None
