from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.errors import KeyTaken
from gateway.store import responses
from gateway.store.responses import IdempotencyKey
from tests.fakes.stored import durable_response

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database
    from gateway.store.responses import NewResponse
    from gateway.tenancy import TenantId


@pytest.fixture
def database(shared_database: Database) -> Database:
    return shared_database


def keyed(*, key: bytes = b"key", fingerprint: bytes = b"print", ttl_s: float = 600) -> NewResponse:
    return replace(durable_response(), idempotency=IdempotencyKey(key, fingerprint, ttl_s))


async def test_a_key_stands_for_the_response_that_was_made_with_it(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    new = keyed()
    await responses.insert(database, tenant, new)
    assert await responses.find_key(database, tenant, b"key", ttl_s=600) == (b"print", new.uuid)
    assert await responses.find_key(database, tenant, b"another", ttl_s=600) is None
    assert await responses.find_key(database, other_tenant, b"key", ttl_s=600) is None


async def test_a_key_that_is_taken_leaves_nothing_of_the_second_response(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    first, second = keyed(), keyed(fingerprint=b"other")
    await responses.insert(database, tenant, first)
    with pytest.raises(KeyTaken):
        await responses.insert(database, tenant, second)
    assert await responses.load(database, tenant, second.uuid) is None
    await responses.insert(database, other_tenant, second)


async def test_of_requests_that_come_at_once_one_gets_the_key(
    database: Database, tenant: TenantId
) -> None:
    for round_ in range(5):
        many = [keyed(key=bytes([round_])) for _ in range(5)]
        outcomes = await asyncio.gather(
            *[responses.insert(database, tenant, new) for new in many], return_exceptions=True
        )
        assert sorted(map(str, map(type, outcomes))) == sorted(
            [str(type(None)), *[str(KeyTaken)] * 4]
        )
        use = await responses.find_key(database, tenant, bytes([round_]), ttl_s=600)
        assert use is not None
        assert use.uuid == many[outcomes.index(None)].uuid


async def test_an_old_key_is_free_again(database: Database, tenant: TenantId) -> None:
    first, second = keyed(), keyed(fingerprint=b"new", ttl_s=0)
    await responses.insert(database, tenant, first)
    assert await responses.find_key(database, tenant, b"key", ttl_s=0) is None
    await responses.insert(database, tenant, second)
    use = await responses.find_key(database, tenant, b"key", ttl_s=600)
    assert use == (b"new", second.uuid)


async def test_the_key_of_a_deleted_response_is_free(database: Database, tenant: TenantId) -> None:
    new = keyed()
    await responses.insert(database, tenant, new)
    assert await responses.delete(database, tenant, new.uuid)
    assert await responses.find_key(database, tenant, b"key", ttl_s=600) is None
