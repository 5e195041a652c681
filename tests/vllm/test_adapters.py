"""An adapter is loaded into a real server, asked for by its name, and unloaded.

TEST_LORA_PATH is the folder of an adapter of the server's model, as the server sees it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from gateway.generation import Sampling, TokenRequest
from gateway.telemetry.metrics import Metrics
from gateway.upstreams.backend import Backend
from gateway.upstreams.http.client import build_client
from gateway.upstreams.lora_adapters import Adapters
from gateway.upstreams.pool import ModelInfo, Pool, PoolPolicy
from tests.fakes.token_sinks import Heard

if TYPE_CHECKING:
    from tests.vllm.conftest import Vllm

pytestmark = pytest.mark.vllm

NAME = "test-adapter"
PROMPT = [1, 872, 198, 39, 312, 75, 2, 198, 1]


async def ids_of(pool: Pool, model: str, logprobs: int | None) -> list[int]:
    heard = Heard()
    sampling = Sampling(max_tokens=12, temperature=0.0, logprobs=logprobs)
    request = TokenRequest(f"{model}-{logprobs}", model, PROMPT, sampling, "", (2,), 2000)
    await pool.generate(request, heard)
    return heard.ids


@pytest.mark.timeout(1800)
async def test_an_adapter_is_loaded_asked_for_and_unloaded(vllm: Vllm) -> None:
    path = os.environ.get("TEST_LORA_PATH")
    if not path:
        pytest.skip("needs an adapter of the server's model: set TEST_LORA_PATH")
    backend = Backend("real", vllm.url)
    client = build_client()
    adapters = Adapters([backend], client, ask_s=30.0, load_s=120.0)
    pool = Pool([backend], client, policy=PoolPolicy(), metrics=Metrics())
    try:
        for detail in ("loaded", "was there already"):
            (outcome,) = await adapters.load(NAME, path)
            assert (outcome.ok, outcome.detail) == (True, detail)
        await pool.start()
        assert ModelInfo(NAME, vllm.context_length, vllm.model) in pool.models
        base, own = await ids_of(pool, vllm.model, None), await ids_of(pool, NAME, None)
        assert base != own
        assert await ids_of(pool, NAME, 1) == own, "logprobs are asked of the adapter, too"
    finally:
        (outcome,) = await adapters.unload(NAME)
        await pool.close()
    assert outcome.ok
