"""Whatever a Responses server gives as output is accepted back as input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from openai.types.responses import (
    ResponseApplyPatchToolCall,
    ResponseApplyPatchToolCallOutput,
    ResponseCustomToolCall,
    ResponseCustomToolCallOutputItem,
    ResponseFunctionShellToolCall,
    ResponseFunctionShellToolCallOutput,
    ResponseFunctionToolCall,
    ResponseFunctionToolCallOutputItem,
    ResponseInputText,
    ResponseOutputMessage,
    ResponseOutputRefusal,
    ResponseOutputText,
    ResponseReasoningItem,
)
from openai.types.responses.response_apply_patch_tool_call import OperationDeleteFile
from openai.types.responses.response_function_shell_tool_call import Action
from openai.types.responses.response_function_shell_tool_call_output import (
    Output,
    OutputOutcomeExit,
    OutputOutcomeTimeout,
)
from openai.types.responses.response_output_item import LocalShellCall, LocalShellCallAction
from openai.types.responses.response_output_text import AnnotationURLCitation
from openai.types.responses.response_reasoning_item import Content, Summary

from tests.fakes.cases import each
from tests.fakes.create_bodies import parse

if TYPE_CHECKING:
    from pydantic import BaseModel

OUTPUT: list[BaseModel] = [
    ResponseOutputMessage(
        id="msg_1",
        type="message",
        role="assistant",
        status="completed",
        phase="final_answer",
        content=[
            ResponseOutputText(
                type="output_text",
                text="Grüße",
                annotations=[
                    AnnotationURLCitation(
                        type="url_citation", url="u", title="t", start_index=0, end_index=1
                    )
                ],
                logprobs=[],
            ),
            ResponseOutputRefusal(type="refusal", refusal="no"),
        ],
    ),
    ResponseReasoningItem(
        id="rs_1",
        type="reasoning",
        summary=[Summary(type="summary_text", text="s")],
        content=[Content(type="reasoning_text", text="c")],
        status="completed",
    ),
    ResponseReasoningItem(id="rs_2", type="reasoning", summary=[], encrypted_content="gAAA"),
    ResponseFunctionToolCall(
        id="fc_1",
        type="function_call",
        call_id="call_1",
        name="get_weather",
        arguments='{"a": 1}',
        status="incomplete",
    ),
    ResponseFunctionToolCallOutputItem(
        id="fco_1",
        type="function_call_output",
        call_id="call_1",
        output=[ResponseInputText(type="input_text", text="x")],
        status="completed",
    ),
    ResponseCustomToolCall(
        id="ctc_1", type="custom_tool_call", call_id="call_2", name="exec", input="print()"
    ),
    ResponseCustomToolCallOutputItem(
        id="ctco_1",
        type="custom_tool_call_output",
        call_id="call_2",
        output="ok",
        status="completed",
    ),
    LocalShellCall(
        id="lsh_1",
        type="local_shell_call",
        call_id="call_3",
        action=LocalShellCallAction(type="exec", command=["ls"], env={"A": "b"}),
        status="completed",
    ),
    ResponseFunctionShellToolCall(
        id="sh_1",
        type="shell_call",
        call_id="call_4",
        action=Action(commands=["ls"], timeout_ms=5),
        status="completed",
    ),
    ResponseFunctionShellToolCallOutput(
        id="sho_1",
        type="shell_call_output",
        call_id="call_4",
        max_output_length=9,
        output=[
            Output(stdout="a", stderr="", outcome=OutputOutcomeExit(type="exit", exit_code=0)),
            Output(stdout="", stderr="", outcome=OutputOutcomeTimeout(type="timeout")),
        ],
        status="completed",
    ),
    ResponseApplyPatchToolCall(
        id="apc_1",
        type="apply_patch_call",
        call_id="call_5",
        operation=OperationDeleteFile(type="delete_file", path="p"),
        status="completed",
    ),
    ResponseApplyPatchToolCallOutput(
        id="apco_1", type="apply_patch_call_output", call_id="call_5", status="failed", output="no"
    ),
]


def _dumped(item: BaseModel, *, exclude_none: bool) -> dict[str, Any]:
    return item.model_dump(mode="json", exclude_none=exclude_none)


@pytest.mark.requirement("control.items-of-every-kind")
@each("exclude_none", [True, False])
@each("item", OUTPUT)
def test_an_output_item_is_accepted_as_input(item: BaseModel, exclude_none: bool) -> None:
    (parsed,) = parse(input=[_dumped(item, exclude_none=exclude_none)]).input
    kept = parsed.model_dump(mode="json", exclude_none=True)
    assert kept == {
        name: value
        for name, value in _without_logprobs(_dumped(item, exclude_none=True)).items()
        if name in kept
    }
    assert {"id", "type"} <= kept.keys()


def _without_logprobs(item: dict[str, Any]) -> dict[str, Any]:
    for part in item.get("content", ()):
        part.pop("logprobs", None)
    return item


@pytest.mark.requirement("items.unknown-keys")
@each("item", OUTPUT)
def test_it_is_accepted_without_id_and_status_and_with_unknown_keys(item: BaseModel) -> None:
    raw = _dumped(item, exclude_none=False)
    optional = {"id"} if raw["type"] == "apply_patch_call_output" else {"id", "status"}
    for name in optional & raw.keys():
        raw.pop(name)
    assert len(parse(input=[{**raw, "extra": {"a": [1]}, "namespace": "ns"}]).input) == 1


def test_input_and_output_of_a_turn_and_more_make_the_next_turn() -> None:
    turn = [_dumped(item, exclude_none=False) for item in OUTPUT]
    request = parse(
        input=[{"role": "user", "content": "a"}, *turn, {"role": "user", "content": "b"}]
    )
    assert len(request.input) == len(OUTPUT) + 2
