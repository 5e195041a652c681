"""Law: a long array is read as it would be in one go, mistakes and all."""

from __future__ import annotations

from typing import Any, Final

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.protocol import base
from gateway.protocol.json_body import InputLimits
from gateway.protocol.responses.create import CreateResponse
from gateway.protocol.responses.requests import parse_create

LIMITS: Final = InputLimits(
    json_depth_max=128,
    items_max=100,
    tools_max=100,
    schema_bytes_max=1_000,
    text_chars_max=1_000,
    json_containers_max=10_000,
)
ALL_AT_ONCE: Final = 10_000

VALID_ITEMS: Final = st.sampled_from(
    [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "x"}], "id": "msg_1"},
        {"type": "reasoning", "summary": [], "id": "rs_1"},
        {"type": "item_reference", "id": "msg_2"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text"}]},
    ]
)
WRONG_ITEMS: Final = st.sampled_from(
    [
        1,
        None,
        {},
        {"type": "file_search_call"},
        {"type": "additional_tools"},
        {"type": "message", "role": "nobody", "content": "x"},
        {"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_text"}]},
        {"type": "function_call", "call_id": "c", "name": "f"},
        {"role": "user", "content": "x", "id": "no id"},
    ]
)
VALID_TOOLS: Final = st.sampled_from([{"type": "function", "name": "f"}, {"type": "web_search"}])
WRONG_TOOLS: Final = st.sampled_from([1, {}, {"type": "function"}, {"type": "nothing"}])
BODIES: Final = st.fixed_dictionaries(
    {
        "model": st.just("m") | st.just(1),
        "input": st.lists(VALID_ITEMS, max_size=12) | st.lists(VALID_ITEMS | WRONG_ITEMS),
    },
    optional={
        "tools": st.lists(VALID_TOOLS, max_size=12) | st.lists(VALID_TOOLS | WRONG_TOOLS),
        "temperature": st.sampled_from([1, 3]),
    },
)


def read(body: bytes, *, at_once: int) -> CreateResponse | tuple[object, ...]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "ITEMS_AT_ONCE", at_once)
        try:
            return parse_create(body, limits=LIMITS)
        except InvalidRequest as error:
            return error.message, error.code, error.param


@given(body=BODIES, at_once=st.integers(1, 5))
def test_a_request_is_the_same_in_pieces(body: dict[str, Any], at_once: int) -> None:
    content = orjson.dumps(body)
    assert read(content, at_once=at_once) == read(content, at_once=ALL_AT_ONCE)


def test_a_mistake_far_behind_is_told_where_it_is() -> None:
    said: list[Any] = [{"role": "user", "content": "x"}] * 90
    said[77] = {"role": "user"}
    body = orjson.dumps({"model": "m", "input": said})
    with pytest.raises(InvalidRequest) as refused:
        parse_create(body, limits=LIMITS)
    assert refused.value.param == "input[77].content"


def test_a_long_request_is_read_whole() -> None:
    said = [{"role": "user", "content": str(number)} for number in range(100)]
    request = read(orjson.dumps({"model": "m", "input": said}), at_once=7)
    assert isinstance(request, CreateResponse)
    whole = CreateResponse.model_validate({"model": "m", "input": said[:50]})
    assert request.input[:50] == whole.input
    assert len(request.input) == 100
