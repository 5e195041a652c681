"""More is asked of a real server than it can do."""

from __future__ import annotations

import asyncio
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.gateway import running_gateway
from tests.fakes.http_client import http_client
from tests.fleet.conftest import TIMEOUT_S, URLS
from tests.vllm.patience import patient_settings

if TYPE_CHECKING:
    import httpx2

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not URLS, reason="TEST_FLEET_URLS has no server"),
]

CLIENTS = 96
LASTS_S = 20.0
SLOTS = 64
ADMISSION = {"first_token_target_s": 0.3, "wait_max_s": 1.0}


async def test_it_is_sent_what_it_can_do_in_time(database_url: str) -> None:
    settings = patient_settings(database_url, URLS[:1], admission=ADMISSION)
    async with (
        running_gateway(settings) as gateway,
        http_client(gateway.url, headers=gateway.headers, timeout=TIMEOUT_S) as client,
    ):
        model = gateway.process.foundation.pool.models[0].id
        answers: list[httpx2.Response] = []
        until = asyncio.get_running_loop().time() + LASTS_S

        async def ask(number: int) -> None:
            body: dict[str, Any] = {"model": model, "input": f"Hi {number}", "store": False}
            while asyncio.get_running_loop().time() < until:
                answer = await client.post("/v1/responses", json={**body, "max_output_tokens": 48})
                answers.append(answer)
                if answer.status_code == 503:
                    await asyncio.sleep(float(answer.headers["retry-after"]))

        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(ask(number))
            await asyncio.sleep(LASTS_S / 2)
            saturated = (await client.get("/readyz")).json()
        learned = (await client.get("/readyz")).json()["admission"]["slots"]
        codes = Counter(answer.status_code for answer in answers)
        waits = [answer.headers["retry-after"] for answer in answers if answer.status_code == 503]
        print(f"{codes}; Retry-After {Counter(waits)}; slots {learned}; {saturated['admission']}")
        assert set(codes) == {200, 503}
        assert all(int(wait) >= 1 for wait in waits)
        assert saturated["admission"]["saturation"] > 1
        assert learned != {"b0": SLOTS}
        taken = [answer.elapsed.total_seconds() for answer in answers if answer.status_code == 200]
        print(f"answered in {median(taken):.2f} s, at most {max(taken):.2f} s")
        asked = {"model": model, "input": "Hi", "max_output_tokens": 16}
        assert (await client.post("/v1/responses", json=asked)).status_code == 200
