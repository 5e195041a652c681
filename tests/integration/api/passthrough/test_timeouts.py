"""How long servers that return text are waited for, and what is done when it was for nothing."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving
from tests.fakes.stream import stream, texts
from tests.fakes.text_server import Said, TextServer, text
from tests.integration.api.bodies import create, refused
from tests.integration.api.following import created, ended, id_in, is_delta, listed, resumed, taken
from tests.integration.api.passthrough.conftest import model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from gateway.settings import Settings
    from tests.fakes.gateway import RunningGateway

LONG = "A long answer, in pieces of a few characters."
PATIENCE_S = 1.0
NAME = "toy-text"
SEEN = 4
"""By that event something was said of the answer."""


@dataclass
class Impatient:
    """A client of a gateway that soon loses patience with two servers of one model."""

    client: httpx2.AsyncClient
    running: RunningGateway
    settings: Settings
    servers: list[TextServer]

    @property
    def asked(self) -> list[int]:
        """How often each server was asked, the busiest first."""
        return sorted((len(server.asked) for server in self.servers), reverse=True)

    def one_is_silent(self, *, at: int) -> asyncio.Event:
        """Whichever server is asked first says nothing from its event of that number on, until this
        is set.
        """
        silence = self.all_are_silent(at=at)

        def script(_: object) -> list[Said]:
            for server in self.servers:
                server.holds = None
            return text(LONG)

        for server in self.servers:
            server.script = script
        return silence

    def all_are_silent(self, *, at: int) -> asyncio.Event:
        """The next turn of each is."""
        silence = asyncio.Event()
        for server in self.servers:
            server.holds, server.holds_at = silence, at
        return silence


@pytest.fixture(scope="module")
async def gateway(own_database_url: str) -> AsyncIterator[Impatient]:
    servers = [TextServer(lambda _: [], "vllm", NAME) for _ in range(2)]
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving(server.app)) for server in servers]
        settings = gateway_settings(
            own_database_url,
            urls,
            models=[model(NAME)],
            upstream={"first_token_timeout_s": PATIENCE_S, "stall_timeout_s": PATIENCE_S},
        )
        running = await stack.enter_async_context(running_gateway(settings))
        client = http_client(running.url, headers=running.headers)
        yield Impatient(await stack.enter_async_context(client), running, settings, servers)


@pytest.fixture
def impatient(gateway: Impatient) -> Impatient:
    """The same, with nothing asked yet and nothing out of order."""
    for server in gateway.servers:
        server.asked.clear()
        server.script = lambda _: text(LONG)
        server.holds = server.breaks_after = None
        server.abandoned = asyncio.Semaphore(0)
    return gateway


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 1], ids=["nothing", "a role"])
async def test_a_server_that_says_nothing_in_time_is_left_for_another(
    impatient: Impatient, at: int
) -> None:
    impatient.one_is_silent(at=at)
    events = await stream(impatient.client, {"model": NAME, "input": "go"})
    assert texts(events[-1]["response"]) == [LONG]
    assert impatient.asked == [1, 1]
    assert [one["type"] for one in events].count("response.created") == 1


@pytest.mark.slow
async def test_a_request_that_nobody_answers_in_time_fails_before_it_began(
    impatient: Impatient,
) -> None:
    impatient.all_are_silent(at=0)
    events = await stream(impatient.client, {"model": NAME, "input": "go"})
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["usage"]["estimated"] is True
    assert impatient.asked == [1, 1]
    impatient.all_are_silent(at=0)
    error = await refused(impatient.client, 502, model=NAME, input="go")
    assert "lost before it said anything" in error["message"]
    assert impatient.asked == [2, 2]


@pytest.mark.slow
async def test_a_request_for_json_fails_at_a_silence_in_a_turn_and_can_be_sent_again(
    impatient: Impatient,
) -> None:
    impatient.one_is_silent(at=SEEN)
    error = await refused(impatient.client, 502, model=NAME, input="go")
    assert "broke off while generating" in error["message"]
    assert impatient.asked == [1, 0]
    assert texts(await create(impatient.client, model=NAME, input="go")) == [LONG]


@pytest.mark.slow
async def test_a_stream_whose_beginning_was_seen_fails_at_a_silence(impatient: Impatient) -> None:
    impatient.one_is_silent(at=SEEN)
    last = (await stream(impatient.client, {"model": NAME, "input": "go"}))[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "server_error"
    assert [item["status"] for item in last["response"]["output"]] == ["incomplete"]
    assert impatient.asked == [1, 0]
    stored = await impatient.client.get(f"/v1/responses/{last['response']['id']}")
    assert stored.json() == last["response"]


@pytest.mark.slow
async def test_a_background_response_begins_anew_behind_a_silence(impatient: Impatient) -> None:
    impatient.one_is_silent(at=SEEN)
    frames = await listed(created(impatient.client, model=NAME, input="go"))
    made = (await impatient.client.get(f"/v1/responses/{id_in(frames)}")).json()
    assert [item["status"] for item in made["output"]] == ["incomplete", "completed"]
    assert texts(made)[-1] == LONG
    assert await listed(resumed(impatient.client, id_in(frames), 3)) == frames[4:]


@pytest.mark.slow
async def test_a_cancelled_response_leaves_its_server_in_the_middle_of_a_turn(
    impatient: Impatient,
) -> None:
    impatient.one_is_silent(at=SEEN)
    seen = await taken(created(impatient.client, model=NAME, input="go"), is_delta)
    cancelled = await impatient.client.post(f"/v1/responses/{id_in(seen)}/cancel")
    assert cancelled.json()["status"] == "cancelled"
    (server,) = (one for one in impatient.servers if one.asked)
    await server.abandoned.acquire()
    stored = await ended(impatient.client, id_in(seen))
    assert [item["status"] for item in stored["output"]] == ["incomplete"]
    assert LONG.startswith(texts(stored)[0])
    assert stored["usage"]["estimated"] is True
    assert impatient.asked == [1, 0]


@pytest.mark.slow
async def test_a_client_that_hangs_up_ends_the_turn_of_its_server(impatient: Impatient) -> None:
    impatient.one_is_silent(at=SEEN)
    foreground = created(impatient.client, model=NAME, input="go", background=False)
    await taken(foreground, is_delta)
    (server,) = (one for one in impatient.servers if one.asked)
    await server.abandoned.acquire()
    assert impatient.asked == [1, 0]
