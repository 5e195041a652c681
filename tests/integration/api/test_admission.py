"""What clients are told when the backends have enough to do, and what becomes of what waits."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gateway.upstreams.admission.admit import CLAIMED_AHEAD
from tests.fakes.bounds import bounds
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.stream import parse_stream
from tests.integration.api.bodies import MODEL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import httpx2

    from gateway.upstreams.admission.admit import Admission
    from tests.fakes.gateway import RunningGateway
    from tests.fakes.observation import Backends

ENDLESS = "[[sim tokens_per_s=100 tokens=100000 think=none]] go"
SHORT = "[[sim tokens=5 think=none]] go"


class Full:
    """A gateway with one slot at one backend, which a stream takes up until it is `freed`."""

    def __init__(self, gateway: RunningGateway, client: httpx2.AsyncClient) -> None:
        self.gateway = gateway
        self.client = client
        self._stream: asyncio.Task[None] | None = None

    @property
    def admission(self) -> Admission:
        admission = self.gateway.process.foundation.pool.admission
        assert admission is not None
        return admission

    async def fill(self) -> None:
        self._stream = asyncio.create_task(self._read())
        await until(lambda: self.admission.saturation == 1)

    async def _read(self) -> None:
        body = {"model": MODEL, "input": ENDLESS, "stream": True, "store": False}
        async with self.client.stream("POST", "/v1/responses", json=body) as answer:
            async for _ in answer.aiter_bytes():
                pass

    async def free(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            await asyncio.wait([self._stream])

    def ask(self, **more: Any) -> asyncio.Task[httpx2.Response]:
        body = {"model": MODEL, "input": SHORT, "store": False, **more}
        return asyncio.create_task(self.client.post("/v1/responses", json=body))

    async def status_of(self, response_id: str) -> str:
        answer = await self.client.get(f"/v1/responses/{response_id}")
        status: str = answer.json()["status"]
        return status

    async def until_waiting(self, count: int) -> None:
        await until(lambda: self.admission.waiting == count)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        for _ in iter(is_so, True):
            await asyncio.sleep(0)


@asynccontextmanager
async def full_gateway(
    database_url: str, backends: Backends, *, start_grace_s: float = 1.0, **policy: Any
) -> AsyncIterator[Full]:
    settings = gateway_settings(
        database_url,
        backends.urls[:1],
        admission={"slots_max": 1, **policy},
        stream={"start_grace_s": start_grace_s},
    )
    async with (
        running_gateway(settings) as gateway,
        http_client(gateway.url, headers=gateway.headers) as client,
    ):
        full = Full(gateway, client)
        await full.fill()
        yield full
        await full.free()
        await until(lambda: full.admission.saturation == 0)


@pytest.fixture
async def full(database_url: str, backends: Backends) -> AsyncIterator[Full]:
    async with full_gateway(database_url, backends) as opened:
        yield opened


@pytest.fixture
async def impatient(database_url: str, backends: Backends) -> AsyncIterator[Full]:
    with bounds("foundation.AdmissionPolicy", background_wait_max_s=0.05):
        async with full_gateway(database_url, backends, wait_max_s=0.05) as opened:
            yield opened


async def test_a_request_waits_until_there_is_room(full: Full) -> None:
    waiting = full.ask()
    await full.until_waiting(1)
    ready = await full.client.get("/readyz")
    assert ready.status_code == 200
    assert ready.json()["admission"] == {
        "queued": {"priority": 0, "default": 1, "background": 0},
        "slots": {"b0": 1},
        "saturation": 2.0,
    }
    await full.free()
    answer = await waiting
    assert (answer.status_code, answer.json()["status"]) == (200, "completed")


@pytest.mark.slow
async def test_flex_waits_behind_default(full: Full) -> None:
    flex = full.ask(service_tier="flex", input=ENDLESS)
    await full.until_waiting(1)
    default = full.ask()
    await full.until_waiting(2)
    await full.free()
    assert (await default).status_code == 200
    flex.cancel()
    await asyncio.wait([flex])


@pytest.mark.parametrize("store", [True, False])
async def test_a_client_that_hangs_up_waits_no_more(full: Full, store: bool) -> None:
    waiting = full.ask(store=store)
    await full.until_waiting(1)
    waiting.cancel()
    await full.until_waiting(0)


@pytest.mark.slow
async def test_a_cancelled_background_response_waits_no_more(full: Full) -> None:
    queued = (await full.ask(background=True, store=True)).json()
    assert queued["status"] == "queued"
    await full.until_waiting(1)
    assert full.admission.state().queued["background"] == 1
    answer = await full.client.post(f"/v1/responses/{queued['id']}/cancel")
    assert answer.json()["status"] == "cancelled"
    await full.until_waiting(0)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_what_waited_too_long_is_a_503_that_says_when_to_come_back(
    impatient: Full, path: str
) -> None:
    asked = (
        {"input": SHORT}
        if "responses" in path
        else {"messages": [{"role": "user", "content": SHORT}]}
    )
    answer = await impatient.client.post(path, json={"model": MODEL, "store": False, **asked})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "server_is_overloaded")
    assert "Retry-After" in error["message"]


@pytest.mark.slow
async def test_a_stream_that_waited_too_long_before_it_began_is_a_503_as_well(
    impatient: Full,
) -> None:
    answer = await impatient.ask(stream=True)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


@pytest.mark.slow
async def test_a_stream_that_has_begun_ends_with_a_failure(
    database_url: str, backends: Backends
) -> None:
    async with full_gateway(database_url, backends, start_grace_s=0, wait_max_s=0.5) as full:
        answer = await full.ask(stream=True)
        assert answer.status_code == 200
        last = parse_stream(answer.text)[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["error"]["code"] == "server_error"


@pytest.mark.slow
async def test_a_background_response_that_waited_too_long_fails(impatient: Full) -> None:
    queued = (await impatient.ask(background=True, store=True)).json()
    path = f"/v1/responses/{queued['id']}"
    async with asyncio.timeout(30):
        while (body := (await impatient.client.get(path)).json())["status"] in {
            "queued",
            "in_progress",
        }:
            pass
    assert (body["status"], body["error"]["code"]) == ("failed", "server_error")


@pytest.mark.slow
async def test_what_finds_no_room_waits_in_the_database_and_is_done_in_the_end(full: Full) -> None:
    accepted = [
        (await full.ask(background=True, store=True)).json()["id"] for _ in range(CLAIMED_AHEAD + 3)
    ]
    await full.until_waiting(CLAIMED_AHEAD)
    assert full.admission.claimable == 0
    await full.free()
    async with asyncio.timeout(30):
        for id_ in accepted:
            while await full.status_of(id_) != "completed":
                pass
    assert full.admission.claimable == 1 + CLAIMED_AHEAD


@pytest.mark.slow
async def test_a_full_queue_stores_nothing_of_what_it_refuses(
    database_url: str, backends: Backends
) -> None:
    async with full_gateway(database_url, backends, queue_length_max=1, wait_max_s=10) as full:
        waiting = full.ask()
        await full.until_waiting(1)
        answer = await full.ask(store=True)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
        accepted = await full.ask(background=True, store=True)
        assert accepted.json()["status"] == "queued"
        await full.free()
        assert (await waiting).status_code == 200


@pytest.mark.slow
async def test_without_admission_all_is_sent_at_once(database_url: str, backends: Backends) -> None:
    settings = gateway_settings(
        database_url, backends.urls[:1], admission={"enabled": False, "slots_max": 4}
    )
    async with (
        running_gateway(settings) as gateway,
        http_client(gateway.url, headers=gateway.headers) as client,
    ):
        assert gateway.process.foundation.pool.admission is None
        assert "admission" not in (await client.get("/readyz")).json()
        body = {"model": MODEL, "input": SHORT, "store": False}
        assert (await client.post("/v1/responses", json=body)).status_code == 200
