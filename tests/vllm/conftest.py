"""The gateway in this process in front of a real server: a vLLM, whose URL is in TEST_VLLM_URL, or
an SGLang, whose URL is in TEST_SGLANG_URL. The suite is the same, but for what SGLang cannot do."""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import httpx2
import pytest

from gateway.services.runs.compaction import CompactionLimits, Compactor
from gateway.settings.sections import Backend
from tests.fakes.bounds import bounds
from tests.fakes.gateway import running_gateway
from tests.fakes.serving import serving
from tests.vllm.patience import patient, patient_settings
from tests.vllm.recording import Recorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.fakes.gateway import RunningGateway
    from tests.fakes.postgres import PostgresServer

Kind = Literal["vllm", "sglang"]

VARIABLES: dict[Kind, str] = {"vllm": "TEST_VLLM_URL", "sglang": "TEST_SGLANG_URL"}
TIMEOUT_S = 600.0
WAIT_S = 120.0
SUMMARY_TOKENS_MAX = 200
PREAMBLE_TOKENS_MAX = 12
STEP_S = 0.05


@pytest.fixture(scope="session", autouse=True)
def _patience() -> Iterator[None]:
    with patient():
        yield


@dataclass(frozen=True)
class Readings:
    """How an engine spells in its metrics what the suite reads there.

    `counted`: the requests of which it has said what it found in its cache. SGLang says so of one
    that has ended (`TokenizerManager.collect_metrics`, where `state.finished`), vLLM (None) of one
    that begins.
    """

    in_flight: re.Pattern[str]
    cached: re.Pattern[str]
    block: re.Pattern[str]
    counted: re.Pattern[str] | None = None


READINGS: dict[Kind, Readings] = {
    "vllm": Readings(
        re.compile(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", re.MULTILINE),
        re.compile(r"^vllm:prefix_cache_hits_total\{.*\} (\S+)$", re.MULTILINE),
        re.compile(r'^vllm:cache_config_info\{.*[,{]block_size="(\d+)"', re.MULTILINE),
    ),
    "sglang": Readings(
        re.compile(r"^sglang:num_(?:running|queue|grammar_queue)_reqs\{.*\} (\S+)$", re.MULTILINE),
        re.compile(r"^sglang:cached_tokens_total\{.*\} (\S+)$", re.MULTILINE),
        re.compile(r"^sglang:page_size\{.*\} (\d+)", re.MULTILINE),
        re.compile(r"^sglang:num_requests_total\{.*\} (\S+)$", re.MULTILINE),
    ),
}


@dataclass(frozen=True)
class Vllm:
    """The server, which may be an SGLang as well, and its first model."""

    engine: Kind
    url: str
    model: str
    context_length: int

    async def until_idle(self) -> None:
        """Wait until it neither runs nor queues a request; raises TimeoutError."""
        await self._until(busy=False)

    async def until_busy(self) -> None:
        """Wait until it has something to do; raises TimeoutError."""
        await self._until(busy=True)

    async def cached_tokens(self) -> int:
        """How many tokens of prompts it has found in its prefix cache, of all requests counted."""
        return int(await self._sum(self._readings.cached))

    async def counted(self) -> int:
        """How many requests that is; 0 where none has to be waited for."""
        counted = self._readings.counted
        return int(await self._sum(counted)) if counted else 0

    async def until_counted(self, requests: int) -> None:
        """Wait until it is so many; raises TimeoutError."""
        if self._readings.counted is None:
            return
        async with asyncio.timeout(WAIT_S):
            while await self.counted() < requests:  # noqa: ASYNC110 - not ours
                await asyncio.sleep(STEP_S)

    async def block_tokens(self) -> int:
        """How many tokens it caches together."""
        found = self._readings.block.search(await self._metrics())
        assert found is not None
        return int(found[1])

    async def _until(self, *, busy: bool) -> None:
        async with asyncio.timeout(WAIT_S):
            while bool(await self._sum(self._readings.in_flight)) is not busy:  # noqa: ASYNC110
                await asyncio.sleep(STEP_S)

    async def _sum(self, wanted: re.Pattern[str]) -> float:
        return sum(map(float, wanted.findall(await self._metrics())))

    @property
    def _readings(self) -> Readings:
        return READINGS[self.engine]

    async def _metrics(self) -> str:
        async with httpx2.AsyncClient(trust_env=False) as client:
            return (await client.get(f"{self.url}/metrics")).text


def _chosen() -> tuple[Kind, str]:
    """The engine and its URL. Skips where there is none."""
    for engine, variable in VARIABLES.items():
        if url := os.environ.get(variable):
            return engine, url
    pytest.skip(f"needs a server: set {' or '.join(VARIABLES.values())}")


@pytest.fixture(scope="session")
async def vllm() -> Vllm:
    """Skips where there is none."""
    engine, url = _chosen()
    async with httpx2.AsyncClient(trust_env=False) as client:
        (served, *_) = (await client.get(f"{url}/v1/models")).json()["data"]
    return Vllm(engine, url, served["id"], served["max_model_len"])


@pytest.fixture(autouse=True)
def only_what_it_can(request: pytest.FixtureRequest, vllm: Vllm) -> None:
    """Skips what is marked as beyond this engine, with the reason."""
    marker = request.node.get_closest_marker("beyond_sglang")
    if marker is not None and vllm.engine == "sglang":
        pytest.skip(marker.args[0])


@pytest.fixture(scope="session")
def model(vllm: Vllm) -> str:
    """The name of its model."""
    return vllm.model


@pytest.fixture(scope="session")
async def recorder(vllm: Vllm) -> AsyncIterator[Recorder]:
    """Notes the ids that go to and come from the server."""
    async with httpx2.AsyncClient(base_url=vllm.url, timeout=TIMEOUT_S, trust_env=False) as client:
        yield Recorder(client)


@pytest.fixture(scope="session")
async def database_url_of_all(postgres: PostgresServer, template: str) -> AsyncIterator[str]:
    """The database of all tests here."""
    name = await postgres.create(template)
    yield postgres.database_url(name)
    await postgres.drop(name)


@pytest.fixture(scope="session")
async def gateway(vllm: Vllm, database_url_of_all: str) -> AsyncIterator[RunningGateway]:
    """Directly in front of the server."""
    async with running_gateway(patient_settings(database_url_of_all, [vllm.url])) as running:
        yield running


@pytest.fixture(scope="session")
async def free_gateway(vllm: Vllm, database_url_of_all: str) -> AsyncIterator[RunningGateway]:
    """In front of the same server, of which it asks no grammars."""
    settings = patient_settings(database_url_of_all, [])
    free = settings.model_copy(
        update={"backends": (Backend(name="b0", url=vllm.url, grammars="off"),)}
    )
    async with running_gateway(free) as running:
        yield running


@pytest.fixture(scope="session")
async def blunt_gateway(vllm: Vllm, database_url_of_all: str) -> AsyncIterator[RunningGateway]:
    """In front of the same server; the model may not refuse to answer in a format."""
    blunt = {"refusals": False}
    settings = patient_settings(database_url_of_all, [vllm.url], generation=blunt)
    async with running_gateway(settings) as running:
        yield running


@pytest.fixture(scope="session")
async def brief_gateway(vllm: Vllm, database_url_of_all: str) -> AsyncIterator[RunningGateway]:
    """In front of the same server; it allows few words before a call that is required."""
    settings = patient_settings(database_url_of_all, [vllm.url])
    async with AsyncExitStack() as stack:
        with bounds("replica.GuardLimits", preamble_tokens_max=PREAMBLE_TOKENS_MAX):
            running = await stack.enter_async_context(running_gateway(settings))
        yield running


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the gateway."""
    async with _client_of(gateway) as opened:
        yield opened


@pytest.fixture
async def free_client(free_gateway: RunningGateway) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a gateway without grammars."""
    async with _client_of(free_gateway) as opened:
        yield opened


@pytest.fixture
async def blunt_client(blunt_gateway: RunningGateway) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a gateway whose grammars have no refusals."""
    async with _client_of(blunt_gateway) as opened:
        yield opened


@pytest.fixture
async def brief_client(brief_gateway: RunningGateway) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a gateway that allows short preambles only."""
    async with _client_of(brief_gateway) as opened:
        yield opened


@pytest.fixture(scope="session")
async def recorded_gateway(
    recorder: Recorder, database_url_of_all: str
) -> AsyncIterator[RunningGateway]:
    """Its backend is the recorder; its summaries are short."""
    async with serving(recorder) as url:
        settings = patient_settings(database_url_of_all, [url])
        short = partial(Compactor, limits=CompactionLimits(SUMMARY_TOKENS_MAX))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gateway.wiring.process.Compactor", short)
            async with running_gateway(settings) as running:
                yield running


@pytest.fixture
async def recorded_client(recorded_gateway: RunningGateway) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a gateway whose backend is the recorder."""
    async with _client_of(recorded_gateway) as opened:
        yield opened


def _client_of(gateway: RunningGateway) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        base_url=gateway.url, headers=gateway.headers, timeout=TIMEOUT_S, trust_env=False
    )
