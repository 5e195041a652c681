"""Keys of tenants in a process: asked for once, kept for a while, and never after they are gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from gateway.encryption.keyring import CONCURRENT_FETCHES_MAX, OFF, PLAIN, Keyring, KeyringPolicy
from gateway.errors import ConfigError, ContentSealed, StoreUnavailable
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


async def test_keys_that_are_too_old_are_of_no_use_however_often_they_are_asked_for() -> None:
    provider = MemoryProvider()
    policy = KeyringPolicy(seals_all=True, fresh_s=-1, stale_s=-1, retry_s=1000)
    keyring = Keyring(MemoryKeys(), [provider], policy)
    await keyring.ready([TENANT])
    provider.is_away = True
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await keyring.ready([TENANT])


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


async def test_a_key_that_was_made_since_is_asked_for_when_it_is_missed() -> None:
    keys, provider = MemoryKeys(), MemoryProvider()
    here = Keyring(keys, [provider], KeyringPolicy(seals_all=True))
    there = Keyring(keys, [provider], KeyringPolicy(seals_all=True))
    await here.ready([TENANT])
    await there.add(TENANT, 2)
    await there.ready([TENANT])
    sealed = there.of(TENANT).seal(b"words", "a.b")
    with pytest.raises(ContentSealed):
        here.of(TENANT).open(sealed, "a.b")
    await here.renew(TENANT, lambda cipher: cipher.lacks(sealed))
    assert here.of(TENANT).open(sealed, "a.b") == b"words"
    assert here.of(TENANT).sealing == 2
    # One that nobody has is asked for once.
    asked = keys.reads
    for _ in range(3):
        await here.renew(TENANT, lambda _: True)
    assert keys.reads == asked + 1
    await here.renew(OTHER, lambda _: True)
    assert keys.reads == asked + 1, "of it nothing is known that could be old"


async def test_a_renewal_does_not_take_an_answer_that_is_older_than_the_key() -> None:
    keys, provider = MemoryKeys(), MemoryProvider()
    policy = KeyringPolicy(seals_all=True, fresh_s=1000)
    here, there = Keyring(keys, [provider], policy), Keyring(keys, [MemoryProvider()], policy)
    await here.ready([TENANT])
    here.policy = KeyringPolicy(seals_all=True, fresh_s=-1)
    provider.answers.clear()
    begun = asyncio.create_task(here.ready([TENANT]))
    await provider.is_waited_for.wait()
    await there.add(TENANT, 2)
    await there.ready([TENANT])
    sealed = there.of(TENANT).seal(b"words", "a.b")
    renewal = asyncio.create_task(here.renew(TENANT, lambda cipher: cipher.lacks(sealed)))
    await asyncio.sleep(0)
    provider.answers.set()
    await asyncio.gather(begun, renewal)
    assert here.of(TENANT).open(sealed, "a.b") == b"words"


async def test_one_timeout_is_enough_for_many_tenants() -> None:
    provider = MemoryProvider()
    keyring = Keyring(MemoryKeys(), [provider], KeyringPolicy(seals_all=True, retry_s=1000))
    many = [TenantId(UUID(int=number)) for number in range(1, 101)]
    provider.is_away = True
    await keyring.try_ready(many)
    assert provider.asked <= CONCURRENT_FETCHES_MAX, "those that had to wait are told at once"
    asked = provider.asked
    for _ in range(3):
        await keyring.try_ready(many)
        with pytest.raises(StoreUnavailable):
            await keyring.ready([many[0]])
        assert set(keyring.away()) == set(many)
    assert provider.asked == asked, "nobody asks again so soon"


async def test_known_tenants_wait_for_no_timeout() -> None:
    keys, provider = MemoryKeys(), MemoryProvider()
    keyring = Keyring(keys, [provider], KeyringPolicy(seals_all=True, fresh_s=1000))
    await keyring.ready([TENANT])
    # So old that it is asked for again, and not so old that somebody has to wait for it.
    keyring.policy = KeyringPolicy(seals_all=True, fresh_s=0.0, stale_s=1000, retry_s=0.0)
    provider.is_away = True
    await keyring.ready([TENANT])
    provider.answers.clear()
    await keyring.ready([TENANT])
    assert keyring.of(TENANT).seals
    assert not keyring.away()
    provider.is_away = False
    provider.answers.set()
    await keyring.ready([TENANT])


async def test_a_key_is_asked_for_again_before_it_is_old() -> None:
    now = 0.0
    policy = KeyringPolicy(seals_all=True, fresh_s=1000)
    keyring = Keyring(MemoryKeys(), [MemoryProvider()], policy, clock=lambda: now)
    await keyring.ready([TENANT])
    await keyring.add(TENANT, 2)
    now = 600.0
    await keyring.ready([TENANT])
    for _ in range(3):
        await asyncio.sleep(0)
    assert keyring.of(TENANT).sealing == 2


async def test_tenants_that_were_away_come_back_without_being_asked_for() -> None:
    provider = MemoryProvider()
    keyring = Keyring(MemoryKeys(), [provider], KeyringPolicy(seals_all=True, retry_s=0.0))
    provider.is_away = True
    await keyring.try_ready([TENANT])
    provider.is_away = False
    keyring.away()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not keyring.away()
    assert keyring.of(TENANT).seals


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


async def test_keys_are_not_kept_in_the_database_of_the_content(shared_database: Database) -> None:
    with pytest.raises(ConfigError, match="in the database of the content"):
        await TenantKeys(shared_database).prepare()


async def test_a_database_of_keys_that_is_away_is_told_by_its_setting() -> None:
    away = Database(
        "postgresql://u:p@127.0.0.1:9/keys",
        pool_size_max=1,
        command_timeout_s=5,
        connect_timeout_s=5,
    )
    with pytest.raises(ConfigError, match=r"encryption\.keys_url.*ConnectionRefused"):
        await TenantKeys(away).prepare()
    await away.close()
