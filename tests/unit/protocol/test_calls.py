"""Call items and what the model writes for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import pytest

from gateway.constraints.output_rules import ToolRule
from gateway.generation import SegmentKind
from gateway.protocol.call_items import (
    ARGUMENTS_DEPTH_MAX,
    Call,
    call_fields,
    call_of,
    hosted_author,
    hosted_call,
    hosted_result,
    output_text,
    unread,
)
from gateway.protocol.context_item import HostedKind
from gateway.protocol.documented import literal_values
from gateway.protocol.items import AnyHostedItem, CallItem, ImageGenerationCall, OutputItem
from tests.fakes.call_items import CALLS, OUTPUTS
from tests.fakes.cases import each
from tests.fakes.create_bodies import parse, refusal
from tests.fakes.hosted_items import HOSTED

if TYPE_CHECKING:
    from gateway.protocol.items import InputItem

FUNCTION_RULE = ToolRule("ns.f", SegmentKind.FUNCTION_CALL, "f", namespace="ns")
CUSTOM_RULE = ToolRule("c", SegmentKind.CUSTOM_CALL, "c")
LOCAL_SHELL_RULE = ToolRule("local_shell", SegmentKind.LOCAL_SHELL_CALL, "local_shell")
SHELL_RULE = ToolRule("shell", SegmentKind.SHELL_CALL, "shell")
PATCH_RULE = ToolRule("apply_patch", SegmentKind.APPLY_PATCH_CALL, "apply_patch")


def item(raw: dict[str, Any]) -> InputItem:
    (parsed,) = parse(input=[{"call_id": "call_1", **raw}]).input
    return parsed


@each(("raw", "name", "arguments"), CALLS)
def test_a_call_is_told_as_one_of_a_function(
    raw: dict[str, Any], name: str, arguments: str
) -> None:
    call = item(raw)
    assert isinstance(call, CallItem)
    assert call_of(call) == Call(name, arguments)


@pytest.mark.parametrize(("raw", "text"), OUTPUTS)
def test_an_output_is_shown_as_text(raw: dict[str, Any], text: str) -> None:
    output = item(raw)
    assert isinstance(output, OutputItem)
    assert output_text(output) == text


def test_the_cases_are_of_every_kind() -> None:
    assert {type(item(raw)) for raw, *_ in CALLS} == set(get_args(CallItem))
    assert {type(item(raw)) for raw, _ in OUTPUTS} == set(get_args(OutputItem))


FIELDS: list[tuple[ToolRule | None, str, dict[str, Any]]] = [
    (None, "{", {"name": "x", "arguments": "{"}),
    (FUNCTION_RULE, "{}", {"name": "f", "namespace": "ns", "arguments": "{}"}),
    (CUSTOM_RULE, '{"input": "a\\n"}', {"name": "c", "input": "a\n"}),
    (CUSTOM_RULE, "", {"name": "c", "input": ""}),
    (CUSTOM_RULE, "{}", {"name": "c", "input": ""}),
    (CUSTOM_RULE, '{"input": 1}', {"name": "c", "input": '{"input": 1}'}),
    (CUSTOM_RULE, '"a"', {"name": "c", "input": '"a"'}),
    (CUSTOM_RULE, '{"input": "a', {"name": "c", "input": '{"input": "a'}),
    (
        LOCAL_SHELL_RULE,
        '{"command": ["ls"], "timeout_ms": 5.0}',
        {"action": {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": 5}},
    ),
    (
        SHELL_RULE,
        '{"commands": ["ls"], "timeout_ms": null}',
        {"action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}},
    ),
    (
        PATCH_RULE,
        '{"operation": {"type": "create_file", "path": "p", "diff": ""}}',
        {"operation": {"type": "create_file", "path": "p", "diff": ""}},
    ),
    (
        PATCH_RULE,
        '{"operation": {"type": "delete_file", "path": "p", "diff": "x"}}',
        {"operation": {"type": "delete_file", "path": "p"}},
    ),
]


@each(("rule", "arguments", "fields"), FIELDS)
def test_what_the_model_writes_becomes_the_fields_of_an_item(
    rule: ToolRule | None, arguments: str, fields: dict[str, Any]
) -> None:
    assert call_fields(rule, "x", arguments) == fields


@each(
    ("rule", "arguments"),
    [
        (LOCAL_SHELL_RULE, "ls"),
        (LOCAL_SHELL_RULE, '{"command": []}'),
        (LOCAL_SHELL_RULE, '{"command": "ls"}'),
        (LOCAL_SHELL_RULE, '{"command": ["ls"], "timeout_ms": 1e300}'),
        (SHELL_RULE, '{"commands": []}'),
        (SHELL_RULE, "[]"),
        (PATCH_RULE, "{}"),
        (PATCH_RULE, '{"operation": {"type": "update_file", "path": "p"}}'),
        (PATCH_RULE, '{"operation": {"type": "move_file", "path": "p", "diff": ""}}'),
    ],
)
def test_arguments_without_the_shape_of_their_kind_are_no_item(
    rule: ToolRule, arguments: str
) -> None:
    with pytest.raises(ValueError, match=r"command|arguments"):
        call_fields(rule, rule.name, arguments)


@each(("raw", "author", "shown"), HOSTED)
def test_a_hosted_tool_is_shown_by_its_name_with_what_it_was_asked_and_returned(
    raw: dict[str, Any], author: str, shown: tuple[str | None, str | None]
) -> None:
    (item,) = parse(input=[raw]).input
    assert isinstance(item, AnyHostedItem)
    assert hosted_author(item.type) == author
    assert (hosted_call(item), hosted_result(item)) == shown


def test_there_is_an_item_of_every_hosted_tool() -> None:
    assert {raw["type"] for raw, _, _ in HOSTED} == {*literal_values(HostedKind)}


def test_what_a_hosted_tool_returned_is_bounded_like_any_text() -> None:
    call = {"type": "mcp_call", "server_label": "s", "name": "t", "arguments": "{}"}
    code, param, _ = refusal(input=[{**call, "output": "x" * 5_001}])
    assert (code, param) == ("string_above_max_length", "input[0]")


def test_images_that_other_tools_made_or_took_are_not_shown() -> None:
    made = ImageGenerationCall(id="ig_1", status="completed", result="aGk=")
    assert unread([made], sees=True) == {"image_generation_call": 1}


def test_arguments_of_a_search_for_tools_are_an_object() -> None:
    search = ToolRule("tool_search", SegmentKind.TOOL_SEARCH_CALL, "tool_search")
    with pytest.raises(ValueError, match="not a JSON object"):
        call_fields(search, "tool_search", "[]")


def test_arguments_of_a_search_for_tools_can_be_sent_back() -> None:
    search = ToolRule("tool_search", SegmentKind.TOOL_SEARCH_CALL, "tool_search")
    inner = ARGUMENTS_DEPTH_MAX - 1
    deep = "[" * inner + "]" * inner
    fields = call_fields(search, "tool_search", f'{{"query":{deep}}}')
    assert item({"type": "tool_search_call", **fields}).type == "tool_search_call"
    with pytest.raises(ValueError, match="more than 125 levels"):
        call_fields(search, "tool_search", f'{{"query":[{deep}]}}')
