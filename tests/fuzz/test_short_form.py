"""The fuzzer at its shortest: the same generators and the same judge, a few hundred requests."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from openai.types.responses import response_create_params
from openai.types.responses.response_input_item_param import ImageGenerationCall

from tests.fakes.processes import gateway_process, reserved_port, simulator_process
from tests.fuzz import wire
from tests.fuzz.__main__ import SETTINGS
from tests.fuzz.campaign import Campaign, Outcome
from tests.fuzz.documented import Maker
from tests.fuzz.judge import finding
from tests.fuzz.mutations import encoded, mutate
from tests.fuzz.sockets import CLOSES, fault_of
from tests.fuzz.targets import Known, Request
from tests.fuzz.watched import EVENT, stalls_s
from tests.fuzz.wire import WireCampaign

if TYPE_CHECKING:
    from pathlib import Path

REQUESTS = 600
VISITS = 100
GOOD = {"x-request-id": "req_1", "content-type": "application/json"}
STREAM = GOOD | {"content-type": "text/event-stream; charset=utf-8"}
ASKED = Request("POST", "/v1/responses")
ADDED = {"type": "response.output_item.added"}


def _frames(*events: dict[str, Any]) -> bytes:
    """A stream of these events, whole."""
    return b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events) + (
        b"data: [DONE]\n\n"
    )


@pytest.mark.timeout(180)
async def test_no_request_finds_anything(tmp_path: Path, database_url: str, own_key: str) -> None:
    with (
        reserved_port() as port,
        simulator_process(port) as simulator,
        gateway_process(tmp_path, database_url, [simulator.url], **SETTINGS) as gateway,
    ):
        pid = gateway.child.process.pid
        campaign = Campaign(gateway.url, own_key, pid=pid, requests=REQUESTS, seed=1)
        outcome = await campaign.run()
    assert not outcome.findings
    assert {200, 400, 404} <= set(outcome.statuses)
    assert 1000 in outcome.closes


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (500, GOOD, b"{}"),
        (409, GOOD, b'{"error":{"message":"x","type":"t","param":null,"code":null}}'),
        (400, GOOD, b'{"detail":"x"}'),
        (400, GOOD, b'{"error":{"message":"","type":"t","param":null,"code":null}}'),
        (200, GOOD, b"{"),
        (200, {"content-type": "application/json"}, b"{}"),
        (400, GOOD | {"content-type": "text/plain"}, b"Bad Request"),
        (200, GOOD, b'{"a":"  File \\"/x.py\\", line 1"}'),
        (200, STREAM, b'event: x\ndata: {"type":"x"}\n\n'),
        (200, STREAM, b"event: x\ndata: {\n\ndata: [DONE]\n\n"),
        (200, STREAM, _frames({"sequence_number": 0}, {"sequence_number": 2})),
        (200, STREAM, _frames(ADDED | {"output_index": 0}, ADDED | {"output_index": 2})),
    ],
)
def test_the_judge_finds_what_is_wrong(status: int, headers: dict[str, str], body: bytes) -> None:
    assert finding(ASKED, status, headers, body, Known())


def test_a_dialect_that_leaves_events_out_has_gaps() -> None:
    gaps = _frames({"sequence_number": 0}, {"sequence_number": 2})
    asked = Request("POST", "/openresponses/v1/responses")
    assert finding(asked, 200, STREAM, gaps, Known()) is None


def test_the_judge_learns_from_what_is_right() -> None:
    known = Known()
    body = b'{"id":"resp_1","output":[{"id":"msg_1"}]}'
    assert finding(ASKED, 200, GOOD, body, known) is None
    assert finding(ASKED, 200, STREAM, b": ping\n\ndata: {}\n\ndata: [DONE]\n\n", known) is None
    assert (list(known.responses), list(known.items)) == (["resp_1"], ["msg_1"])


ERROR = {"code": "c", "type": "t", "message": "m", "headers": {"x-request-id": "req_1"}}


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "error", "status": 500, "error": ERROR},
        {"type": "error", "status": 400, "error": ERROR | {"code": None}},
        {"type": "error", "status": 400, "error": ERROR | {"headers": {"x-request-id": ""}}},
        {"type": "response.steer.failed", "steer": {}},
        {"type": "response.nonsense", "sequence_number": 0},
        {"type": "response.created", "sequence_number": 1},
        {"type": "response.in_progress", "sequence_number": 0, "stream_id": "a"},
        {"type": "response.created", "sequence_number": 0, "x": 'File "/x.py"'},
    ],
)
def test_the_judge_finds_what_is_wrong_with_a_frame(frame: dict[str, Any]) -> None:
    assert fault_of(json.dumps(frame), {"a": 0})
    assert fault_of(json.dumps(frame).encode(), {})


def test_the_judge_follows_each_lane() -> None:
    lanes: dict[str | None, int] = {}
    frames = [
        {"type": "response.created", "sequence_number": 0},
        {"type": "response.created", "sequence_number": 0, "stream_id": "a"},
        {"type": "error", "status": 400, "error": ERROR},
        {"type": "response.steer.failed", "steer": {"input": "x"}},
        {"type": "response.completed", "sequence_number": 1, "stream_id": "a"},
    ]
    assert [fault_of(json.dumps(frame), lanes) for frame in frames] == [None] * 5
    assert lanes == {None: 0}
    assert not CLOSES & {1006, 1011}


def test_memory_is_compared_once_it_is_warm() -> None:
    outcome = Outcome(memory=[0] * 30 + [100] * 60 + [140] * 10)
    assert outcome.growth_bytes == 40


def test_the_same_dice_make_the_same_requests() -> None:
    def made(seed: int) -> bytes:
        dice = random.Random(seed)
        kind = response_create_params.ResponseCreateParamsNonStreaming
        document = Maker(dice).value(kind)
        mutate(dice, document)
        return encoded(dice, document)

    assert [made(seed) for seed in range(50)] == [made(seed) for seed in range(50)]
    assert len({made(seed) for seed in range(50)}) > 40


def test_what_a_type_requires_is_always_there() -> None:
    made = [Maker(random.Random(seed)).value(ImageGenerationCall) for seed in range(50)]
    assert all({"id", "type", "status", "result"} <= value.keys() for value in made)
    assert not all("action" in value for value in made)


@pytest.mark.timeout(180)
async def test_no_reading_of_http_finds_anything(
    tmp_path: Path, database_url: str, own_key: str
) -> None:
    with (
        reserved_port() as port,
        simulator_process(port) as simulator,
        gateway_process(tmp_path, database_url, [simulator.url], **wire.SETTINGS) as gateway,
    ):
        pid = gateway.child.process.pid
        campaign = WireCampaign(gateway.url, own_key, pid=pid, visits=VISITS, seed=1)
        outcome = await campaign.run()
    assert not outcome.findings
    assert {"flood", "smuggled", "endless", "half_closed", "pipelined"} <= set(outcome.rough)
    assert {200, 400, 431} <= set(outcome.statuses)


def test_a_stall_is_told_by_its_seconds() -> None:
    lines = ["{}", json.dumps({"event": EVENT, "seconds": 0.25}), "no JSON"]
    assert stalls_s("\n".join(lines)) == [0.25]
