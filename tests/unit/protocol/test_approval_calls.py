"""Requests for approval and answers in the words of Open Responses, there and back."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gateway.errors import InvalidRequest
from gateway.protocol.call_items import ReadItem
from gateway.protocol.items import FunctionCall, FunctionCallOutput
from gateway.protocol.responses import open_responses
from gateway.protocol.responses.create_request import parse_create
from tests.fakes.create_bodies import LIMITS

READ: TypeAdapter[Any] = TypeAdapter(ReadItem)
ID = "mcpr_0123"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def check_request(label: str, name: str, arguments: str) -> None:
    """What is read is what was shown."""
    asked = {
        "id": ID,
        "type": "mcp_approval_request",
        "server_label": label,
        "name": name,
        "arguments": arguments,
    }
    (call,) = open_responses.items([asked])
    assert (call["type"], call["call_id"], call["status"]) == ("function_call", ID, "completed")
    assert READ.validate_python(call).model_dump(exclude_unset=True) == asked


def check_answer(approve: bool, reason: str | None) -> None:
    """The same."""
    answer = {
        "id": "mcpa_1",
        "type": "mcp_approval_response",
        "approval_request_id": ID,
        "approve": approve,
        **({} if reason is None else {"reason": reason}),
    }
    (output,) = open_responses.items([answer])
    assert output["type"] == "function_call_output"
    read = READ.validate_python(output).model_dump(exclude_unset=True)
    assert read == answer
    parts = [{"type": "input_text", "text": output["output"]}]
    assert READ.validate_python({**output, "output": parts}).approve is approve


def test_a_request_and_its_answers_are_read_as_they_were_shown() -> None:
    check_request("shop", "buy", '{"what": "é"}')
    check_answer(approve=True, reason=None)
    check_answer(approve=False, reason="too dear")


@pytest.mark.slow
@given(TEXTS, TEXTS, TEXTS)
def test_any_request_is_read_as_it_was_shown(label: str, name: str, arguments: str) -> None:
    check_request(label, name, arguments)


@pytest.mark.slow
@given(st.booleans(), st.none() | TEXTS)
def test_any_answer_is_read_as_it_was_shown(approve: bool, reason: str | None) -> None:
    check_answer(approve, reason)


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call", "call_id": "call_1", "name": "mcp_approval_request"},
        {"type": "function_call", "call_id": ID, "name": "now"},
        {"type": "function_call_output", "call_id": "call_1"},
        {"type": "function_call_output", "name": "goal"},
    ],
)
def test_other_calls_are_what_they_are(item: dict[str, Any]) -> None:
    read = READ.validate_python({**item, "arguments": "{}", "output": "{}"})
    assert isinstance(read, FunctionCall | FunctionCallOutput)


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"type": "function_call_output", "call_id": ID, "output": "unknown tool"}, "output"),
        ({"type": "function_call_output", "call_id": ID, "output": '{"approve": 1}'}, "output"),
        (
            {
                "type": "function_call",
                "call_id": ID,
                "name": "mcp_approval_request",
                "arguments": '{"server_label": "a"}',
            },
            "arguments",
        ),
    ],
)
def test_what_says_nothing_of_an_approval_is_refused(item: dict[str, Any], field: str) -> None:
    body = orjson.dumps({"model": "m", "input": [{"role": "user", "content": "hi"}, item]})
    with pytest.raises(InvalidRequest, match="request for approval") as caught:
        parse_create(body, limits=LIMITS)
    assert caught.value.param == f"input[1].{field}"
    assert caught.value.code == "invalid_value"
