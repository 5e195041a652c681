"""Rows of containers and of files: who has an interpreter, what expires, whose they are."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from gateway import ids
from gateway.errors import InvalidRequest, RateLimited, ResourceNotFound
from gateway.protocol.pages import Page, PageParams
from gateway.retention import sweep
from gateway.settings.sections import Retention
from gateway.store.locks import TenantLock, take_turns
from gateway.store.postgres.statements import Statement
from gateway.store.tools import containers, files
from gateway.store.tools.containers import ContainerRow
from gateway.store.tools.files import CHUNK_BYTES, FileBounds, FileRow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from uuid import UUID

    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

NOW = datetime(2026, 11, 23, tzinfo=UTC)
PARTIES = 3
WAIT_S = 60.0
ROOM = FileBounds(tenant_bytes_max=6, container_bytes_max=9, container_files_max=9)
"""For two files of three bytes."""
BOUNDS = FileBounds(10_000_000, 5_000_000, 3)
KEEP = Retention.model_construct(log_s=1, response_s=1, idempotency_key_s=1, traces_s=1)


def container(**changed: Any) -> ContainerRow:
    row = ContainerRow(
        ids.new_uuid(), "näme\0\ud800", NOW, NOW, NOW + timedelta(seconds=60), 60, 1024
    )
    return replace(row, **changed)


def file(of: UUID | None = None, **changed: Any) -> FileRow:
    uploaded = of is None
    purpose, source = ("evals", None) if uploaded else (None, "user")
    row = FileRow(ids.new_uuid(), of, "/mnt/data/a", purpose, None, 3, b"digest", NOW)
    return replace(row, **{"source": source, **changed})


async def alive(database: Database, tenant: TenantId) -> ContainerRow:
    row = container()
    assert await containers.create(database, tenant, row, containers_max=99)
    return row


async def test_a_container_is_read_as_it_was_made(database: Database, tenant: TenantId) -> None:
    row = await alive(database, tenant)
    assert await containers.load(database, tenant, row.uuid) == row
    assert not await containers.create(database, tenant, container(), containers_max=1)
    late = container(created_at=NOW + timedelta(seconds=61))
    assert await containers.create(database, tenant, late, containers_max=1)


async def test_every_taker_has_the_next_epoch(database: Database, tenant: TenantId) -> None:
    asked = container(owner="a")
    assert await containers.take(database, tenant, asked, life_s=100) is None
    first = await containers.take(database, tenant, asked, life_s=100, containers_max=1)
    assert first == replace(asked, epoch=1)
    again = await containers.take(database, tenant, replace(asked, epoch=1), life_s=100)
    assert again == first
    assert await containers.opened(database, tenant, first, engine="linux", handle=b"h")
    stolen = await containers.take(database, tenant, replace(asked, owner="b"), life_s=100)
    assert stolen == replace(asked, owner="b", epoch=2, engine="linux", handle=b"h")
    assert not await containers.opened(database, tenant, first, engine="x", handle=None)
    back = await containers.take(database, tenant, replace(asked, epoch=1), life_s=100)
    assert back is not None
    assert (back.owner, back.epoch) == ("a", 3)


async def test_use_keeps_a_container_alive_up_to_its_whole_life(
    database: Database, tenant: TenantId
) -> None:
    row = await alive(database, tenant)

    async def used(seconds: float) -> ContainerRow | None:
        at = NOW + timedelta(seconds=seconds)
        return await containers.touch(database, tenant, row.uuid, now=at, life_s=100)

    for seconds, until in ((30, 90), (80, 100), (99, 100)):
        touched = await used(seconds)
        assert touched is not None
        assert touched.expires_at == NOW + timedelta(seconds=until)
    assert await used(100) is None
    taken = replace(row, owner="a", last_active_at=NOW + timedelta(seconds=100))
    assert await containers.take(database, tenant, taken, life_s=100) is None


async def test_files_are_chunks(database: Database, tenant: TenantId) -> None:
    row = file(size_bytes=CHUNK_BYTES + 1)
    chunks = [b"x" * CHUNK_BYTES, b"y"]
    assert await files.put(database, tenant, row, chunks, bounds=BOUNDS) == row
    assert await files.load(database, tenant, row.uuid, now=NOW) == row
    read = [await files.chunk(database, tenant, row, number) for number in range(3)]
    assert read == [*chunks, None]
    assert await files.chunk(database, tenant, replace(row, digest=b"other"), 0) is None
    assert files.chunk_count(0) == 0
    assert files.chunk_count(row.size_bytes) == 2


async def test_a_path_keeps_its_id(database: Database, tenant: TenantId) -> None:
    held = await alive(database, tenant)
    first = file(held.uuid)
    assert await files.put(database, tenant, first, [b"one"], bounds=BOUNDS) == first
    other = file(held.uuid, digest=b"2", source="assistant")
    kept = await files.put(database, tenant, other, [b"two"], bounds=BOUNDS)
    assert kept == replace(other, uuid=first.uuid)
    uploaded = file(digest=b"3")
    await files.put(database, tenant, uploaded, [b"thr"], bounds=BOUNDS)
    third = file(held.uuid, digest=b"3")
    copied = await files.copy(database, tenant, third, copied=uploaded.uuid, bounds=BOUNDS)
    assert copied == replace(third, uuid=first.uuid)
    assert await files.chunk(database, tenant, copied, 0) == b"thr"
    assert await files.of_container(database, tenant, held.uuid, files_max=9) == [copied]


async def test_a_file_that_was_deleted_meanwhile_is_not_copied_without_its_bytes(
    database: Database, tenant: TenantId
) -> None:
    held, gone = await alive(database, tenant), file()
    with pytest.raises(ResourceNotFound, match=ids.file_id(gone.uuid)):
        await files.copy(database, tenant, file(held.uuid), copied=gone.uuid, bounds=BOUNDS)
    assert await files.of_container(database, tenant, held.uuid, files_max=9) == []


async def test_rooms_are_bounded(database: Database, tenant: TenantId) -> None:
    held = await alive(database, tenant)

    async def put(bounds: FileBounds, **changed: Any) -> FileRow | None:
        return await files.put(
            database, tenant, file(held.uuid, **changed), [b"123"], bounds=bounds
        )

    assert await put(FileBounds(3, 3, 1))
    assert await put(FileBounds(3, 3, 1)), "in the place of the same file"
    with pytest.raises(RateLimited) as full:
        await put(FileBounds(5, 9, 9), name="/mnt/data/b")
    assert full.value.is_final, "nobody should send all of it again"
    with pytest.raises(InvalidRequest, match="bytes together"):
        await put(FileBounds(9, 5, 9), name="/mnt/data/b")
    with pytest.raises(InvalidRequest, match="at most 1 files"):
        await put(FileBounds(9, 9, 1), name="/mnt/data/b")
    lost = file(ids.new_uuid())
    assert await files.put(database, tenant, lost, [b"123"], bounds=BOUNDS) is None
    assert await files.copy(database, tenant, lost, copied=lost.uuid, bounds=BOUNDS) is None


async def test_files_go_with_their_container(database: Database, tenant: TenantId) -> None:
    held = await alive(database, tenant)
    row = file(held.uuid)
    await files.put(database, tenant, row, [b"123"], bounds=BOUNDS)
    assert await containers.delete(database, tenant, held.uuid)
    assert not await containers.delete(database, tenant, held.uuid)
    assert await files.chunk(database, tenant, row, 0) is None
    found = await files.load(database, tenant, row.uuid, container=held.uuid, now=NOW)
    assert found is None


async def test_what_has_expired_is_removed(database: Database, tenant: TenantId) -> None:
    now = datetime.now(UTC)

    async def made(seconds_ago: float) -> tuple[ContainerRow, FileRow]:
        row = container(expires_at=now - timedelta(seconds=seconds_ago))
        await containers.create(database, tenant, row, containers_max=9)
        held = file(row.uuid)
        await files.put(database, tenant, held, [b"123"], bounds=BOUNDS)
        return row, held

    (young, kept), (old, _), (older, _) = (await made(-60), await made(60), await made(86_400 + 60))
    upload = file(expires_at=now - timedelta(seconds=1))
    await files.put(database, tenant, upload, [b"123"], bounds=BOUNDS)
    assert await files.load(database, tenant, upload.uuid, now=now) is None
    assert await sweep.delete_expired("files", database, KEEP, rows_max=1) == 1
    assert await sweep.delete_expired("files", database, KEEP, rows_max=9) == 2
    assert await sweep.delete_expired("containers", database, KEEP, rows_max=9) == 1
    assert await sweep.delete_expired("files", database, KEEP, rows_max=9) == 0
    assert await containers.load(database, tenant, old.uuid) == old
    assert await containers.load(database, tenant, older.uuid) is None
    assert await files.of_container(database, tenant, young.uuid, files_max=9) == [kept]


async def of_stranger(database: Database, who: TenantId, uuid: UUID) -> FileRow | None:
    """A container's file can be written for nobody else, but the row needs a container there."""
    return await files.put(database, who, file(uuid), [b"123"], bounds=BOUNDS)


ATTACKS: dict[str, tuple[Callable[[Database, TenantId, UUID], Awaitable[Any]], Any]] = {
    "containers.load": (containers.load, None),
    "containers.delete": (containers.delete, False),
    "containers.touch": (
        lambda db, who, uuid: containers.touch(db, who, uuid, now=NOW, life_s=100),
        None,
    ),
    "containers.opened": (
        lambda db, who, uuid: containers.opened(
            db, who, container(uuid=uuid, owner="a"), engine="x", handle=None
        ),
        False,
    ),
    "files.put": (of_stranger, None),
    "files.copy": (
        lambda db, who, uuid: files.copy(db, who, file(uuid), copied=uuid, bounds=BOUNDS),
        None,
    ),
    "files.load": (lambda db, who, uuid: files.load(db, who, uuid, container=uuid, now=NOW), None),
    "files.chunk": (lambda db, who, uuid: files.chunk(db, who, file(uuid, uuid=uuid), 0), None),
    "files.delete": (lambda db, who, uuid: files.delete(db, who, uuid, container=uuid), False),
    "files.of_container": (
        lambda db, who, uuid: files.of_container(db, who, uuid, files_max=9),
        [],
    ),
    "files.list_files": (
        lambda db, who, uuid: files.list_files(db, who, PageParams(9), container=uuid, now=NOW),
        Page([], False),
    ),
    "containers.list_containers": (
        lambda db, who, uuid: containers.list_containers(
            db, who, PageParams(9), name=None, now=NOW
        ),
        Page([], False),
    ),
}
OWN = {"containers.create", "containers.take"}
"""They make a container of the intruder's own."""


def test_every_function_is_attacked() -> None:
    found = {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in (containers, files)
        for name, function in inspect.getmembers(module, inspect.iscoroutinefunction)
        if function.__module__ == module.__name__
        and not name.startswith("_")
        and "database" in inspect.signature(function).parameters
    }
    assert found == {*ATTACKS, *OWN}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ATTACKS))
async def test_a_foreign_container_is_as_good_as_unknown(
    database: Database, tenant: TenantId, other_tenant: TenantId, name: str
) -> None:
    held = await alive(database, tenant)
    kept = file(held.uuid, uuid=held.uuid)
    await files.put(database, tenant, kept, [b"123"], bounds=BOUNDS)
    attack, nothing = ATTACKS[name]
    assert await attack(database, other_tenant, held.uuid) == nothing
    mine = container(uuid=held.uuid, owner="intruder")
    taken = await containers.take(database, other_tenant, mine, life_s=9, containers_max=1)
    assert taken is not None
    assert taken.epoch == 1
    assert await containers.load(database, tenant, held.uuid) == held
    assert await files.of_container(database, tenant, held.uuid, files_max=9) == [kept]
    assert await files.chunk(database, tenant, kept, 0) == b"123"


_WAITING = Statement("""
SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()
""")


async def raced(
    database: Database,
    tenant: TenantId,
    quota: TenantLock,
    works: Sequence[Callable[[], Coroutine[Any, Any, object]]],
) -> int:
    """How many succeed of what several do at once. None goes on before all of them stand where
    they look for room the last time; each has a connection of its own, and this has one.
    """
    async with database.transaction(tenant) as connection:
        await take_turns(connection, tenant, quota)
        loop = asyncio.get_running_loop()
        parties = [loop.create_task(work()) for work in works]
        async with asyncio.timeout(WAIT_S):
            while await connection.scalar(_WAITING, {}) < len(parties):
                assert not any(party.done() for party in parties), "one did not take turns"
    outcomes = await asyncio.gather(*parties, return_exceptions=True)
    assert all(not isinstance(one, Exception) or isinstance(one, RateLimited) for one in outcomes)
    return sum(bool(one) and not isinstance(one, Exception) for one in outcomes)


async def test_containers_that_are_made_at_once_keep_the_bound(
    database: Database, tenant: TenantId
) -> None:
    def make() -> Coroutine[Any, Any, bool]:
        return containers.create(database, tenant, container(), containers_max=2)

    assert await raced(database, tenant, TenantLock.CONTAINERS, [make] * PARTIES) == 2
    page = await containers.list_containers(database, tenant, PageParams(99), name=None, now=NOW)
    assert len(page.rows) == 2


@pytest.mark.parametrize("in_containers", [False, True])
async def test_files_that_are_written_at_once_keep_the_bound(
    database: Database, tenant: TenantId, *, in_containers: bool
) -> None:
    """Those of containers are of one each: a container's own files take turns anyway."""
    rows = [
        file((await alive(database, tenant)).uuid if in_containers else None)
        for _ in range(PARTIES)
    ]
    works = [partial(files.put, database, tenant, row, [b"abc"], bounds=ROOM) for row in rows]
    assert await raced(database, tenant, TenantLock.FILES, works) == 2


@pytest.mark.slow
async def test_copies_that_are_made_at_once_keep_the_bound(
    database: Database, tenant: TenantId
) -> None:
    source = file()
    assert await files.put(database, tenant, source, [b"abc"], bounds=BOUNDS)
    rows = [file((await alive(database, tenant)).uuid) for _ in range(PARTIES)]
    works = [
        partial(files.copy, database, tenant, row, copied=source.uuid, bounds=ROOM) for row in rows
    ]
    assert await raced(database, tenant, TenantLock.FILES, works) == 1


async def test_tenants_do_not_wait_for_each_other(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    async with database.transaction(tenant) as connection:
        await take_turns(connection, tenant, TenantLock.FILES)
        await take_turns(connection, tenant, TenantLock.CONTAINERS)
        assert await files.put(database, other_tenant, file(), [b"abc"], bounds=ROOM)
        await alive(database, other_tenant)
