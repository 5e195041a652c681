from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import asyncpg
import pytest

from gateway import ids
from gateway.entries import Finished, Queued, unpack
from gateway.errors import ClaimLost, StoreConflict
from gateway.store import claims, endings, events, messages, responses
from gateway.store.postgres.statements import Statement
from gateway.store.responses import IdempotencyKey
from tests.fakes.rows import all_rows, count
from tests.fakes.stored import (
    COMPLETED,
    CREATED,
    durable_response,
    finished,
    item,
    last_row,
    let_time_pass,
    new_response,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    from gateway.store.endings import FinishedResponse
    from gateway.store.events import LogRow
    from gateway.store.postgres.database import Database
    from gateway.store.responses import StoredResponse
    from gateway.tenancy import TenantId
    from tests.fakes.postgres import PostgresServer

KEY = IdempotencyKey(b"hash", b"print", 600)


@pytest.fixture
def database(shared_database: Database) -> Database:
    return shared_database


async def load(database: Database, tenant: TenantId, uuid: UUID) -> StoredResponse:
    stored = await responses.load(database, tenant, uuid)
    assert stored is not None
    return stored


def ending_with(
    end: FinishedResponse | None,
) -> Callable[[StoredResponse, list[LogRow]], Awaitable[FinishedResponse | None]]:
    async def ending(stored: StoredResponse, log: list[LogRow]) -> FinishedResponse | None:
        return end

    return ending


async def begin(database: Database, tenant: TenantId) -> UUID:
    """A durable response under epoch 1, with one entry in its log."""
    new = replace(durable_response(owner="me"), idempotency=KEY)
    await responses.insert(database, tenant, new)
    return new.uuid


async def test_finishing_writes_body_items_and_usage_together(
    database: Database, tenant: TenantId
) -> None:
    new = new_response()
    await responses.insert(database, tenant, new)
    end = finished(new.uuid, [item("a")], [item("b")], body=b'{"id":"x"}')
    await endings.finish(database, tenant, end)
    stored = await load(database, tenant, new.uuid)
    assert (stored.status, stored.body) == ("completed", b'{"id":"x"}')
    assert (stored.completed_at, stored.is_terminal) == (COMPLETED, True)
    history = await messages.history(database, tenant, new.uuid, depth_max=9, items_max=9)
    assert history is not None
    assert tuple(history.items) == (item("a"), item("b"))
    async with database.transaction(tenant) as connection:
        (line,) = await all_rows(connection, "usage")
    assert (line.input_tokens, line.cached_tokens) == (10, 4)
    assert (line.output_tokens, line.reasoning_tokens, line.recomputed_tokens) == (7, 3, 2)
    assert (line.key_id, line.model, line.at) == (new.key_id, new.model, COMPLETED)


async def test_the_end_of_a_durable_response_is_the_last_row_of_its_log(
    database: Database, tenant: TenantId
) -> None:
    uuid = await begin(database, tenant)
    end = replace(finished(uuid, epoch=1), entries=last_row(1))
    await endings.finish(database, tenant, end)
    log = await events.read(database, tenant, uuid, CREATED.date(), bytes_max=999)
    assert [entry for row in log for entry in unpack(row.entries)] == [
        Queued(),
        Finished("completed", 1_795_000_009, "why", "code", "text"),
    ]
    stored = await load(database, tenant, uuid)
    assert (stored.next_entry, stored.epoch, stored.plan, stored.is_held) == (2, 1, None, False)
    async with database.transaction(tenant) as connection:
        (row,) = await all_rows(connection, "responses")
    assert (row.prompt, row.owner, row.lease_until) == (None, None, None)


async def test_an_ended_response_keeps_its_first_end(database: Database, tenant: TenantId) -> None:
    new = new_response()
    await responses.insert(database, tenant, new)
    first = finished(new.uuid, [item("a")], status="cancelled", body=b"first")
    await endings.finish(database, tenant, first)
    with pytest.raises(ClaimLost):
        await endings.finish(database, tenant, finished(new.uuid, [item("b")]))
    stored = await load(database, tenant, new.uuid)
    assert (stored.status, stored.body) == ("cancelled", b"first")
    assert await count(database, tenant, "messages") == 1


async def test_an_end_whose_commit_was_not_answered_may_be_written_again(
    database: Database, tenant: TenantId
) -> None:
    uuid = await begin(database, tenant)
    end = replace(finished(uuid, [item("a")], epoch=1), entries=last_row(1))
    for _ in range(2):
        await endings.finish(database, tenant, end)
    assert await count(database, tenant, "messages") == 1
    assert await count(database, tenant, "usage") == 1
    assert await count(database, tenant, "events") == 2


@pytest.mark.parametrize(
    "change",
    [{"epoch": 0}, {"epoch": 2}, {"entries": last_row(0)}, {"entries": last_row(2)}],
    ids=str,
)
async def test_an_end_under_another_epoch_or_at_another_entry_is_fenced_off(
    database: Database, tenant: TenantId, change: dict[str, object]
) -> None:
    uuid = await begin(database, tenant)
    end = replace(finished(uuid, [item("a")], epoch=1), entries=last_row(1))
    with pytest.raises(ClaimLost):
        await endings.finish(database, tenant, replace(end, **change))  # type: ignore[arg-type]
    assert (await load(database, tenant, uuid)).status == "in_progress"
    assert await count(database, tenant, "messages") == 0
    assert await count(database, tenant, "events") == 1


async def test_the_end_of_a_response_that_was_taken_over_is_fenced_off(
    database: Database, tenant: TenantId
) -> None:
    uuid = await begin(database, tenant)
    end = replace(finished(uuid, epoch=1), entries=last_row(1))
    concluded = await endings.conclude(database, tenant, uuid, ending_with(end))
    assert concluded is not None
    with pytest.raises(ClaimLost):
        await endings.finish(database, tenant, end)


async def test_of_concurrent_ends_exactly_one_wins(database: Database, tenant: TenantId) -> None:
    new = new_response(status="queued")
    await responses.insert(database, tenant, new)
    ends = [
        finished(new.uuid, [item("a")], status=status)
        for status in ("completed", "cancelled", "failed", "incomplete")
    ]
    outcomes = await asyncio.gather(
        *[endings.finish(database, tenant, end) for end in ends], return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes if outcome] == [ClaimLost] * 3
    stored = await load(database, tenant, new.uuid)
    assert stored.status == ends[outcomes.index(None)].status
    assert await count(database, tenant, "messages") == 1
    assert await count(database, tenant, "usage") == 1


async def test_cancelling_and_finishing_at_once_end_a_response_once(
    database: Database, tenant: TenantId
) -> None:
    for _ in range(10):
        uuid = await begin(database, tenant)
        complete = replace(finished(uuid, [item("a")], epoch=1), entries=last_row(1))
        cancel = replace(complete, status="cancelled")
        lost, concluded = await asyncio.gather(
            endings.finish(database, tenant, complete),
            endings.conclude(database, tenant, uuid, ending_with(cancel)),
            return_exceptions=True,
        )
        stored = await load(database, tenant, uuid)
        assert concluded == stored
        assert stored.status == ("cancelled" if isinstance(lost, ClaimLost) else "completed")
        assert stored.next_entry == 2
        async with database.transaction(tenant) as connection:
            await responses.free_key(connection, tenant, uuid)


async def test_nothing_is_written_when_an_item_is_refused(
    database: Database, tenant: TenantId
) -> None:
    uuid = await begin(database, tenant)
    end = finished(uuid, [item("a"), item("b")], epoch=1)
    twice = [end.items[0], replace(end.items[1], position=0)]
    with pytest.raises(StoreConflict) as caught:
        await endings.finish(
            database, tenant, replace(end, items=twice, entries=last_row(1), free_key=True)
        )
    assert caught.value.constraint == "pk_messages"
    assert (await load(database, tenant, uuid)).status == "in_progress"
    assert await count(database, tenant, "events") == 1
    assert await responses.find_key(database, tenant, b"hash", ttl_s=600) is not None


async def test_a_status_that_is_no_end_cannot_finish(database: Database, tenant: TenantId) -> None:
    with pytest.raises(ValueError, match="no end"):
        await endings.finish(database, tenant, finished(ids.new_uuid(), status="queued"))


async def test_a_deleted_response_cannot_finish(database: Database, tenant: TenantId) -> None:
    new = new_response()
    await responses.insert(database, tenant, new)
    assert await responses.delete(database, tenant, new.uuid)
    with pytest.raises(ClaimLost):
        await endings.finish(database, tenant, finished(new.uuid, [item("a")]))
    assert await count(database, tenant, "messages") == 0
    assert await count(database, tenant, "usage") == 0


@pytest.mark.parametrize("free_key", [False, True])
async def test_a_response_that_failed_before_it_began_frees_its_key(
    database: Database, tenant: TenantId, free_key: bool
) -> None:
    uuid = await begin(database, tenant)
    end = replace(finished(uuid, status="failed", epoch=1), free_key=free_key)
    await endings.finish(database, tenant, end)
    use = await responses.find_key(database, tenant, b"hash", ttl_s=600)
    assert use == (None if free_key else (b"print", uuid))


async def test_concluding_folds_the_log_and_takes_the_claim_away(
    database: Database, tenant: TenantId
) -> None:
    uuid = await begin(database, tenant)
    claim = claims.Claim(tenant, uuid, 1)
    parcel = events.LogBatch(claim, CREATED.date(), 1, 3, b"...")
    assert await events.append(database, [parcel]) == {uuid}
    seen: list[tuple[StoredResponse, list[LogRow]]] = []

    async def cancel(stored: StoredResponse, log: list[LogRow]) -> FinishedResponse:
        seen.append((stored, log))
        end = finished(uuid, status="cancelled", body=b"cancelled")
        return replace(end, entries=last_row(stored.next_entry, "cancelled"))

    concluded = await endings.conclude(database, tenant, uuid, cancel)
    assert concluded is not None
    assert (concluded.status, concluded.body) == ("cancelled", b"cancelled")
    assert (concluded.epoch, concluded.next_entry, concluded.is_held) == (2, 5, False)
    ((running, log),) = seen
    assert (running.status, running.plan, running.is_held) == ("in_progress", b'{"inputs":1}', True)
    assert [(row.first_entry, row.count) for row in log] == [(0, 1), (1, 3)]
    assert await events.append(database, [replace(parcel, first_entry=5)]) == frozenset()
    assert await claims.heartbeat(database, "me", [claim], lease_s=600) == frozenset()
    assert await endings.conclude(database, tenant, uuid, cancel) == concluded
    assert len(seen) == 1


async def test_concluding_a_queued_response_ends_it_before_anybody_claims_it(
    database: Database, tenant: TenantId
) -> None:
    new = durable_response()
    await responses.insert(database, tenant, new)
    end = replace(finished(new.uuid, status="cancelled"), entries=last_row(1, "cancelled"))
    concluded = await endings.conclude(database, tenant, new.uuid, ending_with(end))
    assert concluded is not None
    assert (concluded.status, concluded.epoch) == ("cancelled", 1)


async def test_a_response_without_a_durable_log_is_concluded_without_one(
    database: Database, tenant: TenantId
) -> None:
    new = replace(new_response(), owner="me", lease_s=600)
    await responses.insert(database, tenant, new)
    await let_time_pass(database, tenant, seconds=601)
    seen: list[tuple[bool, list[LogRow]]] = []

    async def fail(stored: StoredResponse, log: list[LogRow]) -> FinishedResponse:
        seen.append((stored.is_held, log))
        return replace(finished(new.uuid, status="failed"), tokens=None)

    concluded = await endings.conclude(database, tenant, new.uuid, fail)
    assert concluded is not None
    assert (concluded.status, concluded.next_entry) == ("failed", 0)
    assert seen == [(False, [])]
    assert await count(database, tenant, "usage") == 0


async def test_nothing_is_concluded_when_there_is_no_reason_any_more(
    database: Database, tenant: TenantId
) -> None:
    uuid = await begin(database, tenant)
    kept = await endings.conclude(database, tenant, uuid, ending_with(None))
    assert kept is not None
    assert kept.status == "in_progress"
    assert await claims.heartbeat(database, "me", [claims.Claim(tenant, uuid, 1)], lease_s=600) == {
        uuid
    }
    assert await endings.conclude(database, tenant, ids.new_uuid(), ending_with(None)) is None


async def test_an_end_that_would_leave_a_gap_is_refused(
    database: Database, tenant: TenantId
) -> None:
    uuid = await begin(database, tenant)
    end = replace(finished(uuid), entries=last_row(7))
    with pytest.raises(ValueError, match="gap"):
        await endings.conclude(database, tenant, uuid, ending_with(end))
    assert (await load(database, tenant, uuid)).status == "in_progress"


async def test_nobody_writes_to_a_response_while_its_end_is_computed(
    postgres: PostgresServer, database: Database, tenant: TenantId
) -> None:
    async with database.owner_transaction() as connection:
        url = postgres.database_url(await connection.scalar(Statement("SELECT current_database()")))
    uuid = await begin(database, tenant)
    refused: list[str] = []

    async def try_to_lock() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(
                f"SELECT FROM responses WHERE id = '{uuid}' FOR NO KEY UPDATE NOWAIT"
            )
        except asyncpg.LockNotAvailableError as error:
            refused.append(error.sqlstate)
        finally:
            await connection.close()

    async def look(stored: StoredResponse, log: list[LogRow]) -> None:
        thread = threading.Thread(target=asyncio.run, args=[try_to_lock()])
        thread.start()
        thread.join()

    await endings.conclude(database, tenant, uuid, look)
    assert refused == ["55P03"]
