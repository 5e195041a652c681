"""WebSocket mode between real processes: OpenAI's SDK, its Agents SDK, and a server that ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.fakes.event_grammar import check_stream
from tests.fakes.processes import gateway_process
from tests.fakes.stream import as_events
from tests.fakes.websocket import MODEL, connected

if TYPE_CHECKING:
    from pathlib import Path

    from openai import AsyncOpenAI, OpenAI

    from tests.fakes.processes import GatewayProcess, SimulatorProcess

SLOW = "[[sim tokens_per_s=100 tokens=60 think=none]] slow"
ENDLESS = "[[sim tokens_per_s=100 tokens=100000 think=none]] go"
DIRECT: Any = {"proxy": None}


@pytest.mark.client("openai (Python)", "WebSocket")
def test_the_sdk_streams_and_continues_over_a_connection(client: OpenAI) -> None:
    with client.responses.connect(websocket_connection_options=DIRECT) as connection:
        connection.response.create(model=MODEL, input="cobalt", store=False)
        first = next(event for event in connection if event.type == "response.completed")
        assert "cobalt" in first.response.output_text
        connection.response.create(
            model=MODEL,
            input="again",
            store=False,
            previous_response_id=first.response.id,
            stream_id="main",
        )
        second = next(event for event in connection if event.type == "response.completed")
        assert "turn 2" in second.response.output_text
        assert second.stream_id == "main"


@pytest.mark.client("openai (Python)", "WebSocket")
async def test_the_sdk_does_so_in_coroutines_and_understands_refusals(
    async_client: AsyncOpenAI,
) -> None:
    async with async_client.responses.connect(websocket_connection_options=DIRECT) as connection:
        await connection.response.create(model=MODEL, input="Hello", temperature=9)
        error = await connection.recv()
        assert error.type == "error"
        assert (error.status, error.error.code) == (400, "decimal_above_max_value")
        assert error.error.headers is not None
        assert error.error.headers["x-request-id"].startswith("req_")
        await connection.response.create(model=MODEL, input="Hello", store=False, generate=False)
        warm = [await connection.recv() for _ in range(3)][-1]
        assert warm.type == "response.completed"
        assert warm.response.output == []
        await connection.response.create(
            model=MODEL, input=[], store=False, previous_response_id=warm.response.id
        )
        async for event in connection:
            if event.type == "response.completed":
                assert "Hello" in event.response.output_text
                break


@pytest.mark.client("openai-agents", "WebSocket")
async def test_the_agents_sdk_runs_over_a_connection(
    gateway: GatewayProcess, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled
    from agents.models.openai_responses import OpenAIResponsesWSModel
    from openai import AsyncOpenAI

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    set_tracing_disabled(disabled=True)
    asked: list[str] = []

    @function_tool
    def get_weather(location: str) -> str:
        """The weather at a place."""
        asked.append(location)
        return "65F"

    async with AsyncOpenAI(base_url=gateway.base_url, api_key=key) as client:
        model = OpenAIResponsesWSModel(model=MODEL, openai_client=client)
        agent = Agent(
            name="weather",
            model=model,
            tools=[get_weather],
            model_settings=ModelSettings(store=False),
        )
        result = await Runner.run(agent, "Use get_weather for Oslo")
        await model.close()
    assert len(asked) == 1
    assert "65F" in result.final_output


def own_gateway(folder: Path, url: str, simulator: SimulatorProcess, **server: Any) -> Any:
    return gateway_process(folder, url, [simulator.url], server={"drain_grace_s": 20, **server})


async def test_a_server_that_is_told_to_end_answers_first(
    tmp_path: Path, database_url: str, own_key: str, simulator: SimulatorProcess
) -> None:
    with own_gateway(tmp_path, database_url, simulator) as gateway:
        async with connected(gateway.url, own_key) as idle, connected(gateway.url, own_key) as busy:
            await busy.ask(SLOW, store=True)
            frames = await busy.hear_until(lambda frame: frame["type"].endswith(".delta"))
            gateway.child.terminate()
            assert await idle.closed() == (1012, "the server restarts")
            frames += await busy.hear_until(lambda frame: frame["type"] == "response.completed")
            check_stream(as_events(frames))
            assert await busy.closed() == (1012, "the server restarts")
        assert await asyncio.to_thread(gateway.child.exit_code) == 0
        assert "Traceback" not in gateway.child.output


@pytest.mark.slow
async def test_a_server_whose_grace_is_over_does_not_wait(
    tmp_path: Path, database_url: str, own_key: str, simulator: SimulatorProcess
) -> None:
    with own_gateway(tmp_path, database_url, simulator, drain_grace_s=1) as gateway:
        async with connected(gateway.url, own_key) as peer:
            await peer.ask(ENDLESS, max_output_tokens=7001)
            await peer.hear_until(lambda frame: frame["type"].endswith(".delta"))
            gateway.child.terminate()
            assert (await peer.closed())[0] == 1012
        assert await asyncio.to_thread(gateway.child.exit_code) == 0
        assert "Exception in ASGI application" not in gateway.child.output
    simulator.until_request(lambda row: row["max_tokens"] == 7001 and row["aborted"])


@pytest.mark.slow
async def test_a_client_that_answers_no_ping_is_given_up(
    tmp_path: Path, database_url: str, own_key: str, simulator: SimulatorProcess
) -> None:
    pings = {"ping_interval_s": 0.1}
    with gateway_process(tmp_path, database_url, [simulator.url], websockets=pings) as gateway:
        async with connected(gateway.url, own_key, max_queue=1, close_timeout=0.1) as peer:
            await peer.ask(ENDLESS, max_output_tokens=7002)
            await asyncio.to_thread(
                simulator.until_request, lambda row: row["max_tokens"] == 7002 and row["aborted"]
            )


@pytest.mark.slow
async def test_the_wire_is_not_compressed_and_large_frames_end_it(
    gateway: GatewayProcess, key: str
) -> None:
    async with connected(gateway.url, key, compression="deflate") as peer:
        response = peer.connection.response
        assert response is not None
        assert "sec-websocket-extensions" not in response.headers
        frame = await peer.refusal("x" * (16 * 1024 * 1024))
        assert frame["status"] == 413
        assert await peer.response()
        with suppress(ConnectionClosed):
            await peer.ask("x" * (33 * 1024 * 1024))
        assert (await peer.closed())[0] == 1009


async def test_an_upgrade_without_a_key_is_answered_as_http(gateway: GatewayProcess) -> None:
    address = f"{gateway.base_url.replace('http', 'ws')}/responses"
    with pytest.raises(InvalidStatus) as refusal:
        async with connect(address, proxy=None):
            pass
    assert refusal.value.response.status_code == 401
    assert refusal.value.response.headers["x-request-id"].startswith("req_")
