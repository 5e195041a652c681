"""Frames of WebSocket mode: what is read of them, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.protocol.responses.websocket import CreateFrame, read_frame, read_steer, read_turn
from tests.fakes.cases import each
from tests.fakes.create_bodies import LIMITS

ASK = {"type": "response.create", "model": "m", "input": "Hello"}


def text(**fields: Any) -> bytes:
    return json.dumps({**ASK, **fields}).encode()


def turn(*, strict: bool = False, **fields: Any) -> CreateFrame:
    return read_turn(text(**fields), limits=LIMITS, strict=strict)


def test_a_frame_is_read_as_far_as_it_takes_to_know_its_lane() -> None:
    sent = text(stream_id="a.b-c_D", previous_response_id="resp_1", temperature="nonsense")
    frame = read_frame(sent, LIMITS)
    assert (frame.type, frame.stream_id) == ("response.create", "a.b-c_D")
    assert (frame.previous_response_id, frame.text) == ("resp_1", sent)


def test_there_is_a_lane_without_a_name() -> None:
    assert read_frame(text(), LIMITS).stream_id is None
    assert read_frame(text(stream_id=None), LIMITS).stream_id is None


def test_what_is_no_id_continues_nothing() -> None:
    assert read_frame(text(previous_response_id=7), LIMITS).previous_response_id is None


@each("stream_id", ["", "a b", "é", "a\n", "x" * 257, 1, True, [], {}])
def test_a_lane_must_have_a_name_that_is_one(stream_id: object) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read_frame(text(stream_id=stream_id), LIMITS)
    assert refusal.value.code == "invalid_stream_id"


@pytest.mark.parametrize(
    ("kind", "code"),
    [(None, "missing_required_parameter"), (3, "invalid_type"), ("ping", "invalid_value")],
)
def test_a_frame_must_be_of_a_known_type(kind: object, code: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        _ = read_frame(text(type=kind), LIMITS).type
    assert refusal.value.code == code


def test_a_turn_is_a_request_for_a_stream() -> None:
    read = turn(stream_id="a", store=False)
    assert read.request.stream
    assert not read.request.store
    assert read.request.ignored == ()
    assert (read.generate, read.obfuscated) == (True, False)


@pytest.mark.parametrize(("generate", "expected"), [(True, True), (False, False), (None, True)])
def test_a_warm_up_is_one_that_says_so(generate: bool | None, expected: bool) -> None:
    assert turn(generate=generate).generate is expected


def test_a_prewarmed_cache_is_a_warm_up_whatever_generate_says() -> None:
    prewarm: Any = {"prompt_cache_options": {"prewarm": True}}
    for generate in (None, False, True):
        assert not turn(input=[], generate=generate, **prewarm).generate
    assert turn(prompt_cache_options={"prewarm": False}).generate


@pytest.mark.parametrize("said", [None, [], ""])
def test_a_warm_up_needs_no_input(said: object) -> None:
    assert not turn(input=said, instructions="x", generate=False).request.input
    with pytest.raises(InvalidRequest) as refusal:
        turn(input=said, instructions="x")
    assert refusal.value.code == "missing_required_parameter"


def test_a_warm_up_calls_nothing() -> None:
    answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    assert turn(input=[answer]).generate
    assert not turn(input=[answer, {"role": "user", "content": "x"}], generate=False).generate
    with pytest.raises(InvalidRequest, match="cannot call anything"):
        turn(input=[answer], generate=False)


def test_a_warm_up_compacts_nothing() -> None:
    due = [{"type": "compaction", "compact_threshold": 1000}]
    assert turn(context_management=due).request.context_management is not None
    assert turn(context_management=due, generate=False).request.context_management is None
    trigger = [{"type": "compaction_trigger"}]
    assert turn(input=trigger).generate
    with pytest.raises(InvalidRequest) as refusal:
        turn(input=trigger, generate=False)
    assert (refusal.value.code, refusal.value.param) == ("invalid_value", "input")


def test_generate_is_a_boolean() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        turn(generate=0)
    assert (refusal.value.code, refusal.value.param) == ("invalid_type", "generate")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, False),
        ({}, False),
        ({"include_obfuscation": None}, False),
        ({"include_obfuscation": False}, False),
        ({"include_obfuscation": True}, True),
    ],
)
def test_padding_has_to_be_asked_for(options: object, expected: bool) -> None:
    assert turn(stream_options=options).obfuscated is expected


USUAL: list[tuple[str, Any]] = [
    ("stream", True),
    ("stream", None),
    ("background", False),
    ("background", None),
    ("stream_options", {}),
]


@pytest.mark.parametrize(("name", "value"), USUAL)
def test_what_happens_anyway_may_be_asked_for_unless_one_is_strict(name: str, value: Any) -> None:
    turn(**{name: value})
    with pytest.raises(InvalidRequest) as refusal:
        turn(strict=True, **{name: value})
    assert refusal.value.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [("stream", False), ("stream", 1), ("stream", "true"), ("background", True), ("background", 0)],
)
def test_what_does_not_happen_here_may_not(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        turn(**{name: value})
    assert (refusal.value.code, refusal.value.param) == ("unsupported_parameter", name)


def test_who_is_strict_takes_the_names_of_this_transport() -> None:
    assert turn(strict=True, stream_id="a", generate=True).generate


def test_a_steer_is_read_back() -> None:
    steer = {"previous_response_id": "resp_1", "input": [{"role": "user", "content": "x"}]}
    sent = json.dumps({"type": "response.steer", **steer}).encode()
    assert read_frame(sent, LIMITS).type == "response.steer"
    assert read_steer(sent, LIMITS) == steer
    with pytest.raises(InvalidRequest):
        read_steer(b'{"type":"response.steer","previous_response_id":"x"}', LIMITS)


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.binary(max_size=40)
    | st.dictionaries(
        st.sampled_from(["type", "stream_id", "generate", "stream", "stream_options", "input"]),
        st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.just({}),
    ).map(lambda fields: json.dumps(ASK | fields).encode())
)
def test_any_bytes_are_read_or_refused(sent: bytes) -> None:
    try:
        frame = read_frame(sent, LIMITS)
        read_turn(frame.text, limits=LIMITS, strict=False)
    except InvalidRequest:
        pass
