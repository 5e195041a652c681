"""PostgreSQL and its model do the same, whatever happens to claims and logs in whatever order.

A unit of time is 1,000 s, so that the time the test itself takes makes no difference.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import ClaimLost
from gateway.store import claims, endings, events, responses
from gateway.store.claims import Claim, ClaimTerms
from gateway.store.events import LogBatch, LogRow
from gateway.store.postgres.statements import Statement
from tests.conftest import new_tenant, opened
from tests.fakes.claim_table import ClaimTable
from tests.fakes.stored import CREATED, durable_response, finished, last_row, new_response
from tests.fakes.unsealed_only import plain_only

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from gateway.entries import Status
    from gateway.store.endings import FinishedResponse
    from gateway.store.postgres.database import Database
    from gateway.store.responses import NewResponse, StoredResponse
    from gateway.tenancy import TenantId
    from tests.fakes.postgres import PostgresServer

UNIT_S: Final = 1000.0
LEASE_S: Final = 2.5 * UNIT_S
ORPHAN_S: Final = 3.25 * UNIT_S
TERMS: Final = ClaimTerms(lease_s=LEASE_S, attempts_max=3, tenant_running_max=3)
OWN_RUNNING_MAX: Final = 1
REPLICAS: Final = ("a", "b", "c")
KINDS: Final[dict[str, Callable[[], NewResponse]]] = {
    "queued": durable_response,
    "unowned": lambda: durable_response(status="in_progress"),
    "owned": lambda: replace(durable_response(owner="a", lease_s=LEASE_S), background=False),
    "in memory": lambda: replace(new_response(), owner="a", lease_s=LEASE_S),
}

STATUSES: Final[tuple[Status, ...]] = ("completed", "incomplete", "failed", "cancelled")
OF_ROW: Final = attrgetter("uuid", "status", "owner", "epoch", "next_entry", "attempts")


@pytest.fixture(scope="module")
async def rows(postgres: PostgresServer, template: str) -> AsyncIterator[Database]:
    """A database whose claims nobody else takes."""
    name = await postgres.create(template)
    async with opened(postgres.database_url(name)) as database:
        yield database
    await postgres.drop(name)


async def outcome(work: Awaitable[object] | Callable[[], object]) -> object:
    """What it returns, or which error it raises."""
    try:
        return work() if callable(work) else await work
    except (ClaimLost, ValueError) as error:
        return type(error)


def ending_with(
    end: FinishedResponse | None,
) -> Callable[[StoredResponse, list[LogRow]], Awaitable[FinishedResponse | None]]:
    async def ending(stored: StoredResponse, log: list[LogRow]) -> FinishedResponse | None:
        return end

    return ending


class Twins:
    """A database and a model of it, to which the same is done."""

    def __init__(self, database: Database, tenants: list[TenantId], chance: random.Random) -> None:
        self.database = database
        self.tenants = tenants
        self.chance = chance
        self.now = 0.0
        self.model = ClaimTable(lambda: self.now, running_max={tenants[0]: OWN_RUNNING_MAX})
        self.given: list[Claim] = []
        """Every claim there ever was, most of them lost by now."""
        self.done: Counter[str] = Counter()

    async def do(self, name: str) -> None:
        await getattr(self, name)()
        await self.compare()

    async def insert(self) -> None:
        tenant = self.chance.choice(self.tenants)
        new = KINDS[self.chance.choice(list(KINDS))]()
        await responses.insert(self.database, tenant, new)
        self.model.insert(tenant, new)
        if new.owner:
            self.given.append(Claim(tenant, new.uuid, 1))

    async def claim(self) -> None:
        owner, limit = self.chance.choice(REPLICAS), self.chance.randint(1, 4)
        take_over = self.chance.random() < 0.7
        expected = self.model.claim(owner, TERMS, limit=limit, take_over=take_over)
        assert expected == await claims.claim(
            self.database, owner, TERMS, limit=limit, take_over=take_over
        )
        self.given += [run.claim for run in expected]
        self.done["taken over"] += sum(not run.was_queued for run in expected)

    async def heartbeat(self) -> None:
        owner, some = self.chance.choice(REPLICAS), self._some()
        held = self.model.heartbeat(owner, some, lease_s=LEASE_S)
        assert held == await claims.heartbeat(self.database, owner, some, lease_s=LEASE_S)

    async def append(self) -> None:
        parcels = []
        for claim in self._some():
            first = self.model.rows[claim.uuid].next_entry + self.chance.choice([0, 0, 0, 1, -1])
            count = self.chance.randint(1, 3)
            parcels.append(LogBatch(claim, CREATED.date(), first, count, b"x" * count))
        committed = self.model.append(parcels)
        assert committed == await events.append(self.database, parcels)
        self.done["appended"] += len(committed)
        self.done["fenced off"] += len(parcels) - len(committed)

    async def release(self) -> None:
        some = self._some()
        self.model.release(some)
        await claims.release(self.database, some)

    async def finish(self) -> None:
        claim = self._one()
        end = self._end(claim)
        ended = await outcome(lambda: self.model.finish(end))
        assert ended == await outcome(endings.finish(self.database, claim.tenant_id, end))
        self.done["finished" if ended is None else "too late"] += 1

    async def conclude(self) -> None:
        claim = self._one()
        end = self._end(claim) if self.chance.random() < 0.5 else None
        expected = await outcome(lambda: self.model.conclude(claim.uuid, lambda *_: end))
        stored = await outcome(
            endings.conclude(self.database, claim.tenant_id, claim.uuid, ending_with(end))
        )
        assert getattr(stored, "status", stored) == getattr(expected, "status", expected)

    async def pass_time(self) -> None:
        units = self.chance.randint(1, 2)
        self.now += units * UNIT_S
        statement = Statement(
            "UPDATE responses SET lease_until = lease_until - make_interval(secs => :s)"
        )
        async with self.database.runs_transaction() as connection:
            await connection.execute(statement, {"s": units * UNIT_S})

    async def change_version(self) -> None:
        """Another release, with another fold, has begun a response."""
        claim = self._one()
        row = self.model.rows[claim.uuid]
        if row.new.durable and row.lease_until is not None:
            row.fold_version = 99
            statement = Statement("UPDATE responses SET fold_version = 99 WHERE id = :id")
            async with self.database.transaction(claim.tenant_id) as connection:
                await connection.execute(statement, {"id": claim.uuid})

    def _one(self) -> Claim:
        return self.chance.choice(self.given)

    def _some(self) -> list[Claim]:
        """Claims of any age, at most one for a response."""
        number = min(len(self.given), self.chance.randint(1, 6))
        return list(
            {claim.uuid: claim for claim in self.chance.sample(self.given, number)}.values()
        )

    def _end(self, claim: Claim) -> FinishedResponse:
        status = self.chance.choice(STATUSES)
        end = finished(claim.uuid, status=status, epoch=claim.epoch)
        row = self.model.rows[claim.uuid]
        if not row.new.durable:
            return end
        return replace(
            end, entries=last_row(row.next_entry + self.chance.choice([0, 0, 0, 1]), status)
        )

    async def compare(self) -> None:
        """Heads, owners, attempts, and what is abandoned."""
        reaper: dict[str, Any] = {"limit": 5, "attempts_max": 3, "orphan_s": ORPHAN_S}
        abandoned = self.model.abandoned(**reaper)
        assert abandoned == await claims.abandoned(self.database, **reaper)
        self.done["abandoned"] += bool(abandoned)
        columns = "id, status, owner, epoch, next_entry, attempts, lease_until IS NULL"
        async with self.database.runs_transaction() as connection:
            found = await connection.execute(
                Statement(f"SELECT {columns} FROM responses ORDER BY id")
            )
        assert [tuple(row) for row in found] == [
            (*OF_ROW(row), row.lease_until is None) for _, row in sorted(self.model.rows.items())
        ]

    async def compare_logs(self) -> None:
        for uuid, row in self.model.rows.items():
            log = await events.read(
                self.database, row.tenant_id, uuid, CREATED.date(), bytes_max=2**40
            )
            assert_whole(log, row.next_entry)
            async with self.database.runs_transaction() as connection:
                rows = await connection.execute(ROWS, {"response": uuid})
            assert [LogRow(*one) for one in rows] == row.log
            assert_whole(row.log, row.next_entry)
            assert row.epochs == sorted(row.epochs)


ROWS: Final = Statement(
    "SELECT first_entry, entry_count, entries FROM events WHERE response_id = :response"
    " ORDER BY first_entry"
)


def assert_whole(log: list[LogRow], next_entry: int) -> None:
    entry = 0
    for row in log:
        assert row.first_entry == entry
        entry += row.count
    assert entry == next_entry


DEEDS: Final = (
    *("insert", "insert", "claim", "claim", "append", "append", "append", "heartbeat"),
    *("pass_time", "release", "finish", "conclude", "change_version"),
)


async def play(database: Database, deeds: list[str], seed: int) -> Counter[str]:
    """Everything that `deeds` say, with arguments by chance."""
    async with database.runs_transaction() as connection:
        await connection.execute(Statement("DELETE FROM responses"))
        await connection.execute(Statement("DELETE FROM events"))
    tenants = sorted([await new_tenant(database) for _ in range(2)])
    bound = Statement("UPDATE tenants SET background_running_max = :bound WHERE id = :id")
    async with database.owner_transaction() as connection:
        await connection.execute(bound, {"bound": OWN_RUNNING_MAX, "id": tenants[0]})
    twins = Twins(database, tenants, random.Random(seed))
    while not twins.given:
        await twins.do("insert")
    for deed in deeds:
        await twins.do(deed)
    await twins.compare_logs()
    return twins.done


@pytest.mark.slow
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.sampled_from(DEEDS), min_size=10, max_size=40), st.integers(0, 2**32))
@plain_only("it looks at the column itself")
async def test_the_model_and_the_database_agree(
    rows: Database, deeds: list[str], seed: int
) -> None:
    await play(rows, deeds, seed)


@pytest.mark.slow
@plain_only("it looks at the column itself")
async def test_the_deeds_reach_what_matters(rows: Database) -> None:
    chance = random.Random(1)
    done = await play(rows, chance.choices(DEEDS, k=150), seed=1)
    assert set(done) >= {"appended", "fenced off", "finished", "too late", "taken over"}
    assert done["abandoned"]


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(40))
async def test_the_model_and_the_database_agree_for_long(rows: Database, seed: int) -> None:
    await play(rows, random.Random(seed).choices(DEEDS, k=500), seed)
