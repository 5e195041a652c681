"""Silence is broken, and only silence."""

from __future__ import annotations

import asyncio

from gateway.engine.runner import KeepAliveTimer
from gateway.entries import Alive, Queued
from gateway.eventlog.journal import Journal, MemoryJournal
from gateway.eventlog.live_log import LiveLog
from tests.fakes.following import following
from tests.fakes.toy_logs import new_fold

INTERVAL_S = 0.001


async def ticks() -> None:
    """So much more than an interval, and its ticker's lateness, that all that was due has been."""
    loop = asyncio.get_running_loop()
    passed = asyncio.Event()
    loop.call_later(4 * INTERVAL_S, passed.set)
    await passed.wait()


def journal(*, held: bool = False) -> Journal:
    return MemoryJournal(LiveLog(new_fold, reader_events_max=100, held=held))


async def test_a_silent_log_says_that_it_is_alive() -> None:
    one = journal()
    with KeepAliveTimer(one, INTERVAL_S):
        follower = following(one.live.stream)
        assert (await anext(follower))[-1].type == "response.in_progress"
        assert (await anext(follower))[-1].type == "response.in_progress"
        await follower.aclose()


async def test_nothing_is_said_once_it_is_left() -> None:
    one = journal()
    with KeepAliveTimer(one, INTERVAL_S):
        pass
    await ticks()
    assert not list(one.live._entries)


async def test_nothing_is_said_by_a_run_that_was_abandoned() -> None:
    one = journal()
    one.abandon()
    with KeepAliveTimer(one, INTERVAL_S):
        await ticks()
    assert not list(one.live._entries)


async def test_what_waits_for_its_commit_is_not_silence() -> None:
    one = journal(held=True)
    one.append(Queued())
    with KeepAliveTimer(one, INTERVAL_S):
        await ticks()
        assert list(one.live._entries) == [Queued()]
        one.live.show(1)
        while len(one.live._entries) == 1:
            await ticks()
        assert list(one.live._entries)[:2] == [Queued(), Alive()]
