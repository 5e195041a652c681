"""Replicas in this process in front of several real servers of one model, of whatever engines.

TEST_FLEET_URLS has their URLs, with commas between them. TEST_FLEET_RESTART is needed where servers
are killed: a program that is given a URL, kills the server there, starts it anew and ends when that
answers.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx2
import pytest

from gateway.store import backend_reports
from tests.fakes.gateway import running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving
from tests.vllm.patience import patient, patient_settings
from tests.vllm.recording import Recorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from gateway.settings import Settings
    from gateway.store.postgres.database import Database
    from gateway.upstreams.member import Member
    from tests.fakes.gateway import RunningGateway

URLS = tuple(filter(None, os.environ.get("TEST_FLEET_URLS", "").split(",")))
RESTART = os.environ.get("TEST_FLEET_RESTART", "")
REPLICAS = 3
TIMEOUT_S = 600.0
WAIT_S = 240.0
STEP_S = 0.05


@pytest.fixture(scope="session", autouse=True)
def _patience() -> Iterator[None]:
    with patient(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.upstreams.backend_sources.DRAIN_POLL_S", STEP_S)
        yield


@dataclass(frozen=True)
class Fleet:
    """Three replicas, a client of each, and the servers behind recorders: b0, b1, …; `settings` are
    those of each replica.
    """

    settings: Settings
    gateways: tuple[RunningGateway, ...]
    clients: tuple[httpx2.AsyncClient, ...]
    recorders: tuple[Recorder, ...]
    database: Database

    @property
    def model(self) -> str:
        """The first model that the servers have."""
        return self.gateways[0].process.foundation.pool.models[0].id

    async def use(self, *numbers: int) -> None:
        """Send what is new to these servers only, from all replicas."""
        for number in range(len(URLS)):
            if number in numbers:
                await backend_reports.undrain(self.database, f"b{number}")
            else:
                await backend_reports.drain(self.database, f"b{number}", by="test")
        await self.until(lambda one: one.is_drained == (int(one.name[1:]) not in numbers))

    async def until_healthy(self) -> None:
        """Wait until each replica can reach each server."""
        await self.until(lambda one: one.healthy is True)

    async def until(self, holds: Callable[[Member], bool]) -> None:
        """Wait until that holds of every server at every replica; raises TimeoutError."""
        pools = [gateway.process.foundation.pool for gateway in self.gateways]
        async with asyncio.timeout(WAIT_S):
            while not all(holds(one) for pool in pools for one in pool.members()):  # noqa: ASYNC110
                await asyncio.sleep(STEP_S)


async def restarted(number: int) -> None:
    """Kill this server; returns when another one answers in its place."""
    process = await asyncio.create_subprocess_exec(RESTART, URLS[number])
    assert await process.wait() == 0


@pytest.fixture
async def fleet(database_url: str, database: Database) -> AsyncIterator[Fleet]:
    """Skips where there are no two servers."""
    if len(URLS) < 2:
        pytest.skip("TEST_FLEET_URLS has no two servers")
    async with AsyncExitStack() as stack:
        recorders, ways = [], []
        for url in URLS:
            client = httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False)
            recorder = Recorder(await stack.enter_async_context(client))
            recorders.append(recorder)
            ways.append(await stack.enter_async_context(serving(recorder)))
        settings = patient_settings(database_url, ways)
        gateways = [
            await stack.enter_async_context(running_gateway(settings)) for _ in range(REPLICAS)
        ]
        clients = [
            await stack.enter_async_context(
                http_client(gateway.url, headers=gateways[0].headers, timeout=TIMEOUT_S)
            )
            for gateway in gateways
        ]
        standing = Fleet(settings, tuple(gateways), tuple(clients), tuple(recorders), database)
        await standing.until_healthy()
        yield standing


@pytest.fixture
def restarts() -> None:
    """Skips where no server may be killed."""
    if not RESTART:
        pytest.skip("TEST_FLEET_RESTART names no program")
