"""Frames that are refused: one error frame each, and the connection goes on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator
from openai.types.responses.responses_server_event import ResponseWsError

from tests.conformance.checking import SPECIFICATION
from tests.fakes.gateway import running_gateway
from tests.fakes.websocket import MODEL, Peer, connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.settings import Settings
    from tests.fakes.gateway import RunningGateway

ASK = {"type": "response.create", "model": MODEL, "input": "Hello", "store": False}


@pytest.fixture
async def peer(gateway: RunningGateway) -> AsyncIterator[Peer]:
    async with connected(gateway.url, gateway.key) as opened:
        yield opened


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in ASK.items() if name not in names}


def text(value: object) -> str:
    return json.dumps(value)


FRAMES: dict[str, tuple[str | bytes, str, str | None]] = {
    "no JSON": ("{", "invalid_request_error", None),
    "nothing": ("", "invalid_request_error", None),
    "no object": ("[]", "invalid_request_error", None),
    "half a character": ('{"type":"\\ud800"}', "invalid_request_error", None),
    "too deep": ('{"a":' * 300 + "1" + "}" * 300, "invalid_request_error", None),
    "bytes": (b"{}", "invalid_request_error", None),
    "no type": (text(without("type")), "missing_required_parameter", "type"),
    "a type that is no string": (text(ASK | {"type": 1}), "invalid_type", "type"),
    "an unknown type": (text(ASK | {"type": "response.append"}), "invalid_value", "type"),
    "no model": (text(without("model")), "missing_required_parameter", "model"),
    "no input": (text(without("input")), "missing_required_parameter", "input"),
    "an unknown model": (text(ASK | {"model": "gpt-9"}), "model_not_found", "model"),
    "a bad value": (text(ASK | {"temperature": 9}), "decimal_above_max_value", "temperature"),
    "unstreamed": (text(ASK | {"stream": False}), "unsupported_parameter", "stream"),
    "stream, of another type": (text(ASK | {"stream": 1}), "unsupported_parameter", "stream"),
    "in the background": (
        text(ASK | {"background": True, "store": True}),
        "unsupported_parameter",
        "background",
    ),
    "stream_options that are none": (
        text(ASK | {"stream_options": 1}),
        "invalid_type",
        "stream_options",
    ),
    "generate that is no boolean": (text(ASK | {"generate": "no"}), "invalid_type", "generate"),
    "a lane without a name": (text(ASK | {"stream_id": ""}), "invalid_stream_id", "stream_id"),
    "a lane with a long name": (
        text(ASK | {"stream_id": "x" * 257}),
        "invalid_stream_id",
        "stream_id",
    ),
    "a lane with a bad name": (text(ASK | {"stream_id": "a b"}), "invalid_stream_id", "stream_id"),
    "a lane that is a number": (text(ASK | {"stream_id": 1}), "invalid_stream_id", "stream_id"),
    "a missing response": (
        text(ASK | {"previous_response_id": "resp_openresponses_missing_1"}),
        "previous_response_not_found",
        "previous_response_id",
    ),
    "a steer without its input": (
        text({"type": "response.steer", "previous_response_id": "resp_1"}),
        "missing_required_parameter",
        "input",
    ),
}


@pytest.mark.requirement("websocket.error-frame")
@pytest.mark.requirement("websocket.lanes-are-bounded")
@pytest.mark.requirement("websocket.not-sent")
@pytest.mark.requirement("traps.string-codes")
@pytest.mark.requirement("create.background")
@pytest.mark.parametrize("name", FRAMES)
async def test_one_frame_says_what_is_wrong(peer: Peer, name: str) -> None:
    sent, code, param = FRAMES[name]
    await peer.connection.send(sent)
    frame = await peer.hear()
    check(frame)
    assert (frame["error"]["code"], frame["error"]["param"]) == (code, param)
    assert await peer.response(), "the connection cannot be used any more"


async def test_what_is_refused_by_its_type_is_answered_on_its_lane(peer: Peer) -> None:
    await peer.connection.send(text(ASK | {"type": "response.append", "stream_id": "main"}))
    frame = await peer.hear()
    check(frame)
    assert (frame["stream_id"], frame["error"]["param"]) == ("main", "type")


def check(frame: dict[str, Any]) -> None:
    """The shape of an error frame, as OpenAI's SDK and Open Responses have it."""
    assert frame["type"] == "error"
    assert isinstance(frame["status"], int)
    assert isinstance(frame["error"]["code"], str)
    assert isinstance(frame["error"]["message"], str)
    assert frame["error"]["headers"]["x-request-id"].startswith("req_")
    ResponseWsError.model_validate(frame, strict=True)
    if SPECIFICATION.exists():
        schemas = json.loads(SPECIFICATION.read_text())["components"]["schemas"]
        Draft202012Validator(schemas["WebSocketErrorEvent"]).validate(frame)


async def test_a_failure_before_the_first_event_has_its_status(peer: Peer) -> None:
    frame = await peer.refusal("[[sim status=503]] busy")
    assert frame["status"] == 503
    assert frame["error"]["headers"]["retry-after"] == "2"


@pytest.mark.slow
@pytest.mark.requirement("websocket.not-sent")
async def test_who_is_strict_refuses_what_must_not_be_sent(settings: Settings) -> None:
    strict = settings.model_copy(
        update={"input": settings.input.model_copy(update={"strict": True})}
    )
    async with running_gateway(strict) as gateway, connected(gateway.url, gateway.key) as peer:
        sent: dict[str, Any] = {"stream": True, "stream_options": {}, "background": False}
        for name, value in sent.items():
            frame = await peer.refusal(**{name: value})
            assert frame["error"]["param"] == name
        assert await peer.response(generate=True, stream_id="a")


@pytest.mark.slow
async def test_a_frame_that_is_too_large_is_refused(settings: Settings) -> None:
    small = settings.model_copy(
        update={"limits": settings.limits.model_copy(update={"body_bytes_max": 1000})}
    )
    async with running_gateway(small) as gateway, connected(gateway.url, gateway.key) as peer:
        frame = await peer.refusal("x" * 1000)
        assert frame["status"] == 413
        assert await peer.response("x")


@pytest.mark.requirement("websocket.steer")
async def test_a_steer_is_given_back(peer: Peer) -> None:
    steer = {"previous_response_id": "resp_1", "input": "Stop!"}
    await peer.say(type="response.steer", **steer)
    frame = await peer.hear()
    assert frame["type"] == "response.steer.failed"
    assert frame["error"]["code"] == "steering_not_supported"
    assert frame["steer"] == steer
