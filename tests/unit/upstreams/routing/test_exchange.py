"""Replicas tell each other: however it is lost, repeated, reordered or garbled."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import StoreUnavailable
from gateway.upstreams.routing import exchange as module
from gateway.upstreams.routing.costs import RoutingPolicy
from gateway.upstreams.routing.exchange import (
    REPLICAS_MAX,
    Exchange,
    packed_entries,
    packed_load,
    report_of,
)
from gateway.upstreams.routing.router import PlacedEntry, Router
from tests.unit.upstreams.routing.test_router import FIRST, NAMES, SECOND, Clock, Replica

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

words = st.integers(0, 2**32 - 1)
entries = st.lists(
    st.builds(PlacedEntry, st.integers(0, 2**64 - 1), words, st.integers(0, 1023)), max_size=20
)


class Message(NamedTuple):
    replica: str
    number: int
    age_s: float
    load: bytes
    entries: bytes


@dataclass
class Table:
    """Messages of all replicas; the newest first, as a table may give them."""

    messages: list[Message] = field(default_factory=list)
    is_away: bool = False
    asked: int = 0
    told: asyncio.Event = field(default_factory=asyncio.Event)

    def of(self, replica: str) -> module.Board:
        async def board(
            number: int, load: bytes, entries: bytes, seen: Mapping[str, int]
        ) -> Sequence[Message]:
            self.asked += 1
            self.told.set()
            if self.is_away:
                raise StoreUnavailable("away")
            heard = [
                one
                for one in self.messages
                if one.replica != replica and one.number > seen.get(one.replica, 0)
            ]
            self.messages.insert(0, Message(replica, number, 0.5, load, entries))
            return heard

        return board


def exchanges(table: Table, clock: Clock) -> tuple[Replica, Exchange, Replica, Exchange]:
    one, two = Replica(clock, 1), Replica(clock, 2)
    for replica in (one, two):
        for name in NAMES:
            replica.router.member(name)
    return (
        one,
        Exchange(one.router, table.of("one"), random=Random(1)),
        two,
        Exchange(two.router, table.of("two"), random=Random(1)),
    )


@pytest.mark.slow
@given(entries, st.dictionaries(words, st.tuples(words, words), max_size=8))
def test_what_is_told_is_heard(
    placed: list[PlacedEntry], loads: dict[int, tuple[int, int]]
) -> None:
    report = report_of(Message("r", 1, 2.0, packed_load(loads), packed_entries(placed)))
    assert report is not None
    assert (report.replica, report.age_s) == ("r", 2.0)
    assert (dict(report.loads), list(report.entries)) == (loads, placed)


@pytest.mark.slow
@given(st.binary(max_size=40), st.binary(max_size=40))
def test_whatever_another_release_tells_does_no_harm(load: bytes, told: bytes) -> None:
    report = report_of(Message("r", 1, 2.0, load, told))
    router = Router(RoutingPolicy(), b"x")
    router.exchanged([] if report is None else [report])


def test_counts_that_are_too_large_are_cut() -> None:
    assert packed_load({1: (2**40, 2**50)}) == bytes([0, 0, 0, 1]) + b"\xff" * 8


async def test_a_session_without_rows_is_found_by_the_other_replica() -> None:
    table, clock = Table(), Clock()
    one, from_one, two, from_two = exchanges(table, clock)
    first = one.turn(FIRST)
    assert two.decide(SECOND).expected == 0
    await from_one.once()
    await from_two.once()
    assert two.decide(SECOND).member.name == first.member.name
    assert two.decide(SECOND).reason == "index"


async def test_messages_are_heard_once_and_in_their_order() -> None:
    table, clock = Table(), Clock()
    one, from_one, two, from_two = exchanges(table, clock)
    for owed in (100, 200, 300):
        one.router.member("a").owed = owed
        clock.now += 1_000
        await from_one.once()
    await from_two.once()
    assert two.router.member("a").peers["one"].owed == 300
    table.messages.append(table.messages[-1])
    one.router.member("a").owed = 0
    clock.now += 1_000
    await from_one.once()
    await from_two.once()
    assert two.router.member("a").peers["one"].owed == 0


async def test_a_database_that_is_away_costs_knowledge_and_nothing_else() -> None:
    table, clock = Table(), Clock()
    one, from_one, two, from_two = exchanges(table, clock)
    await from_one.once()
    await from_two.once()
    table.is_away = True
    one.turn(FIRST)
    for _ in range(3):
        clock.now += 10
        await from_one.once()
        await from_two.once()
    assert two.router.exchange_age_s == 30
    assert two.decide(SECOND).reason == "cold"
    table.is_away = False
    await from_one.once()
    await from_two.once()
    assert two.router.exchange_age_s == 0
    assert two.decide(SECOND).expected == 0, "what could not be told is old"


async def test_a_database_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_MAX_S", 0.01)

    async def silent(
        number: int, load: bytes, entries: bytes, seen: Mapping[str, int]
    ) -> Sequence[Message]:
        await asyncio.Event().wait()
        raise AssertionError

    await Exchange(Router(RoutingPolicy(), b"x"), silent).once()


async def test_it_goes_on_until_it_is_cancelled() -> None:
    table = Table()
    policy = RoutingPolicy(exchange_interval_s=0.001)
    task = asyncio.create_task(Exchange(Router(policy, b"x"), table.of("one")).run())
    while table.asked < 3:
        table.told.clear()
        async with asyncio.timeout(60):
            await table.told.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_replicas_that_are_gone_are_forgotten_at_last() -> None:
    table, clock = Table(), Clock()
    _, from_one, _, _ = exchanges(table, clock)
    for n in range(REPLICAS_MAX + 5):
        table.messages = [Message(f"r{n}", 1, 0.0, b"", b"")]
        await from_one.once()
    assert len(from_one._seen) == REPLICAS_MAX
