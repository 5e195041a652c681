"""What replicas tell each other: each message is heard once, by all but its sender, while fresh."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, cast

import pytest

from gateway.errors import StoreUnavailable
from gateway.store import backend_reports
from gateway.store.backend_reports import PLACEMENTS_KEPT_S, exchange_placements
from gateway.store.postgres.database import Database
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Mapping

NOTHING_SEEN: Mapping[str, int] = {}
COUNT = Statement("SELECT count(*) FROM placements")
AGE = Statement(
    "UPDATE placements SET at = at - CAST(:age AS double precision) * interval '1 second'"
)


@pytest.fixture(autouse=True)
def _never_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_reports, "CLEANED_EVERY", 10**9)


async def aged(database: Database, seconds: float) -> None:
    async with database.owner_transaction() as connection:
        await connection.execute(AGE, {"age": seconds})


async def test_others_hear_what_a_replica_told_and_it_does_not_hear_itself(
    database: Database,
) -> None:
    assert await exchange_placements(database, "one", 1, b"load", b"entries", NOTHING_SEEN) == []
    heard = await exchange_placements(database, "two", 1, b"", b"", NOTHING_SEEN)
    assert [(row.replica, row.number, row.load, row.entries) for row in heard] == [
        ("one", 1, b"load", b"entries")
    ]
    assert 0 <= heard[0].age_s < 60


async def test_what_was_seen_is_not_told_again(database: Database) -> None:
    for number in (1, 2, 3):
        await exchange_placements(database, "one", number, b"", b"", NOTHING_SEEN)
    heard = await exchange_placements(database, "two", 1, b"", b"", {"one": 2, "gone": 7})
    assert [row.number for row in heard] == [3]


async def test_what_is_old_is_neither_told_nor_kept(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await exchange_placements(database, "one", 1, b"", b"", NOTHING_SEEN)
    await aged(database, PLACEMENTS_KEPT_S + 1)
    assert await exchange_placements(database, "two", 1, b"", b"", NOTHING_SEEN) == []
    monkeypatch.setattr(backend_reports, "CLEANED_EVERY", 1)
    await exchange_placements(database, "two", 2, b"", b"", NOTHING_SEEN)
    async with database.owner_transaction() as connection:
        assert await connection.scalar(COUNT) == 2


async def test_one_look_brings_a_bounded_number_of_messages(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_reports, "MESSAGES_MAX", 3)
    for number in range(1, 6):
        await exchange_placements(database, "one", number, b"", b"", NOTHING_SEEN)
    heard = await exchange_placements(database, "two", 1, b"", b"", NOTHING_SEEN)
    assert sorted(row.number for row in heard) == [3, 4, 5]


async def test_who_cleans_is_chosen_at_random(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_reports, "CLEANED_EVERY", 2)
    monkeypatch.setattr(backend_reports, "_random", Random(4))
    tell = partial(exchange_placements, database, "one", load=b"", entries=b"", seen=NOTHING_SEEN)
    for number in range(1, 9):
        await tell(number)
        await aged(database, PLACEMENTS_KEPT_S + 1)
    async with database.owner_transaction() as connection:
        assert 0 < cast("int", await connection.scalar(COUNT)) < 8


async def test_a_database_that_is_away_says_so() -> None:
    away = Database(
        "postgresql://nobody@127.0.0.1:1/none",
        pool_size_max=1,
        command_timeout_s=1,
        connect_timeout_s=1,
    )
    with pytest.raises(StoreUnavailable):
        await exchange_placements(away, "one", 1, b"", b"", NOTHING_SEEN)
    await away.close()
