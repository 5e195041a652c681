"""Several streams of one connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gateway.api import websocket
from tests.fakes.event_grammar import check_stream
from tests.fakes.stream import as_events
from tests.fakes.websocket import Peer, connected, is_end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.gateway import RunningGateway

LATE = "[[sim first_token_delay_s=60]] wait"
SLOW = "[[sim tokens_per_s=200 tokens=20 think=none]] slow"


@pytest.fixture
async def peer(gateway: RunningGateway) -> AsyncIterator[Peer]:
    async with connected(gateway.url, gateway.key) as opened:
        yield opened


@pytest.mark.requirement("websocket.stream-id")
async def test_every_event_says_on_which_lane_it_came(peer: Peer) -> None:
    name = "Lane_1.a-b"
    frames = await peer.answer(stream_id=name)
    assert {frame.pop("stream_id") for frame in frames} == {name}
    check_stream(as_events(frames))


@pytest.mark.requirement("websocket.lanes-run-together")
async def test_lanes_do_not_wait_for_each_other(peer: Peer) -> None:
    await peer.ask(LATE, stream_id="late")
    await peer.ask("Hello", stream_id="quick")
    frames = await peer.hear_until(is_end)
    assert frames[-1]["type"] == "response.completed"
    assert frames[-1]["stream_id"] == "quick"
    await peer.ask("Hello")
    frames = await peer.hear_until(is_end)
    assert "stream_id" not in frames[-1]


@pytest.mark.slow
@pytest.mark.requirement("websocket.lane-order")
@pytest.mark.requirement("websocket.default-lane")
async def test_turns_of_one_lane_never_overlap(peer: Peer) -> None:
    lanes = ["a", "b", "c"]
    for _ in range(3):
        for lane in lanes:
            await peer.ask(SLOW, stream_id=lane)
    heard: dict[str, list[dict[str, Any]]] = {lane: [] for lane in lanes}
    left = 9
    while left:
        frame = await peer.hear()
        heard[frame.pop("stream_id")].append(frame)
        left -= is_end(frame)
    for frames in heard.values():
        for _ in range(3):
            end = next(index for index, frame in enumerate(frames) if is_end(frame))
            check_stream(as_events(frames[: end + 1]))
            del frames[: end + 1]


@pytest.mark.slow
@pytest.mark.requirement("websocket.lanes-are-bounded")
async def test_one_lane_too_many_is_refused(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "LANES_MAX", 2)
    for lane in ("a", "b", "a", None):
        assert await peer.response(stream_id=lane)
    frame = await peer.refusal(stream_id="c")
    assert frame["error"]["code"] == "websocket_stream_limit_reached"
    assert frame["stream_id"] == "c"
    assert await peer.response(stream_id="b")


@pytest.mark.slow
@pytest.mark.requirement("websocket.lanes-run-together")
async def test_what_is_too_much_at_once_waits(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "IN_FLIGHT_MAX", 1)
    async with connected(gateway.url, gateway.key) as peer:
        await peer.ask(SLOW, stream_id="first")
        await peer.ask("Hello", stream_id="second")
        first = await peer.hear_until(is_end)
        second = await peer.hear_until(is_end)
    assert {frame["stream_id"] for frame in first} == {"first"}
    assert {frame["stream_id"] for frame in second} == {"second"}


@pytest.mark.slow
async def test_what_is_too_much_to_wait_is_refused(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "WAITING_MAX", 1)
    await peer.ask(SLOW)
    await peer.hear()
    await peer.ask("next")
    await peer.ask("one too many")
    frames = await peer.hear_until(lambda frame: frame["type"] == "error")
    assert (frames[-1]["status"], frames[-1]["error"]["code"]) == (429, "rate_limit_exceeded")
    assert all(not is_end(frame) for frame in frames[:-1])
    await peer.hear_until(is_end)
    last = await peer.hear_until(is_end)
    assert last[-1]["type"] == "response.completed"
