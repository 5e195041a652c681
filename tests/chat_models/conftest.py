"""Gateways in this process in front of real servers of one model with a chat template.

TEST_CHAT_URLS has the URLs of one or more servers, vLLM or SGLang, with commas between them; they
serve the same model. TEST_CHAT_TOKENIZER is the folder with its tokenizer. With several servers
each test runs in front of each of them, and of all together.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.fakes.gateway import running_gateway
from tests.fakes.serving import serving
from tests.vllm.patience import PATIENT_S, patient, patient_settings
from tests.vllm.recording import Recorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from tests.fakes.gateway import RunningGateway
    from tests.fakes.postgres import PostgresServer

URLS = tuple(os.environ.get("TEST_CHAT_URLS", "").replace(",", " ").split())
TOKENIZER = os.environ.get("TEST_CHAT_TOKENIZER", "")
TIMEOUT_S = 600.0
SECTIONS: dict[str, Any] = {
    "generation": {"refusals": False},
    "tools": {
        "python": {"enabled": True, "engine": "monty"},
        "mcp": {
            "enabled": True,
            "url_networks": ["127.0.0.0/8"],
            "url_plain_http": True,
            "connect_timeout_s": PATIENT_S,
            "list_timeout_s": PATIENT_S,
        },
    },
}
FLEETS = {url: (url,) for url in URLS} | ({"all": URLS} if len(URLS) > 1 else {})


@pytest.fixture(scope="session", autouse=True)
def _patience() -> Iterator[None]:
    with patient():
        yield


@dataclass
class Fleet:
    """A client of a gateway in front of these servers, each behind a recorder."""

    urls: Sequence[str]
    model: str
    client: httpx2.AsyncClient
    recorders: list[Recorder] = field(default_factory=list)

    @property
    def prompts(self) -> list[list[int]]:
        """The prompts that were completed, by all servers."""
        return [one.prompt for recorder in self.recorders for one in recorder.exchanges]

    async def rendered(self, messages: list[dict[str, Any]], **fields: Any) -> list[int]:
        """What the first server makes of a conversation."""
        body = {"model": self.model, "messages": messages, **fields}
        async with httpx2.AsyncClient(trust_env=False, timeout=TIMEOUT_S) as client:
            answer = await client.post(f"{self.urls[0]}/tokenize", json=body)
        ids: list[int] = answer.json()["tokens"]
        return ids


async def model_at(url: str) -> str:
    """The first model of a server."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        return str((await client.get(f"{url}/v1/models")).json()["data"][0]["id"])


def settings_of(database_url: str, urls: Sequence[str], model: str, **sections: Any) -> Any:
    """Settings of a gateway in front of these."""
    models = [{"id": model, "format": "chat", "tokenizer": TOKENIZER}]
    return patient_settings(database_url, urls, models=models, **SECTIONS, **sections)


@pytest.fixture(scope="session")
async def database_url_of_all(postgres: PostgresServer, template: str) -> AsyncIterator[str]:
    """The database of all tests here."""
    name = await postgres.create(template)
    yield postgres.database_url(name)
    await postgres.drop(name)


@pytest.fixture(scope="session", params=FLEETS or ["none"])
async def standing(
    request: pytest.FixtureRequest, database_url_of_all: str
) -> AsyncIterator[tuple[RunningGateway, Fleet]]:
    """A gateway and what is behind it. Skips where there is no server."""
    if not URLS:
        pytest.skip("needs servers: set TEST_CHAT_URLS and TEST_CHAT_TOKENIZER")
    urls = FLEETS[request.param]
    model = await model_at(urls[0])
    async with AsyncExitStack() as stack:
        recorders, ways = [], []
        for url in urls:
            client = httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False)
            recorder = Recorder(await stack.enter_async_context(client))
            recorders.append(recorder)
            ways.append(await stack.enter_async_context(serving(recorder)))
        settings = settings_of(database_url_of_all, ways, model)
        running = await stack.enter_async_context(running_gateway(settings))
        opened = httpx2.AsyncClient(
            base_url=running.url, headers=running.headers, timeout=TIMEOUT_S, trust_env=False
        )
        client = await stack.enter_async_context(opened)
        yield running, Fleet(urls, model, client, recorders)


@pytest.fixture
def fleet(standing: tuple[RunningGateway, Fleet]) -> Fleet:
    """The same, with nothing recorded yet."""
    for recorder in standing[1].recorders:
        recorder.exchanges.clear()
    return standing[1]
