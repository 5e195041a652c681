"""How connections end, and what becomes of the responses that are under way."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from gateway.api import websocket
from gateway.api.websocket import WebSocketConnection, expired
from gateway.audit import COMMAND_LINE
from tests.fakes.event_grammar import check_stream
from tests.fakes.gateway import new_key, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.stream import as_events
from tests.fakes.websocket import WAIT_S, Peer, connected, is_end
from tests.integration.api.following import ended

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from gateway.settings import Settings
    from tests.fakes.gateway import RunningGateway
    from tests.fakes.observation import Backends

SLOW = "[[sim tokens_per_s=200 tokens=60 think=none]] slow"
ENDLESS = "[[sim tokens_per_s=100 tokens=100000 think=none]] go"
LATE = "[[sim first_token_delay_s=60]] wait"
LONG = "All of this is repeated in every sign of life. " * 10_000
GOING_AWAY = 1001
SERVICE_RESTART = 1012


def changed(settings: Settings, section: str, **values: Any) -> Settings:
    return settings.model_copy(
        update={section: getattr(settings, section).model_copy(update=values)}
    )


@pytest.fixture
async def ending(settings: Settings) -> AsyncIterator[RunningGateway]:
    """A gateway that a test may tell to end."""
    async with running_gateway(settings) as running:
        yield running


@pytest.mark.slow
@pytest.mark.requirement("websocket.lifetime")
async def test_an_old_connection_is_told_so_and_closed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "LIFETIME_S", 0.1)
    async with running_gateway(settings) as gateway, connected(gateway.url, gateway.key) as peer:
        frame = await peer.hear()
        error = frame["error"]
        assert (frame["type"], frame["status"]) == ("error", 400)
        assert error["code"] == "websocket_connection_limit_reached"
        assert error["type"] == "invalid_request_error"
        assert "Create a new websocket connection to continue." in error["message"]
        assert await peer.closed() == (GOING_AWAY, "connection limit reached")


async def test_a_connection_that_is_over_waits_for_no_collection(gateway: RunningGateway) -> None:
    gone = asyncio.Event()
    gc.collect()
    gc.disable()
    try:
        async with connected(gateway.url, gateway.key) as peer:
            await peer.response("go")
            (ref,) = [
                weakref.ref(one, lambda _: gone.set())
                for one in gc.get_objects()
                if isinstance(one, WebSocketConnection)
            ]
        async with asyncio.timeout(WAIT_S):
            await gone.wait()
    finally:
        gc.enable()
    assert ref() is None


@pytest.mark.requirement("websocket.lifetime")
async def test_the_limit_is_told_in_the_words_that_clients_know() -> None:
    assert str(expired(3600).refusal) == (
        "Responses websocket connection limit reached (60 minutes). Create a new websocket "
        "connection to continue."
    )


@pytest.mark.slow
async def test_an_idle_connection_is_closed_but_not_while_it_is_answered(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "IDLE_TIMEOUT_S", 0.2)
    async with running_gateway(settings) as gateway, connected(gateway.url, gateway.key) as peer:
        frames = await peer.answer("[[sim tokens_per_s=100 tokens=60 think=none]] slow")
        check_stream(as_events(frames))
        assert await peer.closed() == (GOING_AWAY, "idle")


@pytest.mark.slow
async def test_a_process_that_ends_answers_what_has_begun_and_nothing_more(
    ending: RunningGateway,
) -> None:
    async with connected(ending.url, ending.key) as peer:
        await peer.ask(SLOW, stream_id="begun")
        begun = await peer.hear_until(lambda frame: frame["type"].endswith(".delta"))
        await peer.ask("waits", stream_id="begun")
        await peer.say(type="response.steer", previous_response_id="x", input="y")
        begun += await peer.hear_until(lambda frame: frame["type"] == "response.steer.failed")
        ending.process.end_streams()
        begun += await peer.hear_until(lambda frame: frame["type"] == "error")
        await peer.ask("late", stream_id="late")
        begun += await peer.hear_until(lambda frame: frame["type"] == "error")
        begun += await peer.hear_until(is_end)
        refused = [frame for frame in begun if frame["type"] == "error"]
        for frame, lane in zip(refused, ("begun", "late"), strict=True):
            assert (frame["status"], frame["error"]["code"]) == (503, "server_is_overloaded")
            assert frame["stream_id"] == lane
        events = [frame for frame in begun if "response.steer" not in frame["type"]]
        events = [frame for frame in events if frame["type"] != "error"]
        for frame in events:
            assert frame.pop("stream_id") == "begun"
        check_stream(as_events(events))
        assert await peer.closed() == (SERVICE_RESTART, "the server restarts")


async def test_a_connection_at_rest_is_closed_when_the_process_ends(ending: RunningGateway) -> None:
    async with connected(ending.url, ending.key) as peer:
        await peer.response()
        ending.process.end_streams()
        assert await peer.closed() == (SERVICE_RESTART, "the server restarts")


@pytest.mark.slow
async def test_the_end_of_a_process_cuts_off_what_others_go_on_with(
    ending: RunningGateway, settings: Settings
) -> None:
    key = await new_key(settings, "steadfast", {"on_disconnect": "continue"})
    async with connected(ending.url, key) as peer:
        await peer.ask(SLOW, store=True)
        frames = await peer.hear_until(lambda frame: frame["type"].endswith(".delta"))
        ending.process.end_streams()
        frames += await peer.hear_until(is_end)
        assert (frames[-1]["type"], frames[-1]["status"]) == ("error", 503)
        assert (await peer.closed())[0] == SERVICE_RESTART
    headers = {"authorization": f"Bearer {key}"}
    async with http_client(ending.url, headers=headers) as client:
        response = await ended(client, frames[0]["response"]["id"])
    assert response["status"] == "completed"


@pytest.mark.slow
async def test_a_client_that_leaves_ends_what_it_asked_for(
    gateway: RunningGateway, backends: Backends
) -> None:
    markers = (60_001, 60_002)
    async with connected(gateway.url, gateway.key) as peer:
        for marker in markers:
            await peer.ask(ENDLESS, max_output_tokens=marker, stream_id=str(marker))
        await peer.hear_until(lambda frame: frame["type"].endswith(".delta"))

    def are_left(rows: list[dict[str, Any]]) -> bool:
        left = {row["max_tokens"] for row in rows if row["aborted"]}
        begun = {row["max_tokens"] for row in rows}
        return begun & set(markers) == left & set(markers) != set()

    await backends.until(are_left)


async def test_what_was_stored_of_it_is_kept(
    gateway: RunningGateway, client: httpx2.AsyncClient
) -> None:
    async with connected(gateway.url, gateway.key) as peer:
        await peer.ask(ENDLESS, store=True)
        frames = await peer.hear_until(lambda frame: frame["type"].endswith(".delta"))
    path = f"/v1/responses/{frames[0]['response']['id']}"
    async with asyncio.timeout(WAIT_S):
        while (answer := await client.get(path)).status_code == 404:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert answer.json()["status"] == "cancelled"
    metrics = gateway.process.foundation.metrics.exposition().decode()
    assert "gateway_sse_disconnects_total 0.0" not in metrics


@pytest.mark.slow
async def test_a_client_that_does_not_read_is_given_up(
    settings: Settings, backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = 1003
    monkeypatch.setattr(websocket, "WRITE_TIMEOUT_S", 0.2)
    hasty = changed(settings, "stream", keepalive_event_s=0.005, start_grace_s=0.01)
    async with running_gateway(hasty) as gateway:
        async with connected(gateway.url, gateway.key, max_queue=1, close_timeout=0.1) as peer:
            await peer.ask(LATE, max_output_tokens=marker, instructions=LONG)
            await backends.until(
                lambda rows: any(row["max_tokens"] == marker and row["aborted"] for row in rows)
            )
        metrics = gateway.process.foundation.metrics.exposition().decode()
    assert "gateway_sse_disconnects_total 1.0" in metrics


@pytest.mark.slow
async def test_a_key_that_is_disabled_asks_for_nothing_more(
    gateway: RunningGateway, settings: Settings
) -> None:
    key = await new_key(settings, "dismissed")
    async with connected(gateway.url, key) as peer:
        await peer.ask(SLOW, stream_id="begun")
        await peer.hear()
        await gateway.tenants.disable(COMMAND_LINE, "dismissed")
        frame = await refusal_among(peer)
        assert (frame["status"], frame["error"]["code"]) == (401, "invalid_api_key")
        last = await peer.hear_until(lambda frame: frame["type"] == "response.completed")
        assert last[-1]["stream_id"] == "begun"


async def refusal_among(peer: Peer) -> dict[str, Any]:
    """The answer to a request on the lane without a name, while another lane is answered."""
    await peer.ask()
    return (await peer.hear_until(lambda frame: "stream_id" not in frame))[-1]


@pytest.mark.slow
async def test_connections_and_their_requests_are_counted(settings: Settings) -> None:
    async with running_gateway(settings) as gateway:
        metrics = gateway.process.foundation.metrics
        async with connected(gateway.url, gateway.key) as peer:
            await peer.response()
            await peer.refusal(temperature=9)
            during = metrics.exposition().decode()
        assert "gateway_connections_total 1.0" in during
        assert "gateway_connections_open 1.0" in during
        assert 'gateway_requests_total{model="",status="101"} 1.0' in during
        assert 'gateway_requests_total{model="gpt-oss-20b",status="200"} 1.0' in during
    after = metrics.exposition().decode()
    assert 'gateway_requests_total{model="",status="400"} 1.0' in after
    assert "gateway_requests_in_flight 0.0" in after
    assert "gateway_connections_open 0.0" in after
