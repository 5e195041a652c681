"""Several responses in one statement: each as it would be alone, and none at another's cost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from gateway import ids
from gateway.encryption.keyring import Keyring, KeyringPolicy
from gateway.errors import ContentSealed, StoreConflict, StoreError, StoreUnavailable
from gateway.store import claims, endings, events, locks, responses, usage_lines
from gateway.store.claims import Claim
from gateway.store.locks import Lock
from gateway.store.postgres.database import Database
from gateway.store.postgres.statements import Statement
from gateway.store.usage_lines import UsageLine
from gateway.tenancy import TenantId
from tests.fakes.keys import MemoryKeys, MemoryProvider
from tests.fakes.rows import all_rows
from tests.fakes.stored import (
    COMPLETED,
    CREATED,
    USAGE,
    durable_response,
    finished,
    item,
    last_row,
    new_response,
    stored_items,
)
from tests.fakes.turns import begin as begin_turn
from tests.fakes.turns import contents, conversation_of
from tests.fakes.unsealed_only import plain_only

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from gateway.store.responses import NewResponse


async def rows_of(database: Database, tenant: TenantId, table: str, *without: str) -> list[Any]:
    async with database.transaction(tenant) as connection:
        found = await all_rows(connection, table)
    unlike = dict.fromkeys(("tenant_id", *without) if found else ())
    return sorted(repr({**dict(row), **unlike}) for row in found)


async def everything(database: Database, tenant: TenantId) -> list[list[Any]]:
    """All that is stored of a tenant, but for when leases end."""
    return [
        await rows_of(database, tenant, "responses", "lease_until"),
        await rows_of(database, tenant, "messages"),
        await rows_of(database, tenant, "events"),
        await rows_of(database, tenant, "usage", "tx"),
    ]


async def two_tenants(database: Database) -> tuple[TenantId, TenantId]:
    one, other = TenantId(ids.new_uuid()), TenantId(ids.new_uuid())
    return one, other


def several() -> list[NewResponse]:
    with_items = replace(
        durable_response(owner="me"), items=stored_items([item("a"), item("b")], [])
    )
    return [
        with_items,
        durable_response(owner="me"),
        replace(new_response(), owner="me", lease_s=9.0),
        new_response(parent=ids.new_uuid()),
    ]


@plain_only("two seals of the same content differ")
async def test_what_is_inserted_together_is_as_if_each_had_come_alone(database: Database) -> None:
    alone, together = await two_tenants(database)
    new = several()
    for one in new:
        await responses.insert(database, alone, one)
    await responses.insert_all(database, [(together, one) for one in new])
    assert await everything(database, together) == await everything(database, alone)


@plain_only("two seals of the same content differ")
async def test_what_ends_together_is_as_if_each_had_ended_alone(database: Database) -> None:
    alone, together = await two_tenants(database)
    new = several()
    ends = [
        replace(finished(new[0].uuid, [], [item("c")], epoch=1), entries=last_row(1)),
        replace(finished(new[1].uuid, epoch=1, status="failed"), entries=last_row(1), tokens=None),
        finished(new[2].uuid, [item("d"), item("e")], [item("f")], epoch=1),
        finished(new[3].uuid, epoch=0),
    ]
    # The items of a durable one's input are there already.
    ends[0] = replace(ends[0], items=[replace(one, position=2) for one in ends[0].items])
    for tenant in (alone, together):
        for one in new:
            await responses.insert(database, tenant, one)
    for end in ends:
        await endings.finish(database, alone, end)
    ended = await endings.finish_all(database, [(together, end) for end in ends])
    assert ended == dict.fromkeys(range(4), True)
    assert await everything(database, together) == await everything(database, alone)


async def test_responses_of_several_tenants_go_together(database: Database) -> None:
    tenants = [TenantId(ids.new_uuid()) for _ in range(3)]
    new = [(tenants[at % 3], new_response()) for at in range(7)]
    await responses.insert_all(database, new)
    ends = [(tenant, finished(one.uuid, [item("x")])) for tenant, one in reversed(new)]
    assert await endings.finish_all(database, ends) == dict.fromkeys(range(7), True)
    for at, tenant in enumerate(tenants):
        of_it = {one.uuid for whose, one in new if whose == tenant}
        async with database.transaction(tenant) as connection:
            stored = await all_rows(connection, "responses")
            assert {row.id for row in stored if row.status == "completed"} == of_it, at


async def test_one_that_is_taken_leaves_nothing_of_the_others(
    database: Database, tenant: TenantId
) -> None:
    new = [new_response(), new_response()]
    await responses.insert(database, tenant, new[1])
    with pytest.raises(StoreConflict):
        await responses.insert_all(database, [(tenant, one) for one in new])
    assert await responses.load(database, tenant, new[0].uuid) is None


async def test_what_is_fenced_off_or_over_or_unknown_is_left_out(
    database: Database, tenant: TenantId
) -> None:
    new = [replace(new_response(), owner="me", lease_s=9.0) for _ in range(3)]
    await responses.insert_all(database, [(tenant, one) for one in new])
    await endings.finish(database, tenant, finished(new[1].uuid, epoch=1, body=b"first"))
    ends = [
        finished(new[0].uuid, [item("a")], epoch=2),
        finished(new[1].uuid, [item("b")], epoch=1),
        finished(new[2].uuid, [item("c")], epoch=1),
        finished(ids.new_uuid(), [item("d")], epoch=1),
    ]
    before = await responses.load(database, tenant, new[0].uuid)
    assert await endings.finish_all(database, [(tenant, end) for end in ends]) == {2: True}
    assert await responses.load(database, tenant, new[0].uuid) == before
    stored = await responses.load(database, tenant, new[1].uuid)
    assert stored is not None
    assert stored.body == b"first"
    items = await rows_of(database, tenant, "messages")
    assert len(items) == 1


async def test_an_end_that_leaves_a_gap_in_its_log_is_left_out(
    database: Database, tenant: TenantId
) -> None:
    new = durable_response(owner="me")
    await responses.insert_all(database, [(tenant, new)])
    end = replace(finished(new.uuid, epoch=1), entries=last_row(2))
    assert await endings.finish_all(database, [(tenant, end)]) == {}


@pytest.mark.slow
async def test_nobody_waits_for_a_row_that_somebody_holds(
    database: Database, tenant: TenantId
) -> None:
    new = [new_response(), new_response()]
    await responses.insert_all(database, [(tenant, one) for one in new])
    ends = [(tenant, finished(one.uuid)) for one in new]
    async with database.transaction(tenant) as connection:
        await responses.find(connection, tenant, new[0].uuid, locked=True)
        assert await endings.finish_all(database, ends) == {1: True}
    assert await endings.finish_all(database, ends) == {0: True}


async def test_a_turn_of_a_conversation_ends_alone(database: Database, tenant: TenantId) -> None:
    conversation = await conversation_of(database, tenant, "1")
    place = (await contents(database, tenant, conversation)).place
    uuid = await begin_turn(database, tenant, conversation, place)
    assert await endings.finish_all(database, [(tenant, finished(uuid))]) == {}


async def test_usage_is_booked_once_however_often_it_is_sent(database: Database) -> None:
    tenants = await two_tenants(database)
    lines = [
        (tenants[at % 2], UsageLine(ids.new_uuid(), ids.new_uuid(), "m", COMPLETED, USAGE))
        for at in range(5)
    ]
    await usage_lines.record_all(database, lines)
    await usage_lines.record_all(database, [*lines[:2], lines[0]])
    for tenant, booked in zip(tenants, (3, 2), strict=True):
        assert len(await rows_of(database, tenant, "usage")) == booked


def waiting(running_max: int = 2, queued_max: int = 100) -> NewResponse:
    return replace(
        durable_response(),
        owner="me",
        lease_s=60.0,
        items=stored_items([item("a")], []),
        running_max=running_max,
        queued_max=queued_max,
    )


async def queue(
    database: Database, tenant: TenantId, new: Sequence[NewResponse]
) -> dict[int, bool]:
    return await responses.queue_all(database, [(tenant, one) for one in new])


async def test_as_many_begin_as_may_run_and_the_rest_waits_as_far_as_it_may(
    database: Database, tenant: TenantId
) -> None:
    new = sorted((waiting(2, 1) for _ in range(5)), key=lambda one: one.uuid)
    assert await queue(database, tenant, new) == {0: True, 1: True, 2: False}
    assert await responses.load(database, tenant, new[3].uuid) is None
    assert await queue(database, tenant, [waiting(9, 1)]) == {}
    assert await queue(database, tenant, [waiting(9, 2)]) == {0: False}


@plain_only("two seals of the same content differ")
async def test_one_that_begins_is_as_one_that_was_queued_and_claimed(database: Database) -> None:
    at_once, claimed = await two_tenants(database)
    new = waiting()
    await queue(database, at_once, [new])
    await responses.insert(database, claimed, replace(new, owner=None, lease_s=None))
    await force_claim(database, claimed, new.uuid)
    # The row of the log was written by whoever queued it.
    shown = [await everything(database, tenant) for tenant in (at_once, claimed)]
    assert shown[0][0] == shown[1][0]
    assert shown[0][1] == shown[1][1]
    renewed = await claims.heartbeat(database, "me", [Claim(at_once, new.uuid, 1)], lease_s=60)
    assert renewed == {new.uuid}
    rows = await events.read(database, at_once, new.uuid, CREATED.date(), bytes_max=999)
    assert [(row.first_entry, row.count) for row in rows] == [(0, 1)]


async def force_claim(database: Database, tenant: TenantId, uuid: UUID) -> None:
    statement = Statement(
        "UPDATE responses SET status = 'in_progress', owner = 'me', epoch = epoch + 1,"
        " attempts = attempts + 1 WHERE id = :uuid"
    )
    async with database.transaction(tenant) as connection:
        await connection.execute(statement, {"uuid": uuid})


async def test_while_somebody_claims_everything_waits(database: Database, tenant: TenantId) -> None:
    async with database.runs_transaction() as connection:
        await locks.take(connection, Lock.CLAIMS)
        assert await queue(database, tenant, [waiting()]) == {0: False}


@pytest.mark.slow
async def test_processes_that_accept_at_one_moment_pass_no_bound(
    database: Database, tenant: TenantId
) -> None:
    became = await asyncio.gather(
        *(queue(database, tenant, [waiting(3) for _ in range(2)]) for _ in range(5))
    )
    begun = sum(one for each in became for one in each.values())
    assert begun <= 3
    assert sum(map(len, became)) == 10


class Refusing(MemoryProvider):
    """Opens the keys of all tenants but those of `faults`."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: dict[TenantId, StoreError] = {}

    @override
    async def unwrap(self, tenant_id: TenantId, wrapped: bytes, key_ref: str) -> bytes:
        if (fault := self.faults.get(tenant_id)) is not None:
            raise fault
        return await super().unwrap(tenant_id, wrapped, key_ref)


@pytest.mark.parametrize("fault", [StoreUnavailable("away"), ContentSealed("refused")])
async def test_keys_of_one_tenant_do_not_hold_up_the_rows_of_others(
    fault: StoreError, database_url: str
) -> None:
    provider = Refusing()
    keyring = Keyring(MemoryKeys(), [provider], KeyringPolicy(seals_all=True))
    options: dict[str, Any] = {"pool_size_max": 2, "command_timeout_s": 30, "connect_timeout_s": 30}
    sealing = Database(database_url, keyring=keyring, **options)
    ours, theirs = await two_tenants(sealing)
    running = new_response()
    for one in (ours, theirs):
        await responses.insert(sealing, one, running)
    keyring.forget(ours)
    provider.faults[ours] = fault
    new, queued = new_response(), waiting()
    assert await responses.insert_all(sealing, [(ours, new), (theirs, new)]) == {1: True}
    assert await responses.queue_all(sealing, [(ours, queued), (theirs, queued)]) == {1: True}
    ends = [(one, finished(running.uuid, [item("a")])) for one in (ours, theirs)]
    assert await endings.finish_all(sealing, ends) == {1: True}
    assert await endings.finish_all(sealing, ends[:1]) == {}
    with pytest.raises(type(fault)):
        await responses.insert(sealing, ours, new)
    await sealing.close()
    await keyring.close()
