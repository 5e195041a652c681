"""One process in front of two databases: each tenant's data is in its own, and found by its key."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.fakes.gateway import gateway_settings, new_key, running_gateway
from tests.fakes.http_client import http_client
from tests.integration.api.bodies import create
from tests.integration.api.following import (
    DONE,
    created,
    id_in,
    is_delta,
    listed,
    resumed,
    taken,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from tests.fakes.gateway import RunningGateway
    from tests.fakes.observation import Backends
    from tests.fakes.postgres import PostgresServer

BACKGROUND = "[[sim tokens_per_s=200 tokens=60 think=none]] go"


@dataclass(frozen=True)
class Two:
    """A gateway, a client of a tenant in each of its databases, and the names of these."""

    gateway: RunningGateway
    home: httpx2.AsyncClient
    away: httpx2.AsyncClient
    databases: tuple[str, str]


@pytest.fixture
async def two(postgres: PostgresServer, template: str, backends: Backends) -> AsyncIterator[Two]:
    names = (await postgres.create(template), await postgres.create(template))
    async with serving_two(postgres, names, backends) as running:
        yield running
    for name in names:
        await postgres.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@asynccontextmanager
async def serving_two(
    postgres: PostgresServer, names: tuple[str, str], backends: Backends
) -> AsyncIterator[Two]:
    home, away = map(postgres.database_url, names)
    alone = gateway_settings(home, backends.urls)
    database = {
        **alone.database.model_dump(),
        "others": [{"name": "away", "url": away}],
    }
    settings = gateway_settings(home, backends.urls, database=database)
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway(settings))
        key = await new_key(settings.of_database("away"), "globex")
        clients = [
            await stack.enter_async_context(
                http_client(gateway.url, headers={"authorization": f"Bearer {one}"})
            )
            for one in (gateway.key, key)
        ]
        yield Two(gateway, clients[0], clients[1], names)


async def rows(postgres: PostgresServer, name: str) -> int:
    query = "SELECT count(*) AS n FROM responses"
    return int((await postgres.fetch(query, url=postgres.database_url(name)))[0]["n"])


async def test_each_tenant_is_served_from_the_database_it_is_in(
    two: Two, postgres: PostgresServer
) -> None:
    ids = []
    for client in (two.home, two.away):
        ids.append((await create(client, input="hello"))["id"])
        await create(client, input="and again", previous_response_id=ids[-1])
    assert [await rows(postgres, name) for name in two.databases] == [2, 2]
    assert (await two.home.get(f"/v1/responses/{ids[0]}")).status_code == 200
    assert (await two.away.get(f"/v1/responses/{ids[0]}")).status_code == 404
    assert (await two.away.get(f"/v1/responses/{ids[1]}")).status_code == 200


async def test_a_durable_stream_of_either_database_is_resumed(two: Two) -> None:
    for client in (two.home, two.away):
        seen = await taken(created(client, input=BACKGROUND), is_delta)
        rest = await listed(resumed(client, id_in(seen), after=len(seen) - 1))
        assert rest[-1] == DONE
        assert await listed(resumed(client, id_in(seen))) == [*seen, *rest]


async def test_a_database_that_is_away_takes_only_its_own_tenants_along(
    two: Two, postgres: PostgresServer
) -> None:
    await postgres.drop(two.databases[1])
    await create(two.home, input="still here")
    ready = await two.home.get("/readyz")
    assert ready.status_code == 200
    assert any(warning.startswith("away: the database") for warning in ready.json()["warnings"])
    unknown = await two.home.get("/v1/models", headers={"authorization": "Bearer sk-unknown"})
    assert unknown.status_code == 503
    assert (await two.away.get("/v1/models")).status_code == 503


async def test_a_key_of_no_database_is_refused(two: Two) -> None:
    answer = await two.home.get("/v1/models", headers={"authorization": "Bearer sk-unknown"})
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
