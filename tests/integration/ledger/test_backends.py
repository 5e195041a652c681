"""What backends say to have generated, beside what came here and what lines have."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from gateway.errors import StoreError
from gateway.ledger.jobs import Tallying
from gateway.metering import BackendTally, CounterReading
from gateway.store.ledger.backends import NO_TOKENS, add, compare
from gateway.store.ledger.retention import LedgerRetention, remove_expired
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from gateway.store.ledger.backends import BackendHour, FleetTokens
    from gateway.store.postgres.database import Database

AN_HOUR_AGO = Statement("UPDATE backend_tokens SET at = at - interval '1 hour'")
DAY_S = 86_400


async def compared(database: Database) -> tuple[tuple[BackendHour, ...], FleetTokens]:
    async with database.runs_transaction() as connection:
        return await compare(connection, back_s=DAY_S, rows_max=10)


async def turn_back(database: Database) -> None:
    """As if it had been in the hour before, which is over."""
    async with database.runs_transaction() as connection:
        await connection.execute(AN_HOUR_AGO)


def tally(received: int, tokens: int | None = None, *, epoch: int = 1) -> BackendTally:
    reading = None if tokens is None else CounterReading(tokens, epoch)
    return BackendTally("gpu-1", received, reading)


async def test_replicas_count_together_and_a_restart_loses_nothing(database: Database) -> None:
    for one in (
        *(tally(0, 50_000), tally(3_000, 53_000), tally(900), tally(1_100, 55_000)),
        *(tally(0, 54_000), tally(2_000, 2_000, epoch=2), tally(5_000, 7_000, epoch=2)),
    ):
        assert await add(database, [one, BackendTally("silent", 10**6)])
    assert await compared(database) == ((), NO_TOKENS), "the hour is not over"
    await turn_back(database)
    beyond, fleet = await compared(database)
    assert beyond == ()
    assert fleet == (12_000, 12_000, 0), "of one that tells nothing nothing is compared"


async def test_what_went_past_the_gateway_is_told(database: Database) -> None:
    await add(database, [tally(0, 100)])
    await add(database, [tally(200_000, 100 + 203_000)])
    await turn_back(database)
    (beyond,), fleet = await compared(database)
    assert (beyond.backend, beyond.generated, beyond.received) == ("gpu-1", 203_000, 200_000)
    assert fleet[:2] == (203_000, 200_000)
    keep = LedgerRetention(
        lines_s=DAY_S, minutes_s=DAY_S, hours_s=DAY_S, days_s=60, end_user_days_s=DAY_S
    )
    assert await remove_expired(database, keep, rows_max=10) == 1
    assert await compared(database) == ((), NO_TOKENS)


class Counted:
    """What came of backends, once."""

    def __init__(self, *tallies: BackendTally) -> None:
        self._tallies = list(tallies)

    def take(self, _: float) -> list[BackendTally]:
        taken, self._tallies = self._tallies, []
        return taken


async def test_processes_that_tell_at_once_lose_and_double_nothing(database: Database) -> None:
    counted = [Counted(tally(100, 1_000 + 100 * step), tally(5)) for step in range(8)]
    jobs = [Tallying(database, one.take, interval_s=1) for one in counted]
    await asyncio.gather(*(one.round() for one in jobs))
    for one in jobs:
        await one.round()
    await turn_back(database)
    assert (await compared(database))[1].received == 8 * 105


async def test_what_could_not_be_told_is_told_later(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Tallying(database, lambda _: [tally(40)], interval_s=1)
    renamed = "ALTER TABLE {} RENAME TO {}"
    async with database.owner_transaction() as connection:
        await connection.execute(Statement(renamed.format("backend_tokens", "gone")))
    with pytest.raises(StoreError):
        await job.round()
    async with database.owner_transaction() as connection:
        await connection.execute(Statement(renamed.format("gone", "backend_tokens")))
    await job.round()
    await add(database, [tally(0, 0)])
    await turn_back(database)
    assert (await compared(database))[1].received == 80
