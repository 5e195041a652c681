"""Keys of tenants in a process: asked for once, kept for a while, and never after they are gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from gateway.encryption.keyring import OFF, PLAIN, Keyring, KeyringPolicy
from gateway.errors import ContentSealed, StoreUnavailable
from gateway.store.postgres.database import Database
from gateway.store.tenant_keys import TenantKeys
from gateway.tenancy import TenantId
from tests.fakes.keys import MemoryKeys, MemoryProvider, sealing_keyring

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TENANT, OTHER = TenantId(UUID(int=1)), TenantId(UUID(int=2))


async def test_nothing_is_asked_where_nothing_is_sealed() -> None:
    await OFF.ready([TENANT])
    assert OFF.of(TENANT) is PLAIN
    assert not PLAIN.seals


async def test_a_key_is_asked_for_once_however_many_wait() -> None:
    keys = MemoryKeys()
    keyring = sealing_keyring(keys)
    await asyncio.gather(*(keyring.ready([TENANT, OTHER]) for _ in range(20)))
    assert [len(rows) for rows in keys.rows.values()] == [1, 1]
    assert keyring.of(TENANT).sealing == 1
    # One look to see that there is none, and one for what is there then.
    assert keys.reads == 4


async def test_two_processes_make_one_key() -> None:
    keys = MemoryKeys()
    one, two = sealing_keyring(keys), sealing_keyring(keys)
    await asyncio.gather(one.ready([TENANT]), two.ready([TENANT]))
    assert len(keys.rows[TENANT]) == 1
    sealed = one.of(TENANT).seal(b"words", "a.b")
    assert two.of(TENANT).open(sealed, "a.b") == b"words"


async def test_only_listed_tenants_have_keys_where_it_is_so() -> None:
    keyring = Keyring(MemoryKeys(), [MemoryProvider()], KeyringPolicy(seals_all=False))
    await keyring.ready([TENANT])
    assert not keyring.of(TENANT).seals
    await keyring.add(TENANT, 1)
    keyring.forget(TENANT)
    await keyring.ready([TENANT])
    assert keyring.of(TENANT).seals


async def test_known_tenants_go_on_while_the_provider_is_away() -> None:
    keys, provider = MemoryKeys(), MemoryProvider()
    always_old = KeyringPolicy(seals_all=True, fresh_s=-1, stale_s=60)
    keyring = Keyring(keys, [provider], always_old)
    await keyring.ready([TENANT])
    provider.is_away = True
    await keyring.ready([TENANT])
    assert keyring.of(TENANT).seals
    with pytest.raises(StoreUnavailable):
        await keyring.ready([OTHER])
    with pytest.raises(StoreUnavailable):
        keyring.of(OTHER)
    too_old = Keyring(keys, [provider], KeyringPolicy(fresh_s=-1, stale_s=-1))
    provider.is_away = False
    await too_old.ready([TENANT])
    provider.is_away = True
    with pytest.raises(StoreUnavailable):
        await too_old.ready([TENANT])
    assert too_old.find(TENANT) is not None  # who has begun to write goes on
    await keyring.try_ready([OTHER, TENANT])
    assert keyring.find(OTHER) is None
    assert keyring.find(TENANT) is not None


async def test_keys_that_are_destroyed_or_refused_open_nothing() -> None:
    keys, provider = MemoryKeys(), MemoryProvider()
    keyring = Keyring(keys, [provider], KeyringPolicy(seals_all=True, fresh_s=-1))
    await keyring.ready([TENANT])
    sealed = keyring.of(TENANT).seal(b"words", "a.b")
    provider.refuses = True
    await keyring.ready([TENANT])
    with pytest.raises(ContentSealed):
        keyring.of(TENANT)
    provider.refuses = False
    keyring.forget(TENANT)
    await keyring.ready([TENANT])
    assert keyring.of(TENANT).open(sealed, "a.b") == b"words"
    keys.destroy(TENANT)
    await keyring.ready([TENANT])
    assert keyring.find(TENANT) is None
    assert len(keys.rows[TENANT]) == 1, "no other is made in its place"


async def test_a_retired_key_opens_and_seals_nothing() -> None:
    keys = MemoryKeys()
    keyring = Keyring(keys, [MemoryProvider()], KeyringPolicy(seals_all=True, fresh_s=-1))
    await keyring.ready([TENANT])
    sealed = keyring.of(TENANT).seal(b"words", "a.b")
    keys.retire(TENANT)
    await keyring.ready([TENANT])
    assert not keyring.of(TENANT).seals
    assert keyring.of(TENANT).open(sealed, "a.b") == b"words"


async def test_no_more_tenants_are_kept_than_may_be() -> None:
    policy = KeyringPolicy(seals_all=True, tenants_max=1)
    keyring = Keyring(MemoryKeys(), [MemoryProvider()], policy)
    await keyring.ready([TENANT])
    await keyring.ready([OTHER])
    assert keyring.find(TENANT) is None
    assert keyring.of(OTHER).seals
    await keyring.close()
    assert keyring.find(OTHER) is None


@pytest.fixture
async def table(empty_database_url: str) -> AsyncIterator[TenantKeys]:
    database = Database(
        empty_database_url, pool_size_max=2, command_timeout_s=30, connect_timeout_s=30
    )
    keys = TenantKeys(database)
    await keys.prepare()
    await keys.prepare()
    yield keys
    await database.close()


async def test_keys_in_their_database(table: TenantKeys) -> None:
    keyring = Keyring(table, [MemoryProvider()], KeyringPolicy(seals_all=True, fresh_s=-1))
    await keyring.ready([TENANT])
    first = keyring.of(TENANT).seal(b"words", "a.b")
    await keyring.add(TENANT, 2)
    await keyring.ready([TENANT])
    assert keyring.of(TENANT).sealing == 2
    assert keyring.of(TENANT).open(first, "a.b") == b"words"
    assert await table.tenants() == [TENANT]
    assert await table.destroy(TENANT, before=2) == 1
    await keyring.ready([TENANT])
    with pytest.raises(ContentSealed):
        keyring.of(TENANT).open(first, "a.b")
    assert keyring.of(TENANT).seals
    await table.retire(TENANT)
    await keyring.ready([TENANT])
    assert not keyring.of(TENANT).seals
    await table.destroy(TENANT)
    assert {key.wrapped for key in await table.keys(TENANT)} == {b""}
    await keyring.ready([TENANT])
    assert keyring.find(TENANT) is None
