from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.generation import FinishReason
from gateway.models.harmony.tokenizer import CALL, END_OF_TEXT, RETURN
from gateway.simulator.completion_wire import Ending, SimulatedError
from tests.fakes.cases import each
from tests.fakes.wayward_engine.misbehaviour import WaywardContinuation
from tests.fakes.wayward_engine.options import WaywardOptions
from tests.fakes.wayward_engine.strict_requests import StrictRequest, read_request

OPTIONS = WaywardOptions(context_length=100)


def _request(**fields: Any) -> StrictRequest:
    return read_request(json.dumps({"prompt": [1, 2, 3], **fields}).encode(), OPTIONS)


def _reply(
    ids: list[int], finish: FinishReason | None = None, **fields: Any
) -> tuple[list[int], Ending]:
    return WaywardContinuation(ids, 0, finish).reply_to(_request(**fields))


@pytest.mark.parametrize(
    ("stop_id", "reason"), [(RETURN, None), (CALL, CALL), (END_OF_TEXT, END_OF_TEXT)]
)
def test_stop_ids_end_a_reply_and_only_return_is_not_named(
    stop_id: int, reason: int | None
) -> None:
    assert _reply([5, stop_id, 6]) == ([5, stop_id], Ending("stop", reason))


def test_the_callers_stop_ids_end_it_too_and_are_named() -> None:
    assert _reply([5, 6, RETURN], stop_token_ids=[6]) == ([5, 6], Ending("stop", 6))


def test_max_tokens_cuts_a_reply() -> None:
    assert _reply([5, 6, RETURN], max_tokens=2) == ([5, 6], Ending("length", None))
    assert _reply([5, 6, RETURN], max_tokens=3) == ([5, 6, RETURN], Ending("stop", None))


def test_sixteen_ids_are_the_default() -> None:
    assert _reply([5] * 20 + [RETURN]) == ([5] * 16, Ending("length", None))
    assert _reply([5] * 20 + [RETURN], max_tokens=None)[1].finish == "length"


def test_recorded_output_goes_over_stop_ids_and_ends_as_recorded() -> None:
    assert _reply([5, CALL, 6], FinishReason.LENGTH) == ([5, CALL, 6], Ending("length", None))
    assert _reply([5, RETURN, CALL], FinishReason.STOP) == ([5, RETURN, CALL], Ending("stop", CALL))
    assert _reply([], FinishReason.STOP) == ([], Ending("stop", None))


def test_max_tokens_is_clamped_to_the_room_that_is_left() -> None:
    assert _request(max_tokens=100).max_tokens == 97
    assert _request(max_tokens=50).max_tokens == 50


def test_the_first_model_is_meant_when_none_is_named() -> None:
    assert _request().model == "gpt-oss-20b"


def test_unknown_and_empty_fields_are_ignored() -> None:
    assert _request(nonsense=1, guided_json={}, seed=None, cache_salt=None, user="u").prompt == [
        1,
        2,
        3,
    ]


@each(
    ("fields", "param"),
    [
        ({"prompt": "text"}, "body.prompt"),
        ({"prompt": [1, "a"]}, "body.prompt"),
        ({"prompt": [1, True]}, "body.prompt"),
        ({"prompt": [5, -3]}, "body.prompt"),
        ({"prompt": [[1]]}, "body.prompt"),
        ({"max_tokens": "abc"}, "body.max_tokens"),
        ({"temperature": "hot"}, "body.temperature"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"seed": 1 << 63}, "body.seed"),
        ({"stream": "yes"}, "body.stream"),
        ({"model": 5}, "body.model"),
        ({"stream_options": []}, "body.stream_options"),
        ({"cache_salt": "x" * 129}, "cache_salt"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"priority": "high"}, "body.priority"),
    ],
)
def test_bad_fields_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(SimulatedError) as caught:
        _request(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


@given(st.binary(max_size=40))
def test_no_body_is_anything_but_a_request_or_a_400(body: bytes) -> None:
    with pytest.raises(SimulatedError) as caught:
        read_request(body, OPTIONS)
    assert caught.value.status == 400
