"""Laws of calls: what an item is told as is read back as the item."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator
from openai.types.responses import (
    ResponseApplyPatchToolCall,
    ResponseCustomToolCall,
    ResponseFunctionShellToolCall,
    ResponseFunctionToolCall,
)
from openai.types.responses.response_output_item import LocalShellCall as OpenAILocalShellCall

from gateway.generation import SegmentKind
from gateway.protocol.call_items import call_fields, call_of
from gateway.protocol.items import (
    ApplyPatchCall,
    CustomToolCall,
    FileOperation,
    FunctionCall,
    LocalShellAction,
    LocalShellCall,
    ShellAction,
    ShellCall,
)
from gateway.protocol.responses.response_object import echo
from gateway.protocol.responses.response_rules import rules_of
from tests.fakes.create_bodies import NAMESPACE, TOOLS, parse

if TYPE_CHECKING:
    from pydantic import BaseModel

    from gateway.constraints.output_rules import ToolRule
    from gateway.protocol.items import CallItem

RULES = rules_of(echo(parse(tools=TOOLS))).tools
MODELS: dict[SegmentKind, type[BaseModel]] = {
    SegmentKind.FUNCTION_CALL: ResponseFunctionToolCall,
    SegmentKind.CUSTOM_CALL: ResponseCustomToolCall,
    SegmentKind.LOCAL_SHELL_CALL: OpenAILocalShellCall,
    SegmentKind.SHELL_CALL: ResponseFunctionShellToolCall,
    SegmentKind.APPLY_PATCH_CALL: ResponseApplyPatchToolCall,
}

BOUND = [RULES[name] for name in ("local_shell", "shell", "apply_patch")]

texts = st.text(max_size=20)
words = st.lists(texts, min_size=1, max_size=3).map(tuple)
counts = st.none() | st.integers(0, 2**31 - 1)
places = st.sampled_from([(None, "f"), (None, "c"), (NAMESPACE["name"], "m")])
functions = st.builds(
    lambda place, arguments: FunctionCall(
        call_id="c", namespace=place[0], name=place[1], arguments=arguments
    ),
    st.sampled_from([(None, "f"), (None, "s"), ("ns", "m")]),
    texts,
)
customs = st.builds(
    lambda place, text: CustomToolCall(call_id="c", namespace=place[0], name=place[1], input=text),
    st.sampled_from([(None, "c"), (None, "g"), ("ns", "n")]),
    texts | texts.map(lambda text: orjson.dumps({"input": text}).decode()),
)
local_shells = st.builds(
    LocalShellCall,
    call_id=st.just("c"),
    action=st.builds(
        LocalShellAction,
        command=words,
        env=st.dictionaries(texts, texts, max_size=2),
        timeout_ms=counts,
        user=st.none() | texts,
        working_directory=st.none() | texts,
    ),
)
shells = st.builds(
    ShellCall,
    call_id=st.just("c"),
    action=st.builds(ShellAction, commands=words, timeout_ms=counts, max_output_length=counts),
)
patches = st.builds(
    ApplyPatchCall,
    call_id=st.just("c"),
    operation=st.builds(
        FileOperation, type=st.sampled_from(["create_file", "update_file"]), path=texts, diff=texts
    )
    | st.builds(FileOperation, type=st.just("delete_file"), path=texts),
)
calls = functions | customs | local_shells | shells | patches
near_counts = counts | st.sampled_from([1.0, 1e300, 2.5, -1, True])
near_values: dict[str, st.SearchStrategy[Any]] = {
    "command": words | texts,
    "commands": words | texts,
    "env": st.dictionaries(texts, texts, max_size=2) | st.none(),
    "timeout_ms": near_counts,
    "max_output_length": near_counts,
    "user": st.none() | texts,
    "working_directory": st.none() | texts,
    "operation": st.fixed_dictionaries(
        {"type": st.sampled_from(["create_file", "delete_file", "move_file"]), "path": texts},
        optional={"diff": st.none() | texts},
    ),
}
bound_rules = st.sampled_from(BOUND)


@st.composite
def near_calls(draw: st.DrawFn) -> tuple[ToolRule, dict[str, Any]]:
    """A tool whose arguments are checked, and arguments that may or may not be right."""
    rule = draw(bound_rules)
    schema = rule.schema or {}
    required = {name: near_values[name] for name in schema["required"]}
    optional = {name: near_values[name] for name in schema["properties"].keys() - required.keys()}
    return rule, draw(st.fixed_dictionaries(required, optional=optional))


rules = st.sampled_from(list(RULES.values()))


def shown(rule: ToolRule, fields: dict[str, Any]) -> BaseModel:
    """The item as OpenAI's SDK reads it."""
    frame = {"id": "x", "type": rule.kind.value, "call_id": "c", "status": "completed"}
    return MODELS[rule.kind].model_validate_json(orjson.dumps({**frame, **fields}), strict=True)


@pytest.mark.slow
@given(item=calls)
def test_what_a_call_is_told_as_is_read_back_as_the_call(item: CallItem) -> None:
    call = call_of(item)
    rule = RULES[call.name]
    assert rule.kind.value == item.type
    read = type(item).model_validate({"call_id": "c", **call_fields(rule, *_parts(call))})
    assert read == item


def _parts(call: Any) -> tuple[str, str]:
    return call.name, call.arguments


@pytest.mark.slow
@given(
    rule=rules, arguments=texts | st.recursive(texts, st.lists).map(orjson.dumps).map(bytes.decode)
)
def test_any_arguments_are_an_item_or_a_value_error(rule: ToolRule, arguments: str) -> None:
    with suppress(ValueError):
        shown(rule, call_fields(rule, rule.name, arguments))


@pytest.mark.slow
@given(call=near_calls())
def test_what_the_schema_of_a_tool_allows_is_an_item(call: tuple[ToolRule, dict[str, Any]]) -> None:
    rule, arguments = call
    if Draft202012Validator(rule.schema or {}).is_valid(arguments):
        shown(rule, call_fields(rule, rule.name, orjson.dumps(arguments).decode()))


@pytest.mark.slow
@given(name=texts, arguments=texts)
def test_a_function_that_nobody_declared_is_shown_as_it_was_called(
    name: str, arguments: str
) -> None:
    assert call_fields(None, name, arguments) == {"name": name, "arguments": arguments}
