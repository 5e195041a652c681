"""Two real servers of one model behind three replicas: what is expected to be cached is reported.

Their URLs are in TEST_FLEET_URLS, separated by commas. vLLM has to be started with
`--enable-prompt-tokens-details`, SGLang with `--enable-cache-report`.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.routed_sessions import later_turns

if TYPE_CHECKING:
    from tests.fakes.postgres import PostgresServer

URLS = tuple(filter(None, os.environ.get("TEST_FLEET_URLS", "").split(",")))
REPLICAS = 3
BLOCK_IDS = 128
"""On a CPU."""

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(len(URLS) < 2, reason="TEST_FLEET_URLS has no two servers"),
    pytest.mark.timeout(600),
]


async def test_what_is_expected_is_what_servers_report(
    postgres: PostgresServer, template: str
) -> None:
    name = await postgres.create(template)
    settings = gateway_settings(postgres.database_url(name), URLS)
    async with AsyncExitStack() as stack:
        gateways = [
            await stack.enter_async_context(running_gateway(settings)) for _ in range(REPLICAS)
        ]
        clients = [
            await stack.enter_async_context(http_client(gateway.url, headers=gateways[0].headers))
            for gateway in gateways
        ]
        (model,) = gateways[0].process.default.foundation.pool.models()
        hits = await later_turns(gateways, clients, model.id)
        near = [abs(hit.expected - hit.reported) <= BLOCK_IDS for hit in hits]
        print(f"within a block: {sum(near)} of {len(hits)}; {hits}")
        assert sum(near) >= 0.95 * len(hits)
    await postgres.drop(name)
