"""What operators drain is durable, and replicas tell how much is still under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.store import backend_reports
from gateway.store.postgres.statements import Statement
from gateway.telemetry.metrics import Metrics
from gateway.upstreams.backend_sources import REPORT_INTERVAL_S, Drains

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gateway.store.postgres.database import Database

AGE = Statement(
    "UPDATE drain_reports SET at = at - CAST(:age AS double precision) * interval '1 second'"
)


async def test_a_drain_stays_until_it_is_undone(database: Database) -> None:
    assert await backend_reports.drain(database, "gpu-1", by="ann@host")
    assert not await backend_reports.drain(database, "gpu-1", by="bob@host")
    (one,) = await backend_reports.drains(database)
    assert (one.name, one.drained_by) == ("gpu-1", "ann@host")
    assert await backend_reports.drained(database) == ["gpu-1"]
    assert await backend_reports.undrain(database, "gpu-1")
    assert not await backend_reports.undrain(database, "gpu-1")
    assert await backend_reports.drained(database) == []


async def test_what_a_replica_told_last_counts_while_it_is_fresh(database: Database) -> None:
    await backend_reports.report_drained(database, "one", {"gpu-1": 3, "gpu-2": 0})
    await backend_reports.report_drained(database, "one", {"gpu-1": 2})
    await backend_reports.report_drained(database, "two", {"gpu-1": 1})
    told = {
        (one.name, one.replica): one.in_flight
        for one in await backend_reports.drain_reports(database)
    }
    assert told == {("gpu-1", "one"): 2, ("gpu-2", "one"): 0, ("gpu-1", "two"): 1}
    async with database.owner_transaction() as connection:
        await connection.execute(AGE, {"age": backend_reports.DRAINED_FRESH_S + 1})
    assert await backend_reports.drain_reports(database) == []


async def test_a_new_drain_does_not_believe_what_was_told_of_an_older_one(
    database: Database,
) -> None:
    await backend_reports.drain(database, "gpu-1", by="ann")
    await backend_reports.report_drained(database, "one", {"gpu-1": 0})
    await backend_reports.undrain(database, "gpu-1")
    await backend_reports.report_drained(database, "late", {"gpu-1": 0})
    await backend_reports.drain(database, "gpu-1", by="ann")
    assert await backend_reports.drain_reports(database) == []


class Members:
    """What is under way, and what was drained."""

    def __init__(self) -> None:
        self.counts = {"gpu-1": 2, "gpu-2": 1}
        self.drained: list[list[str]] = []

    def drain(self, names: Collection[str]) -> None:
        self.drained.append(list(names))

    def in_flight(self) -> Mapping[str, int]:
        return self.counts


async def test_a_replica_follows_and_tells_what_has_changed(database: Database) -> None:
    members, told, now = Members(), list[dict[str, int]](), [0.0]

    async def drained() -> Collection[str]:
        return await backend_reports.drained(database)

    async def report(counts: Mapping[str, int]) -> None:
        told.append(dict(counts))
        await backend_reports.report_drained(database, "one", counts)

    following = Drains(members, drained, report, metrics=Metrics(), clock=lambda: now[0])
    await following.once()
    assert (members.drained, told) == ([[]], [])
    await backend_reports.drain(database, "gpu-1", by="ann")
    await backend_reports.drain(database, "unknown", by="ann")
    await following.once()
    await following.once()
    assert members.drained[-1] == ["gpu-1", "unknown"]
    assert told == [{"gpu-1": 2, "unknown": 0}]
    members.counts["gpu-1"] = 0
    await following.once()
    assert told[-1] == {"gpu-1": 0, "unknown": 0}
    now[0] += REPORT_INTERVAL_S
    await following.once()
    assert len(told) == 3
    await backend_reports.undrain(database, "gpu-1")
    await backend_reports.undrain(database, "unknown")
    await following.once()
    assert members.drained[-1] == []
    await backend_reports.drain(database, "gpu-1", by="ann")
    await following.once()
    assert told[-1] == {"gpu-1": 0}


async def test_while_the_database_is_away_what_was_known_counts(database: Database) -> None:
    members = Members()

    async def drained() -> Collection[str]:
        return await backend_reports.drained(database)

    async def report(counts: Mapping[str, int]) -> None:
        await backend_reports.report_drained(database, "one", counts)

    following = Drains(members, drained, report, metrics=Metrics())
    await backend_reports.drain(database, "gpu-1", by="ann")
    await following.once()
    async with database.owner_transaction() as connection:
        await connection.execute(Statement("ALTER TABLE backend_drains RENAME TO gone"), {})
    await following.once()
    assert members.drained == [["gpu-1"]]
    async with database.owner_transaction() as connection:
        await connection.execute(Statement("ALTER TABLE gone RENAME TO backend_drains"), {})
    await following.once()
    assert members.drained[-1] == ["gpu-1"]
