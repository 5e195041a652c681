"""The writer: durable before told, in order, whatever the database does to whichever run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.entries import Alive, Tokens
from gateway.errors import ClaimLost, StoreError, StoreUnavailable
from gateway.eventlog import log_writer
from tests.fakes.log_rows import BOUNDS, Desk, writing

if TYPE_CHECKING:
    from gateway.eventlog.log_writer import Channel

AWAY = StoreUnavailable("away")


def tokens(count: int, first: int = 0) -> list[Tokens]:
    return [Tokens((number,)) for number in range(first, first + count)]


def take_away(desk: Desk, channel: Channel) -> None:
    """Another replica goes on with the response."""
    desk.rows.table.rows[channel.claim.uuid].epoch += 1


@pytest.mark.requirement("resume.log-first")
async def test_an_entry_is_durable_before_anybody_is_told() -> None:
    async with writing() as desk:
        logs: list[int] = []
        claim = desk.rows.new()
        channel = desk.open(claim=claim, durable=lambda _: logs.append(len(desk.rows.log(claim))))
        channel.append(Alive())
        assert await channel.flushed() == 2
        assert logs == [1]


async def test_one_entry_waits_for_no_other() -> None:
    async with writing() as desk:
        channel = desk.open()
        for entry in tokens(3):
            channel.append(entry)
            await channel.flushed()
        assert desk.rows.batches == [1, 1, 1]
        assert [count for _, count in desk.durable] == [2, 3, 4]


async def test_what_comes_during_a_flush_goes_together() -> None:
    async with writing() as desk:
        channels = [desk.open() for _ in range(3)]
        desk.rows.gate.clear()
        channels[0].append(Alive())
        await desk.rows.reached.wait()
        for channel in channels:
            for entry in tokens(4):
                channel.append(entry)
        desk.rows.gate.set()
        for channel in channels:
            await channel.flushed()
        assert desk.rows.batches == [1, 3]
        assert desk.rows.log(channels[0].claim) == [Alive(), *tokens(4)]


async def test_after_a_pause_nothing_waits_and_before_it_is_over_all_wait_together() -> None:
    async with writing(bounds=replace(BOUNDS, flush_interval_s=3600)) as desk:
        channels = [desk.open() for _ in range(3)]
        channels[0].append(Alive())
        await channels[0].flushed()
        for channel in channels:
            channel.append(Alive())
        for _ in range(100):
            await asyncio.sleep(0)
        assert desk.rows.batches == [1]


async def test_many_that_say_little_wait_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "CROWDED_SHARE", 0.0)
    async with writing(bounds=replace(BOUNDS, flush_interval_s=3600)) as desk:
        channels = [desk.open() for _ in range(log_writer.CROWD_MIN)]
        channels[0].append(Alive())
        await channels[0].flushed()
        for channel in channels:
            assert desk.rows.batches == [1]
            channel.append(Alive())
            await asyncio.sleep(0)
        for channel in channels:
            await channel.flushed()
        assert desk.rows.batches == [1, len(channels)]


async def test_many_that_say_much_share_what_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "CROWDED_SHARE", 0.0)
    async with writing(bounds=replace(BOUNDS, flush_interval_s=3600)) as desk:
        channels = [desk.open() for _ in range(log_writer.CROWD_MIN)]
        channels[0].append(Alive())
        await channels[0].flushed()
        for channel in channels:
            channel.append(Tokens(tuple(range(log_writer.CROWDED_BYTES_MAX))))
        for _ in range(100):
            await asyncio.sleep(0)
        assert desk.rows.batches == [1]


async def test_a_flush_is_bounded_and_nobody_waits_twice() -> None:
    async with writing(bounds=replace(BOUNDS, flush_bytes_max=1)) as desk:
        channels = [desk.open() for _ in range(3)]
        for channel in channels:
            channel.append(Alive())
        for channel in channels:
            await channel.flushed()
        assert desk.rows.batches == [1, 1, 1]


@pytest.mark.parametrize("where", ["before", "after", "asked"])
async def test_nothing_is_lost_or_repeated_while_the_database_is_away(where: str) -> None:
    async with writing() as desk:
        desk.rows.after += [AWAY] if where == "asked" else []
        getattr(desk.rows, where).extend([AWAY, AWAY])
        channels = [desk.open() for _ in range(2)]
        for entry in tokens(20):
            for channel in channels:
                channel.append(entry)
            await asyncio.sleep(0)
        for channel in channels:
            assert await channel.flushed() == 21
            assert desk.rows.log(channel.claim) == tokens(20)
        assert not desk.lost


async def test_commits_that_were_found_out_later_are_announced_as_well() -> None:
    announced: list[object] = []
    async with writing(committed=announced.append) as desk:
        desk.rows.after.append(AWAY)
        channel = desk.open()
        channel.append(Alive())
        await channel.flushed()
    assert announced == [{channel.claim.uuid}]


async def test_a_run_whose_claim_is_gone_is_told_once_and_the_others_go_on() -> None:
    async with writing() as desk:
        gone, well = desk.open(), desk.open()
        take_away(desk, gone)
        for channel in (gone, well):
            channel.append(Alive())
        assert await well.flushed() == 2
        with pytest.raises(ClaimLost):
            await gone.flushed()
        gone.append(Alive())
        gone.close()
        with pytest.raises(ClaimLost):
            await gone.room()
        assert desk.lost == [gone.claim.uuid]
        assert desk.writer.pending_bytes == 0
        assert desk.rows.log(gone.claim) == []


async def test_a_run_that_was_deleted_has_lost_its_claim() -> None:
    async with writing() as desk:
        channel = desk.open()
        desk.rows.table.rows.pop(channel.claim.uuid)
        desk.rows.after.append(AWAY)
        channel.append(Alive())
        with pytest.raises(ClaimLost):
            await channel.flushed()


@pytest.mark.parametrize("error", [StoreError("a mistake"), ValueError("a bug")])
async def test_a_defect_costs_one_run_and_not_the_others(error: Exception) -> None:
    async with writing() as desk:
        channels = [desk.open() for _ in range(7)]
        desk.rows.damaged[channels[4].claim.uuid] = error
        for channel in channels:
            channel.append(Alive())
        for channel in channels[:4] + channels[5:]:
            assert await channel.flushed() == 2
        with pytest.raises(ClaimLost):
            await channels[4].flushed()
        assert desk.lost == [channels[4].claim.uuid]


async def test_heads_that_cannot_be_read_cost_those_in_doubt_only() -> None:
    async with writing() as desk:
        doubtful, later = desk.open(), desk.open()
        desk.rows.after.append(AWAY)
        desk.rows.asked.append(StoreError("a mistake"))
        doubtful.append(Alive())
        with pytest.raises(ClaimLost):
            await doubtful.flushed()
        later.append(Alive())
        assert await later.flushed() == 2


async def test_callbacks_that_break_stop_nobody() -> None:
    def broken(*_: object) -> None:
        raise ValueError("a bug")

    async with writing(committed=broken) as desk:
        channel, well = desk.open(durable=broken, lost=broken), desk.open()
        for one in (channel, well):
            one.append(Alive())
        assert await well.flushed() == 2
        with pytest.raises(ClaimLost):
            await channel.flushed()


async def test_a_run_waits_when_it_is_too_far_ahead() -> None:
    async with writing(bounds=replace(BOUNDS, run_pending_bytes_max=10)) as desk:
        channel, other = desk.open(), desk.open()
        desk.rows.gate.clear()
        for entry in tokens(2):
            channel.append(entry)
        assert (channel.is_full, other.is_full) == (True, False)
        async with asyncio.TaskGroup() as group:
            group.create_task(channel.room())
            await desk.rows.reached.wait()
            was_full = channel.is_full
            desk.rows.gate.set()
        assert (was_full, channel.is_full) == (True, False)


async def test_all_wait_when_together_they_are_too_far_ahead() -> None:
    async with writing(bounds=replace(BOUNDS, pending_bytes_max=10)) as desk:
        first, second = desk.open(), desk.open()
        desk.rows.gate.clear()
        for entry in tokens(2):
            first.append(entry)
        was_full = second.is_full
        async with asyncio.TaskGroup() as group:
            group.create_task(second.room())
            await desk.rows.reached.wait()
            # What a run gives up makes room for the others.
            first.close()
        assert (was_full, second.is_full) == (True, False)
        desk.rows.gate.set()


async def test_waiting_for_room_ends_when_the_claim_is_lost() -> None:
    async with writing(bounds=replace(BOUNDS, run_pending_bytes_max=1)) as desk:
        channel = desk.open()
        take_away(desk, channel)
        channel.append(Alive())
        with pytest.raises(ClaimLost):
            await channel.room()


async def test_settled_waits_for_what_was_said_before_and_no_more() -> None:
    async with writing() as desk:
        channel = desk.open(durable=lambda _: desk.rows.gate.clear())
        desk.rows.gate.clear()
        channel.append(Alive())
        async with asyncio.TaskGroup() as group:
            settled = group.create_task(channel.flushed())
            await desk.rows.reached.wait()
            channel.append(Alive())
            desk.rows.gate.set()
            assert await settled == 2
        desk.rows.gate.set()
        assert await channel.flushed() == 3


async def test_a_channel_closed_during_a_flush_hears_nothing_of_it() -> None:
    announced: list[object] = []
    async with writing(committed=announced.append) as desk:
        channel, other = desk.open(), desk.open()
        desk.rows.gate.clear()
        channel.append(Alive())
        await desk.rows.reached.wait()
        channel.append(Alive())
        channel.close()
        channel.close()
        desk.rows.gate.set()
        other.append(Alive())
        await other.flushed()
        assert desk.rows.log(channel.claim) == [Alive()]
        assert {uuid for uuid, _ in desk.durable} == {other.claim.uuid}
        assert not desk.lost
        assert desk.writer.pending_bytes == 0
    assert announced[0] == {channel.claim.uuid}
