"""How the simulated SGLang answers for models: as the real one was recorded to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.http_client import http_client
from tests.fakes.raw_http import plain_prompt
from tests.fakes.serving import serving
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    import httpx2


async def asked(options: WaywardOptions, **fields: Any) -> httpx2.Response:
    body = {"prompt": plain_prompt("Hello"), "max_tokens": 4, "return_token_ids": True, **fields}
    async with serving(create_simulator(options)) as url, http_client(url) as client:
        answer = await client.post("/v1/completions", json=body)
        rows = (await client.get("/simulator/requests")).json()["requests"]
    answer.extensions["adapter"] = [row["adapter"] for row in rows]
    return answer


SGLANG = WaywardOptions(engine="sglang", models=("base",), adapters=("ad",))
VLLM = WaywardOptions(models=("base",), adapters=("ad",))


@pytest.mark.parametrize(
    ("options", "fields", "status", "adapters"),
    [
        (SGLANG, {"model": "base", "lora_path": "ad"}, 200, ["ad"]),
        (SGLANG, {"model": "ad"}, 200, [None]),
        (SGLANG, {"model": "no such"}, 200, [None]),
        (SGLANG, {"model": "base", "lora_path": "no such"}, 400, []),
        (VLLM, {"model": "ad"}, 200, ["ad"]),
        (VLLM, {"model": "base", "lora_path": "ad"}, 200, [None]),
        (VLLM, {"model": "no such"}, 404, []),
    ],
)
async def test_which_model_answers(
    options: WaywardOptions, fields: Any, status: int, adapters: list[str | None]
) -> None:
    answer = await asked(options, **fields)
    assert (answer.status_code, answer.extensions["adapter"]) == (status, adapters)


async def test_the_rust_frontend_gives_no_ids() -> None:
    rust = WaywardOptions(engine="sglang", frontend="rust")
    (choice,) = (await asked(rust)).json()["choices"]
    assert choice.get("token_ids") is None


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (SGLANG, 200),
        (WaywardOptions(engine="sglang", version="0.5.19"), 404),
        (WaywardOptions(engine="sglang", frontend="rust"), 404),
        (VLLM, 404),
    ],
)
async def test_who_has_a_flag_that_says_it_is_ready(options: WaywardOptions, status: int) -> None:
    async with serving(create_simulator(options)) as url, http_client(url) as client:
        assert (await client.get("/ready")).status_code == status
