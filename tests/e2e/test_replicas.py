"""Two replicas, one database: what one has answered the other continues at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.http_client import http_client

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.processes import GatewayProcess

AT_ONCE = 16
BRIEF = "[[sim think=none say=ok]] go"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("chains", [200, pytest.param(1000, marks=pytest.mark.nightly)])
async def test_chains_change_replicas_without_a_miss(
    chains: int, replicas: tuple[GatewayProcess, GatewayProcess], key: str
) -> None:
    first, second = (f"{replica.base_url}/responses" for replica in replicas)
    places = asyncio.Semaphore(AT_ONCE)
    misses: list[Any] = []

    async def chain(client: httpx2.AsyncClient) -> None:
        async with places:
            begun = await _create(client, first)
            continued = await _create(client, second, previous_response_id=begun["id"])
        before, after = begun.get("usage"), continued.get("usage")
        known = before and after and after["input_tokens"] > sum(_tokens(before))
        if not known or continued["output"][0]["content"][0]["text"] != "ok":
            misses.append((begun, continued))

    headers = {"authorization": f"Bearer {key}"}
    async with http_client(headers=headers, timeout=60, trust_env=False) as client:
        await asyncio.gather(*(chain(client) for _ in range(chains)))
    assert not misses, f"{len(misses)} of {chains}, such as {misses[0]}"


async def _create(client: httpx2.AsyncClient, url: str, **fields: Any) -> Any:
    answer = await client.post(url, json={"model": "gpt-oss-20b", "input": BRIEF, **fields})
    return answer.json() if answer.status_code == 200 else {"id": None, "refused": answer.text}


def _tokens(usage: dict[str, int]) -> tuple[int, int]:
    return usage["input_tokens"], usage["output_tokens"]
