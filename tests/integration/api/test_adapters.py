"""LoRA adapters as clients see them: models with a parent, asked for rightly at each engine."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import httpx2
import pytest

from gateway.settings.sections import Model
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.serving import serving
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.postgres import PostgresServer

BASE = "gpt-oss-20b"
ENGINES = {
    "vllm": WaywardOptions(adapters=("ad",)),
    "sglang": WaywardOptions(engine="sglang", adapters=("ad",)),
    "sglang rust": WaywardOptions(engine="sglang", frontend="rust", adapters=("ad",)),
}


@asynccontextmanager
async def client_of(
    postgres: PostgresServer, template: str, options: WaywardOptions, *models: Model
) -> AsyncIterator[tuple[httpx2.AsyncClient, str]]:
    """A client of a gateway over one such backend, and that one's URL."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(create_simulator(options)))
        name = await postgres.create(template)
        stack.push_async_callback(postgres.drop, name)
        settings = gateway_settings(postgres.database_url(name), [url])
        settings = settings.model_copy(update={"models": models})
        running = await stack.enter_async_context(running_gateway(settings))
        client = httpx2.AsyncClient(
            base_url=running.url, headers=running.headers, trust_env=False, timeout=30.0
        )
        yield await stack.enter_async_context(client), url


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
async def test_adapters_of_a_model_are_models_with_a_parent(
    postgres: PostgresServer, template: str, engine: str
) -> None:
    base = Model(id=BASE, adapters=True, reasoning_effort="high")
    async with client_of(postgres, template, ENGINES[engine], base) as (client, url):
        listed = (await client.get("/v1/models")).json()["data"]
        assert [(row["id"], row["parent"]) for row in listed] == [(BASE, None), ("ad", BASE)]
        assert {row["reasoning_effort"] for row in listed} == {"high"}
        assert {row["context_length"] for row in listed} == {131_072}
        for model in ("ad", BASE):
            body = {"model": model, "input": "Hello", "include": ["message.output_text.logprobs"]}
            for asked in (body, {**body, "include": []}):
                answer = await client.post("/v1/responses", json=asked)
                assert (answer.status_code, answer.json()["status"]) == (200, "completed")
                assert answer.json()["model"] == model
        async with httpx2.AsyncClient(trust_env=False) as bare:
            seen = (await bare.get(f"{url}/simulator/requests")).json()
    asked_for = [one["adapter"] for one in seen["requests"]]
    assert asked_for == ["ad", "ad", None, None]


@pytest.mark.slow
async def test_adapters_are_served_only_where_that_was_decided(
    postgres: PostgresServer, template: str
) -> None:
    options = ENGINES["vllm"]
    async with client_of(postgres, template, options, Model(id=BASE)) as (client, _):
        assert [row["id"] for row in (await client.get("/v1/models")).json()["data"]] == [BASE]
        answer = await client.post("/v1/responses", json={"model": "ad", "input": "Hello"})
        assert answer.status_code == 404
