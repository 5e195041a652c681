"""JSON has one kind of number: an integer may be written with a fraction of zero."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.errors import InvalidRequest
from gateway.protocol.base import WireModel, as_integer
from gateway.protocol.chat_conversion import parse_chat, parse_completion
from gateway.protocol.hosted_tools import McpServerTool
from gateway.protocol.items import LocalShellAction
from gateway.protocol.responses.create_request import parse_create
from tests.fakes.create_bodies import LIMITS

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
RESPONSE: dict[str, Any] = {"model": "m", "input": "hi"}
PROMPT: dict[str, Any] = {"model": "m", "prompt": "hi"}


def respond(**fields: Any) -> Any:
    return parse_create(orjson.dumps({**RESPONSE, **fields}), limits=LIMITS)


@pytest.mark.parametrize(
    "name", ["max_output_tokens", "max_tool_calls", "top_logprobs", "seed", "top_k"]
)
def test_a_whole_decimal_is_an_integer_of_a_response(name: str) -> None:
    value = getattr(respond(**{name: 20.0}), name)
    assert (value, type(value)) == (20, int)


def test_so_it_is_within_other_parameters() -> None:
    assert respond(reasoning={"max_tokens": 20.0}).reasoning.max_tokens == 20


@pytest.mark.parametrize("name", ["n", "max_tokens"])
def test_so_it_is_in_chats_and_completions(name: str) -> None:
    parse_chat(orjson.dumps({**CHAT, name: 1.0 if name == "n" else 20.0}), limits=LIMITS)
    parse_completion(orjson.dumps({**PROMPT, name: 1.0}), limits=LIMITS)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        *((value, "invalid_type") for value in (1.5, True, "1", 2.0**60)),
        *((value, "integer_above_max_value") for value in (2.0**63, 1e300)),
        (-(2.0**63), "integer_below_min_value"),
    ],
)
def test_what_is_no_integer_is_refused(value: object, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(orjson.dumps({**CHAT, "n": value}), limits=LIMITS)
    assert (caught.value.code, caught.value.param) == (code, "n")


def test_several_answers_are_refused_however_the_number_is_written() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(orjson.dumps({**CHAT, "n": 2.0}), limits=LIMITS)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "n")


def test_a_conversation_without_messages_is_refused_as_an_empty_array() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(orjson.dumps({**CHAT, "messages": []}), limits=LIMITS)
    assert (caught.value.code, caught.value.param) == ("empty_array", "messages")


@pytest.mark.slow
@given(st.one_of(st.floats(), st.integers(), st.text(), st.booleans(), st.none()))
def test_nothing_but_a_whole_double_is_changed(value: object) -> None:
    found = as_integer(value)
    assert found is value or (type(found) is int and type(value) is float and found == value)


@pytest.mark.parametrize(
    ("model", "fields"),
    [(LocalShellAction, {"command": []}), (McpServerTool, {"server_label": "l"})],
)
def test_of_a_dict_with_many_faults_one_is_found(
    model: type[WireModel], fields: dict[str, Any]
) -> None:
    (name,) = {"env", "headers"} & model.model_fields.keys()
    with pytest.raises(ValidationError) as raised:
        model.model_validate({**fields, name: {"a": "b", **{f"{at}": at for at in range(100)}}})
    assert [one["loc"] for one in raised.value.errors()] == [(name, "0")]
