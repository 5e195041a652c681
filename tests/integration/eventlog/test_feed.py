"""Following responses on PostgreSQL: real logs, replicas that come and go, broken connections."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.engine import row_mapping
from gateway.engine.run_spec import head_of
from gateway.entries import Alive, Finished, Hop, Queued, Tokens, TurnEnded, TurnStarted, pack
from gateway.eventlog.feed import Feed, FeedLimits
from gateway.eventlog.live_log import LiveLogRegistry
from gateway.eventlog.log_watcher import LogWatcher
from gateway.store import endings, events, flushes, remote_logs, responses
from gateway.store.claims import Claim
from gateway.store.events import LogBatch, LogRow
from gateway.store.notices import Listener, Notice, notify
from gateway.store.postgres.statements import Statement
from tests.conftest import new_tenant
from tests.fakes.following import following
from tests.fakes.harmony_script import script_ids
from tests.fakes.replica import background, new_fold_for, replica, talkative
from tests.fakes.staged_run import STOP
from tests.fakes.stored import finished

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from gateway.engine.run_spec import RunSpec
    from gateway.entries import Entry
    from gateway.protocol.stream_events import Event
    from gateway.store.postgres.database import Database
    from gateway.store.responses import StoredResponse
    from gateway.tenancy import TenantId

SCRIPT = script_ids(
    "<|channel|>analysis<|message|>Weather, so a call. 天気 🌦<|end|><|start|>assistant"
    "<|channel|>commentary<|message|>Looking it up<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"Paris"}'
    "<|call|>"
)
END = Finished("completed", 1_795_000_009)
BODY: list[Entry] = [
    Alive(),
    TurnStarted(12),
    *(Tokens((token,)) for token in SCRIPT[:9]),
    Hop("replica", 20),
    *(Tokens(tuple(SCRIPT[at : at + 2])) for at in range(9, len(SCRIPT), 2)),
    TurnEnded(STOP, 3),
]
POLL_S, NEVER_S = 0.01, 3600.0


class Author:
    """Writes the log of one response, as its owner."""

    def __init__(self, database: Database, spec: RunSpec) -> None:
        self._database = database
        self._spec = spec
        self.tenant = spec.principal.tenant_id
        self.uuid = spec.head.uuid
        self._next_entry = 1

    @classmethod
    async def of(cls, database: Database, tenant: TenantId) -> Author:
        """The author of a new response, in whose log is only that it was queued."""
        author = cls(database, background(tenant))
        new = row_mapping.durable_row(author._spec, ("author", 600), waits=False)
        await responses.insert(database, tenant, replace(new, entries=(1, pack([Queued()]))))
        return author

    async def load(self) -> StoredResponse:
        stored = await responses.load(self._database, self.tenant, self.uuid)
        assert stored is not None
        return stored

    async def append(self, entries: Sequence[Entry]) -> None:
        """One row."""
        claim, day = Claim(self.tenant, self.uuid, 1), (await self.load()).day
        parcel = LogBatch(claim, day, self._next_entry, len(entries), pack(entries))
        assert await events.append(self._database, [parcel])
        self._next_entry += len(entries)

    async def finish(self) -> None:
        row = LogRow(self._next_entry, 1, pack([END]))
        end = replace(finished(self.uuid, epoch=1), entries=row)
        await endings.finish(self._database, self.tenant, end)

    def stream(self, log: Sequence[Entry] = (Queued(), *BODY, END)) -> list[Event]:
        """What its readers see."""
        fold = new_fold_for(self._spec.head)()
        return [event for entry in log for event in fold.apply(entry)]


class Reader:
    """The following part of one replica; nothing is generated there but what `lives` holds."""

    def __init__(
        self,
        database: Database,
        lives: LiveLogRegistry | None = None,
        *,
        interval_s: float = POLL_S,
    ) -> None:
        self.watcher = LogWatcher(
            partial(remote_logs.poll, database), interval_s=interval_s, pause_s=0
        )
        self.feed = Feed(
            lives or LiveLogRegistry(),
            self.watcher,
            partial(flushes.read, database),
            new_fold_for,
            limits=FeedLimits(read_bytes_max=4096, retry_pause_s=0.01),
            followers=lambda _: None,
        )

    async def read(self, tenant: TenantId, stored: StoredResponse, after: int = -1) -> list[Event]:
        batches = [
            batch
            async for batch in following(
                partial(self.feed.stream, tenant, head_of(stored), after=after)
            )
        ]
        return [event for batch in batches for event in batch]


@asynccontextmanager
async def reading(
    database: Database, lives: LiveLogRegistry | None = None, *, interval_s: float = POLL_S
) -> AsyncIterator[Reader]:
    reader = Reader(database, lives, interval_s=interval_s)
    async with asyncio.TaskGroup() as group:
        looking = group.create_task(reader.watcher.run())
        yield reader
        looking.cancel()


@pytest.mark.slow
@pytest.mark.requirement("resume.seam")
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(-1, 90)), max_size=6), st.integers(-1, 90)
)
async def test_any_cut_any_position_and_any_moment_of_joining(
    shared_database: Database, steps: list[tuple[int, int]], last: int
) -> None:
    author = await Author.of(shared_database, await new_tenant(shared_database))
    stored, rest, joined = await author.load(), BODY, []
    async with reading(shared_database) as reader, asyncio.TaskGroup() as group:
        for count, after in steps:
            joined.append((after, group.create_task(reader.read(author.tenant, stored, after))))
            if rest:
                await author.append(rest[:count])
            rest = rest[count:]
        if rest:
            await author.append(rest)
        await author.finish()
        joined.append((last, group.create_task(reader.read(author.tenant, stored, last))))
    whole = author.stream()
    for after, task in joined:
        assert task.result() == whole[after + 1 :]


@pytest.mark.slow
@pytest.mark.requirement("accept.resume-elsewhere")
async def test_a_stream_follows_its_run_from_replica_to_replica(
    database: Database, tenant: TenantId
) -> None:
    """Followers at both and at a third that generates nothing see what one stream would be."""
    spec = background(tenant)
    stalled = talkative("<|channel|>final<|message|>Hello there", hang=True)
    rest = talkative(", friend<|return|>")
    async with (
        replica(database, stalled) as one,
        replica(database, rest) as two,
        reading(database, one.live_logs) as at_one,
        reading(database, two.live_logs) as at_two,
        reading(database) as elsewhere,
    ):
        await one.archive.accept(spec, None, owned=False)
        stored = await responses.load(database, tenant, spec.head.uuid)
        assert stored is not None
        async with asyncio.TaskGroup() as group:
            followers = [
                group.create_task(reader.read(tenant, stored))
                for reader in (at_one, at_two, elsewhere)
            ]
            await one.scheduler.claim_available()
            await stalled.reached.wait()
            late = group.create_task(at_one.read(tenant, stored, 3))
            async with aclosing(
                following(partial(at_one.feed.stream, tenant, head_of(stored)))
            ) as local:
                seen = await anext(local)
                await one.supervisor.begin_drain()
                await two.scheduler.claim_available()
                seen = [*seen, *[event async for batch in local for event in batch]]
        await two.idle()
        replayed = await elsewhere.read(tenant, stored)
    assert replayed[-1].type == "response.completed"
    assert b"Hello there, friend" in replayed[-1].data
    assert [event.sequence_number for event in replayed] == list(range(len(replayed)))
    assert all(task.result() == replayed for task in followers)
    assert seen == replayed
    assert late.result() == replayed[4:]


async def test_broken_connections_are_nothing_to_a_stream(
    database: Database, tenant: TenantId
) -> None:
    author = await Author.of(database, tenant)
    await author.append(BODY[:8])
    async with reading(database) as reader:
        stored = await author.load()
        async with aclosing(
            following(partial(reader.feed.stream, tenant, head_of(stored)))
        ) as stream:
            seen = await anext(stream)
            async with database.owner_transaction() as connection:
                await connection.execute(
                    Statement(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    )
                )
            await author.append(BODY[8:])
            await author.finish()
            seen += [event async for batch in stream for event in batch]
    assert seen == author.stream()


@pytest.mark.slow
async def test_a_notice_of_another_replica_wakes_a_stream(
    database: Database, database_url: str, tenant: TenantId
) -> None:
    author = await Author.of(database, tenant)
    listener = Listener(database_url, connect_timeout_s=5, retry_pause_s=5)
    listens = asyncio.Event()
    async with reading(database, interval_s=NEVER_S) as reader, asyncio.TaskGroup() as group:
        listening = group.create_task(
            listener.run(lambda notice: reader.watcher.poll_soon(notice.responses), listens.set)
        )
        await listens.wait()
        stored = await author.load()
        async with aclosing(
            following(partial(reader.feed.stream, tenant, head_of(stored)))
        ) as stream:
            seen = await anext(stream)
            for write, log in (
                (partial(author.append, BODY), [Queued(), *BODY]),
                (author.finish, [Queued(), *BODY, END]),
            ):
                await write()
                await notify(database, [Notice("log", (author.uuid,))])
                while len(seen) < len(author.stream(log)):
                    seen += await anext(stream)
        listening.cancel()
    assert seen == author.stream()


async def test_a_deleted_log_ends_its_stream(database: Database, tenant: TenantId) -> None:
    author = await Author.of(database, tenant)
    await author.append(BODY)
    await author.finish()
    stored = await author.load()
    async with reading(database) as reader:
        assert await reader.feed.beginning(tenant, stored) is not None
        async with aclosing(
            following(partial(reader.feed.stream, tenant, head_of(stored)))
        ) as stream:
            await anext(stream)
        assert await responses.delete(database, tenant, author.uuid)
        assert await reader.feed.beginning(tenant, stored) is None
        assert await reader.read(tenant, stored) == []
