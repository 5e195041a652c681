"""Data of a tenant as a whole: under another key, erased, exported, and gone for good."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import io
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import asyncpg
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import ids
from gateway.audit import JOB
from gateway.encryption.cipher import MAGIC, PLAIN_KEY, keys_of
from gateway.encryption.keyring import OFF, Keyring, KeyringPolicy
from gateway.errors import (
    ConfigError,
    ContentSealed,
    InvalidRequest,
    ResourceNotFound,
    StoreUnavailable,
)
from gateway.generation import TokenUsage
from gateway.metering import Metering, end_user_of
from gateway.protocol.conversation_bodies import Conversation
from gateway.protocol.pages import PageParams
from gateway.protocol.trace_records import TraceRecord
from gateway.retention import tenant_data
from gateway.retention.export import PAGE_BYTES, ROWS_MAX, rows_next
from gateway.retention.tenant_data import TenantData
from gateway.services.audit_logs import AuditLogs
from gateway.services.tenant_encryption import Resealing, TenantEncryption
from gateway.store import (
    audit_log,
    conversations,
    events,
    flushes,
    messages,
    resealing,
    responses,
    traces,
    usage_lines,
)
from gateway.store.claims import Claim
from gateway.store.events import LogBatch, day_of
from gateway.store.integrity import CHECKS, Scope
from gateway.store.postgres.database import Database
from gateway.store.postgres.statements import Statement
from gateway.store.resealing import KEYS, ResealPlace
from gateway.store.tenant_keys import TenantKeys
from gateway.store.tenants import insert_tenant
from gateway.store.tools import files, tool_calls, web_pages
from gateway.store.tools.files import FileBounds, FileRow
from gateway.store.tools.tool_calls import AuditedCall
from gateway.store.tools.web_pages import StoredPage
from gateway.store.usage_lines import Metered, UsageLine
from gateway.tenancy import TenantId
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.key_services import sealing
from tests.fakes.keys import MemoryProvider
from tests.fakes.logs import captured_logs
from tests.fakes.stored import CREATED, durable_response, item, new_response, store_turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from uuid import UUID

    from gateway.encryption.cipher import ContentCipher
    from gateway.store.postgres.database import Row
    from tests.fakes.postgres import PostgresServer

WORD = b"canarywords"
METADATA = {"a": WORD.decode(), "b": "\u2028\u2029\x85"}
BOUNDS = FileBounds(10**6, 10**6, 10)
PAGE = StoredPage(WORD.decode(), WORD.decode(), WORD.decode(), (WORD.decode(),))


@dataclass
class Place:
    """A database with a tenant, as a process without keys has it and as one with keys does."""

    url: str
    plain: Database
    sealed: Database
    keys: TenantKeys
    keys_database: Database
    tenant: TenantId
    name: str

    @property
    def encryption(self) -> TenantEncryption:
        return TenantEncryption(self.sealed, self.keys)

    async def let_keys_age(self) -> None:
        older = "UPDATE tenant_keys SET created_at = created_at - interval '1 hour'"
        async with self.keys_database.owner_transaction() as connection:
            await connection.script(older)

    async def fill(self, database: Database) -> tuple[UUID, UUID]:
        """Something in every table that has content; a response with a log, and a conversation."""
        tenant = self.tenant
        new = durable_response(owner="me")
        await responses.insert(database, tenant, replace(new, request=b'{"user":"' + WORD + b'"}'))
        batch = LogBatch(Claim(tenant, new.uuid, 1), day_of(CREATED), 1, 1, b"\1" + WORD)
        assert await events.append(database, [batch])
        talk = Conversation(ids.new_uuid(), datetime.now(UTC), METADATA)
        await conversations.create(database, tenant, talk, [said(b"a"), said(b"b")])
        await store_turn(database, tenant, "t")
        await traces.put(database, tenant, [TraceRecord("trace", "t", "t", WORD)])
        await web_pages.put_page(database, tenant, PAGE, requested_url="x")
        await tool_calls.record_all(database, [(tenant, called(new.uuid))])
        await self.put_file(database, WORD)
        return new.uuid, talk.uuid

    async def put_file(self, database: Database, content: bytes) -> FileRow:
        row = FileRow(
            ids.new_uuid(), None, WORD.decode(), "user_data", None, len(content),
            hashlib.sha256(content).digest(), datetime.now(UTC),
        )  # fmt: skip
        kept = await files.put(database, self.tenant, row, [content], bounds=BOUNDS)
        assert kept is not None
        return kept

    async def stored(self, postgres: PostgresServer) -> dict[str, bytes]:
        """All that the tables with content have."""
        found = {}
        for table in KEYS:
            rows = await postgres.fetch(f"SELECT * FROM {table}", url=self.url)
            values = [value for row in rows for value in row.values() if isinstance(value, bytes)]
            found[table] = b"\0".join(values)
        return found

    async def read(self, database: Database, response: UUID, talk: UUID) -> list[Any]:
        """What a client is shown of it."""
        tenant = self.tenant
        stored = await responses.load(database, tenant, response)
        assert stored is not None
        log = await events.read(database, tenant, response, stored.day, bytes_max=10**6)
        listed = await conversations.list_items(database, tenant, talk, PageParams(9))
        conversation = await conversations.load(database, tenant, talk)
        return [
            stored.request, stored.plan, [row.entries for row in log], listed, conversation,
            await web_pages.find_page(database, tenant, "x", age_max_s=10**6),
            [one.json for one in await traces.read(database, tenant, "t", rows_max=9)],
            await messages.find_items(database, tenant, ["in-t", "out-t"]),
        ]  # fmt: skip


def called(response: UUID) -> AuditedCall:
    word = WORD.decode()
    return AuditedCall(
        response=response, ordinal=0, attempt=1, kind="mcp", server=word, tool=word,
        arguments_hash=bytes(32), arguments_bytes=1, result_bytes=1, result_ids=1, outcome="ok",
        duration_ms=1, replica="me", at=datetime.now(UTC), hosts=(word,),
    )  # fmt: skip


def said(item_id: bytes) -> Any:
    return replace(item(item_id.decode()), json=WORD, name="f", call_id=WORD.decode())


@pytest.fixture
async def place(database_url: str, empty_database_url: str) -> AsyncIterator[Place]:
    bounds: dict[str, Any] = {
        "pool_size_max": 3, "command_timeout_s": 30, "connect_timeout_s": 30
    }  # fmt: skip
    key_database = Database(empty_database_url, **bounds)
    keys = TenantKeys(key_database)
    await keys.prepare()
    keyring = Keyring(keys, [MemoryProvider()], KeyringPolicy(fresh_s=-1))
    plain = Database(database_url, **bounds, keyring=OFF)
    sealed = Database(database_url, **bounds, keyring=keyring)
    tenant, name = TenantId(ids.new_uuid()), "acme"
    await insert_tenant(plain, tenant, name)
    yield Place(database_url, plain, sealed, keys, key_database, tenant, name)
    for one in (plain, sealed, key_database):
        await one.close()


@pytest.mark.slow
async def test_what_is_stored_is_brought_under_a_key_and_another_and_none(
    place: Place, postgres: PostgresServer
) -> None:
    response, talk = await place.fill(place.plain)
    before = await place.read(place.plain, response, talk)
    assert WORD in (await place.stored(postgres))["events"]
    encryption = place.encryption
    await encryption.enable(place.tenant)
    with pytest.raises(InvalidRequest, match="already"):
        await encryption.enable(place.tenant)
    # Plain rows are read by whoever has keys, and sealed ones beside them.
    assert await place.read(place.sealed, response, talk) == before
    _, other = await place.fill(place.sealed)
    seen: list[int] = []
    assert await encryption.reseal(place.tenant, rows_per_s=10**6, on_rows=seen.append) > 5
    assert sum(seen) > 5
    assert await encryption.reseal(place.tenant, rows_per_s=10**6) == 0
    stored = await place.stored(postgres)
    assert [table for table, content in stored.items() if WORD in content] == []
    assert await place.read(place.sealed, response, talk) == before
    with pytest.raises(ContentSealed):
        await place.read(place.plain, response, talk)
    # A name is found under the old key as under the new one, and then that may go.
    await encryption.rotate(place.tenant)
    # Others may not know of the new key yet, and what they seal now would be lost.
    with pytest.raises(InvalidRequest, match="seconds more"):
        await encryption.reseal(place.tenant, rows_per_s=10**6, destroys_older=True)
    assert all(key.destroyed_at is None for key in await encryption.keys(place.tenant))
    await place.let_keys_age()
    assert await encryption.reseal(place.tenant, rows_per_s=10**6, destroys_older=True) > 5
    assert [key.destroyed_at is None for key in await encryption.keys(place.tenant)] == [
        False, True,
    ]  # fmt: skip
    assert await place.read(place.sealed, response, talk) == before
    assert await place.read(place.sealed, response, other)
    await encryption.disable(place.tenant)
    assert await encryption.reseal(place.tenant, rows_per_s=10**6) > 5
    assert await place.read(place.plain, response, talk) == before
    (chain,) = await AuditLogs(place.plain).verify(place.tenant)
    assert (chain.count, chain.faults) == (4, ()), "created, enabled, rotated, disabled"


@pytest.mark.slow
async def test_what_is_stored_follows_a_new_key_by_itself(
    place: Place, postgres: PostgresServer
) -> None:
    response, talk = await place.fill(place.plain)
    before = await place.read(place.plain, response, talk)
    encryption = place.encryption
    await encryption.enable(place.tenant)
    job = Resealing(place.sealed, place.keys, rows_per_s=10**6)
    # Others may not know of the key yet.
    assert await job.round() == 0
    await place.let_keys_age()
    assert await job.round() == 1
    assert not any(WORD in content for content in (await place.stored(postgres)).values())
    assert await place.read(place.sealed, response, talk) == before
    assert "under key 1 since" in await encryption.progress(place.tenant)
    assert await job.round() == 0
    # The next one is stopped behind a page of another replica, which goes on from there.
    await encryption.rotate(place.tenant)
    await place.let_keys_age()
    began = await resealing.take(place.sealed, place.tenant, 2, hold_s=60)
    assert began == ResealPlace()
    assert await job.round() == 0, "somebody else does it"
    (last,) = await postgres.fetch("SELECT id FROM responses ORDER BY id LIMIT 1", url=place.url)
    behind = ResealPlace("responses", (last["id"],), 1, 1)
    assert await resealing.move(place.sealed, place.tenant, 2, behind, hold_s=-1)
    assert "at responses, 1 rows" in await encryption.progress(place.tenant)
    assert await job.round() == 1
    assert await encryption.reseal(place.tenant, rows_per_s=10**6, destroys_older=True) == 0
    assert await place.read(place.sealed, response, talk) == before
    *_, told = await audit_log.since(place.plain, place.tenant, 0, rows_max=100)
    assert (told.type, told.actor) == ("harmony.encryption.resealed", JOB.json())
    # A row that nobody can open any more is in nobody's way.
    await encryption.rotate(place.tenant)
    await place.put_file(place.sealed, b"lost")
    await encryption.rotate(place.tenant)
    await place.keys.destroy(place.tenant, before=4)
    await place.let_keys_age()
    assert not await resealing.move(place.sealed, place.tenant, 9, behind, hold_s=0)
    assert await job.round() == 1
    with pytest.raises(ContentSealed, match="gone"):
        await encryption.reseal(place.tenant, rows_per_s=10**6)


@pytest.mark.slow
async def test_flushes_outlive_the_key_that_they_were_sealed_with(place: Place) -> None:
    """Of a process that died: whoever takes its response finds its last entries there alone."""
    await place.encryption.enable(place.tenant)
    one, two = durable_response(owner="me"), durable_response(owner="me")
    fences = await flushes.fences(place.sealed, "me", [place.tenant])
    batches = []
    for new in (one, two):
        await responses.insert(place.sealed, place.tenant, new)
        claim = Claim(place.tenant, new.uuid, 1)
        batches.append(LogBatch(claim, day_of(CREATED), 1, 1, b"\1" + WORD))
    async with place.sealed.runs_transaction() as connection:
        assert await flushes.add(connection, "me", fences[place.tenant], batches)
    await responses.delete(place.sealed, place.tenant, two.uuid)
    await place.encryption.rotate(place.tenant)
    await place.let_keys_age()
    await place.encryption.reseal(place.tenant, rows_per_s=10**6, destroys_older=True)
    rows = await flushes.read(
        place.sealed, place.tenant, one.uuid, day_of(CREATED), bytes_max=10**6
    )
    assert rows[-1].entries == b"\1" + WORD


async def test_damaged_rows_keep_no_others_from_a_new_key(place: Place) -> None:
    damaged, intact = durable_response(owner="me"), durable_response(owner="me")
    await place.encryption.enable(place.tenant)
    for new in (damaged, intact):
        await responses.insert(place.sealed, place.tenant, new)
    fences = await flushes.fences(place.plain, "me", [place.tenant])
    cut_off = LogBatch(Claim(place.tenant, damaged.uuid, 1), day_of(CREATED), 1, 1, b"\2\x7f")
    async with place.plain.runs_transaction() as connection:
        assert await flushes.add(connection, "me", fences[place.tenant], [cut_off])
    async with place.plain.transaction(place.tenant) as connection:
        damage = Statement("UPDATE responses SET request = :request WHERE id = :id")
        assert await connection.count(damage, {"request": MAGIC, "id": damaged.uuid}) == 1
    await place.encryption.rotate(place.tenant)
    await place.let_keys_age()
    assert await Resealing(place.sealed, place.keys, rows_per_s=10**6).round() == 1
    await place.keys.destroy(place.tenant, before=2)
    assert await responses.load(place.sealed, place.tenant, intact.uuid) is not None
    with pytest.raises(ContentSealed, match="1 rows of responses"):
        await place.encryption.reseal(place.tenant, rows_per_s=10**6)


@pytest.mark.slow
async def test_plain_content_that_looks_like_a_log_is_resealed_once(place: Place) -> None:
    file = await place.put_file(place.plain, b"\2\3\1\0\0not sealed")
    await place.put_file(place.plain, b"\2no log")
    await place.encryption.enable(place.tenant)
    assert await place.encryption.reseal(place.tenant, rows_per_s=10**6) == 4
    assert await place.encryption.reseal(place.tenant, rows_per_s=10**6) == 0
    with pytest.raises(ContentSealed):
        await files.chunk(place.plain, place.tenant, file, 0)


@pytest.mark.slow
async def test_a_shredded_tenant_is_unreadable_in_the_dump_of_yesterday(
    place: Place, postgres: PostgresServer
) -> None:
    await place.encryption.enable(place.tenant)
    response, talk = await place.fill(place.sealed)
    await place.read(place.sealed, response, talk)
    # A copy of the database, as a backup of it is.
    await place.plain.close()
    await place.sealed.close()
    copy = await postgres.create(place.url.rpartition("/")[2].partition("?")[0])
    yesterday = replace(place, url=postgres.database_url(copy))
    yesterday.sealed = Database(
        yesterday.url, pool_size_max=2, command_timeout_s=30, connect_timeout_s=30,
        keyring=place.sealed.keyring,
    )  # fmt: skip
    place.sealed = yesterday.sealed
    assert await place.read(yesterday.sealed, response, talk)
    assert await place.encryption.shred(place.tenant) == 1
    assert not any(WORD in content for content in (await yesterday.stored(postgres)).values())
    with pytest.raises(ContentSealed, match="destroyed"):
        await place.read(yesterday.sealed, response, talk)
    assert {key.wrapped for key in await place.keys.keys(place.tenant)} == {b""}
    await yesterday.sealed.close()
    await postgres.drop(copy)


@pytest.mark.slow
async def test_a_shredded_tenant_is_looked_at_and_forgets_who_it_served(place: Place) -> None:
    await place.encryption.enable(place.tenant)
    response, _ = await place.fill(place.sealed)
    await place.encryption.shred(place.tenant)
    scope = Scope(since=datetime.min.replace(tzinfo=UTC), rows_max=9, log_s=9, lines_s=9)
    faults = [
        fault.invariant
        for check in CHECKS.values()
        async for page in check(place.sealed, place.tenant, scope)
        for fault in page.violations
    ]
    assert {*faults} == {"destroyed"}
    data = TenantData(place.sealed, place.keys, end_user_secret=b"a secret")
    digest = end_user_of(b"a secret", place.tenant, WORD.decode())
    line = UsageLine(
        response, ids.new_uuid(), "m", datetime.now(UTC), TokenUsage(),
        metered=Metered(who=Metering(digest)),
    )  # fmt: skip
    await usage_lines.record_all(place.plain, [(place.tenant, line)])
    erased = await data.erase_person(place.name, WORD.decode())
    assert (erased.sealed, erased.rows) == (2, {"usage": 1})


@pytest.mark.slow
async def test_a_person_is_erased_and_nobody_else(place: Place) -> None:
    await place.encryption.enable(place.tenant)
    talk = Conversation(ids.new_uuid(), datetime.now(UTC), {})
    await conversations.create(place.sealed, place.tenant, talk, [])
    asked = {
        "by user": {"user": "grace"},
        "by identifier": {"safety_identifier": "grace"},
        "other": {"user": "bob", "instructions": "grace"},
    }
    stored = {}
    for name, request in asked.items():
        new = replace(new_response(), request=orjson.dumps(request))
        await responses.insert(place.sealed, place.tenant, new)
        stored[name] = new.uuid
    seen: list[int] = []
    data = TenantData(place.sealed, place.keys, end_user_secret=b"a secret", on_rows=seen.append)
    erased = await data.erase_person(place.name, "grace")
    assert (erased.responses, erased.conversations) == (2, 0)
    assert (erased.seen, erased.sealed) == (3, 0)
    assert sum(seen) == 3
    left = [
        name
        for name, uuid in stored.items()
        if await responses.load(place.sealed, place.tenant, uuid) is not None
    ]
    assert left == ["other"]
    rows = await AuditLogs(place.plain).list_entries(place.tenant, _query())
    assert "grace" not in str(rows)
    assert [one["type"] for one in rows["data"]] == [
        "harmony.erasure.completed", "harmony.erasure.requested",
    ]  # fmt: skip
    digest = end_user_of(b"a secret", place.tenant, "grace").hex()
    assert {one[one["type"]]["id"] for one in rows["data"]} == {digest}
    # What was sealed with a key that is gone is nobody's, and in nobody's way.
    await place.encryption.rotate(place.tenant)
    await place.keys.destroy(place.tenant, before=2)
    new = replace(new_response(), request=b'{"user":"grace"}')
    await responses.insert(place.sealed, place.tenant, new)
    erased = await data.erase_person(place.name, "grace")
    assert (erased.seen, erased.responses, erased.sealed) == (2, 1, 1)
    await TenantData(place.sealed, place.keys).erase_person(place.name, "grace")
    rows = await AuditLogs(place.plain).list_entries(place.tenant, _query())
    unkeyed = [one[one["type"]]["id"] for one in rows["data"][:2]]
    assert unkeyed == [str(place.tenant)] * 2, "without a secret there is no digest"
    with pytest.raises(InvalidRequest):
        await data.erase_person(place.name, "")
    with pytest.raises(ResourceNotFound):
        await data.erase_person("nobody", "grace")


def _query() -> Any:
    from gateway.services.audit_logs import AuditQuery

    return AuditQuery(event_types=["harmony.erasure.requested", "harmony.erasure.completed"])


@pytest.mark.slow
async def test_an_archive_has_all_rows_with_their_content(place: Place) -> None:
    await place.encryption.enable(place.tenant)
    await place.fill(place.sealed)
    file = io.BytesIO()
    archived = await TenantData(place.sealed).export(place.name)
    async for piece in archived.pieces():
        file.write(piece)
    with zipfile.ZipFile(file) as archive:
        manifest = orjson.loads(archive.read("manifest.json"))
        assert manifest["files"] == archived.files
        for name, told in manifest["files"].items():
            content = archive.read(name)
            assert hashlib.sha256(content).hexdigest() == told["sha256"]
            assert content.count(b"\n") == told["rows"]
        for table in ("responses", "conversation_items", "files", "file_chunks", "traces"):
            assert WORD in archive.read(f"{table}.jsonl")
        (line, *_) = archive.read("conversations.jsonl").decode().splitlines()
        assert orjson.loads(orjson.loads(line)["metadata"]) == METADATA


@pytest.mark.slow
async def test_an_archive_that_nobody_reads_to_its_end_is_closed(place: Place) -> None:
    await place.fill(place.plain)
    data, has_begun, faults = TenantData(place.plain), asyncio.Event(), []

    async def read_some() -> None:
        async for _ in (await data.export(place.name)).pieces():
            has_begun.set()
            await asyncio.Event().wait()

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context))
    try:
        reading = asyncio.create_task(read_some())
        await has_begun.wait()
        reading.cancel()
        await asyncio.wait([reading])
        del reading
        async for _ in (await data.export(place.name)).pieces():
            """What the first one left is closed meanwhile."""
        gc.collect()
    finally:
        loop.set_exception_handler(None)
    assert faults == []


@pytest.mark.slow
async def test_an_archive_says_what_no_key_opens_any_more(place: Place) -> None:
    await place.encryption.enable(place.tenant)
    await place.fill(place.sealed)

    async def archived() -> tuple[dict[str, Any], list[Any]]:
        made, file = await TenantData(place.sealed).export(place.name), io.BytesIO()
        async for piece in made.pieces():
            file.write(piece)
        with zipfile.ZipFile(file) as archive:
            lines = archive.read("conversations.jsonl").splitlines()
        return made.files, [orjson.loads(line)["metadata"] for line in lines]

    files, shown = await archived()
    assert not any(told["sealed"] for told in files.values())
    await place.encryption.shred(place.tenant)
    files, shown = await archived()
    assert shown == [{"sealed": True}]
    assert {name for name, told in files.items() if told["sealed"]} == {
        f"{table}.jsonl" for table in KEYS.keys() - {"containers"}
    }
    assert files["conversation_items.jsonl"]["sealed"] == 2
    # What was stored since is in it.
    await place.encryption.enable(place.tenant)
    talk = Conversation(ids.new_uuid(), datetime.now(UTC), {"a": "b"})
    await conversations.create(place.sealed, place.tenant, talk, [])
    files, shown = await archived()
    assert shown == [{"sealed": True}, '{"a":"b"}']
    assert files["conversations.jsonl"]["sealed"] == 1


async def test_an_archive_is_refused_while_its_keys_are_away(place: Place) -> None:
    await place.encryption.enable(place.tenant)
    (provider,) = place.sealed.keyring._providers.values()
    assert isinstance(provider, MemoryProvider)
    provider.is_away = True
    with pytest.raises(StoreUnavailable):
        await TenantData(place.sealed).export(place.name)


@pytest.mark.slow
async def test_an_archive_without_content_has_the_same_rows(place: Place) -> None:
    await place.encryption.enable(place.tenant)
    await place.fill(place.sealed)
    rows = []
    for with_content in (True, False):
        file = io.BytesIO()
        archived = await TenantData(place.sealed).export(place.name, with_content=with_content)
        async for piece in archived.pieces():
            file.write(piece)
        with zipfile.ZipFile(file) as archive:
            everything = b"".join(map(archive.read, archive.namelist()))
        assert (WORD in everything) == with_content
        rows.append({name: told["rows"] for name, told in archived.files.items()})
    assert rows[0] | {"audit_log.jsonl": 0} == rows[1] | {"audit_log.jsonl": 0}


@pytest.mark.slow
@given(st.integers(1, ROWS_MAX), st.integers(0, 100 * PAGE_BYTES))
def test_pages_of_large_rows_are_short(rows: int, size_bytes: int) -> None:
    following = rows_next(rows, size_bytes)
    assert 1 <= following <= min(2 * rows, ROWS_MAX)
    assert following == 1 or following * size_bytes <= PAGE_BYTES * rows


@pytest.mark.slow
async def test_a_deleted_tenant_can_be_restored_until_it_is_removed(
    place: Place, postgres: PostgresServer
) -> None:
    await place.encryption.enable(place.tenant)
    await place.fill(place.sealed)
    data = TenantData(place.sealed, place.keys)
    await data.delete(place.name)
    assert await data.purge() == []
    await data.restore(place.name)
    with pytest.raises(InvalidRequest, match="was not deleted"):
        await data.restore(place.name)
    await data.delete(place.name)
    async with place.plain.owner_transaction() as connection:
        old = "UPDATE tenants SET deleted_at = deleted_at - interval '8 days'"
        await connection.execute(Statement(old))
    with pytest.raises(InvalidRequest):
        await data.restore(place.name)
    await data.hold(place.name, is_held=True)
    assert await data.purge() == []
    for refused in (data.erase_person(place.name, "grace"), place.encryption.shred(place.tenant)):
        with pytest.raises(InvalidRequest, match="held"):
            await refused
    assert all(key.wrapped for key in await place.keys.keys(place.tenant))
    await data.hold(place.name, is_held=False)
    (removed,) = await data.round()
    assert (removed.tenant, removed.keys) == ("acme", 1)
    assert removed.rows["responses"] == 2
    assert not any((await place.stored(postgres)).values())
    assert await data.purge() == []
    (chain,) = await AuditLogs(place.plain).verify(place.tenant)
    assert chain.faults == ()
    *_, last = await audit_log.since(place.plain, place.tenant, 0, rows_max=100)
    assert (last.type, last.actor) == ("harmony.tenant.purged", JOB.json())


def test_without_a_provider_nothing_is_encrypted() -> None:
    with pytest.raises(ConfigError, match="not configured"):
        TenantEncryption(
            Database("postgresql://x/x", pool_size_max=1, command_timeout_s=1, connect_timeout_s=1),
            None,
        )


async def deleted_since(place: Place, days: float) -> None:
    async with place.plain.owner_transaction() as connection:
        since = "UPDATE tenants SET deleted_at = now() - make_interval(secs => :seconds)"
        await connection.execute(Statement(since), {"seconds": days * 86_400})


@pytest.mark.slow
async def test_a_tenant_can_be_restored_for_seven_days(place: Place) -> None:
    data = TenantData(place.sealed, place.keys)
    await data.delete(place.name)
    await deleted_since(place, 6.99)
    assert await data.purge() == []
    await data.restore(place.name)
    await data.delete(place.name)
    await deleted_since(place, 7.01)
    with pytest.raises(InvalidRequest, match="7 days"):
        await data.restore(place.name)
    assert [one.tenant for one in await data.purge()] == [place.name]


@pytest.mark.slow
async def test_all_rows_of_a_removed_tenant_go_however_many_there_are(
    place: Place, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.retention.tenant_data.ROWS_AT_ONCE", 1)
    for _ in range(2):
        await place.fill(place.plain)
    seen: list[int] = []
    data = TenantData(place.sealed, place.keys, on_rows=seen.append)
    await data.delete(place.name)
    (removed,) = await data.purge(window_s=0)
    assert removed.rows["responses"] == 4
    assert sum(seen) == sum(removed.rows.values())
    assert not any((await place.stored(postgres)).values())


@pytest.mark.slow
async def test_a_hold_that_comes_when_a_removal_has_begun_stops_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.encryption.enable(place.tenant)
    response, talk = await place.fill(place.sealed)
    data = TenantData(place.sealed, place.keys)
    other = TenantId(ids.new_uuid())
    await insert_tenant(place.plain, other, "globex")
    for name in (place.name, "globex"):
        await data.delete(name)
    is_due = tenant_data.is_due

    async def and_held(database: Database, tenant_id: TenantId, *, window_s: float) -> bool:
        found = await is_due(database, tenant_id, window_s=window_s)
        if tenant_id == place.tenant:
            await data.hold(place.name, is_held=True)
        return found

    monkeypatch.setattr(tenant_data, "is_due", and_held)
    # Nor does it keep others.
    assert [one.tenant for one in await data.purge(window_s=0)] == ["globex"]
    assert all(key.wrapped for key in await place.keys.keys(place.tenant))
    assert await place.read(place.sealed, response, talk)


@pytest.mark.slow
async def test_what_was_destroyed_is_not_in_the_pages_of_its_table_either(place: Place) -> None:
    """What was overwritten is in dead rows until the table is written anew."""
    await place.encryption.enable(place.tenant)
    asked = Statement("SELECT pg_relation_filenode('tenant_keys')")

    async def file() -> int:
        async with place.keys_database.owner_transaction() as connection:
            found: int = await connection.scalar(asked)
            return found

    before = await file()
    assert await place.encryption.shred(place.tenant) == 1
    assert await file() != before
    told = await audit_log.since(place.plain, place.tenant, 0, rows_max=100)
    assert (told[-1].type, told[-1].details) == (
        "harmony.tenant.shredded", b'{"data":{"keys":1}}',
    )  # fmt: skip


@pytest.mark.slow
async def test_a_destruction_that_was_broken_off_is_completed_by_the_next(
    place: Place, empty_database_url: str
) -> None:
    await place.encryption.enable(place.tenant)
    hasty = Database(empty_database_url, pool_size_max=1, command_timeout_s=0.2)
    file = Statement("SELECT pg_relation_filenode('tenant_keys')")
    async with place.keys_database.owner_transaction() as connection:
        await connection.script("LOCK TABLE tenant_keys IN ROW SHARE MODE")
        with pytest.raises(StoreUnavailable):
            await TenantKeys(hasty).destroy(place.tenant)
        before = await connection.scalar(file)
    await hasty.close()
    assert await place.keys.destroy(place.tenant) == 0
    async with place.keys_database.owner_transaction() as connection:
        assert await connection.scalar(file) != before


@pytest.mark.slow
async def test_what_is_written_while_it_is_resealed_stays(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading a row and writing it under the newer key."""
    talk = Conversation(ids.new_uuid(), datetime.now(UTC), {"a": "old"})
    await conversations.create(place.plain, place.tenant, talk, [])
    await place.encryption.enable(place.tenant)
    changed, writing = resealing._change, ThreadPoolExecutor(1)

    def and_written(cipher: ContentCipher, table: str, row: Row) -> dict[str, Any] | None:
        if table == "conversations" and keys_of(row.metadata) == {PLAIN_KEY}:
            writing.submit(asyncio.run, write_metadata(place.url, talk.uuid, {"a": "new"})).result()
        return changed(cipher, table, row)

    monkeypatch.setattr(resealing, "_change", and_written)
    await place.encryption.reseal(place.tenant, rows_per_s=10**6)
    writing.shutdown()
    found = await conversations.load(place.sealed, place.tenant, talk.uuid)
    assert found is not None
    assert found.metadata == {"a": "new"}


async def write_metadata(url: str, talk: UUID, metadata: dict[str, str]) -> None:
    """By another process, which has its own connections."""
    connection = await asyncpg.connect(url)
    await connection.execute(
        "UPDATE conversations SET metadata = $1 WHERE id = $2", orjson.dumps(metadata), talk
    )
    await connection.close()


@pytest.mark.slow
async def test_a_process_removes_what_is_due_with_its_keys(
    database_url: str, empty_database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself; and it tells how far the chains of the audit log have come."""
    monkeypatch.setattr("gateway.retention.tenant_data.PURGE_INTERVAL_S", 0.01)
    monkeypatch.setattr("gateway.services.audit_logs.ANCHOR_S", 0.5)
    settings = gateway_settings(database_url, [], encryption=sealing(tmp_path, empty_database_url))
    told = asyncio.Event()
    with captured_logs(told.set) as logged:
        async with running_gateway(settings) as gateway, asyncio.timeout(30):
            base = gateway.process.foundation
            async with base.database.owner_transaction() as connection:
                found = Statement("SELECT id FROM tenants")
                tenant = TenantId(await connection.scalar(found))
            assert base.keys is not None
            keys = TenantKeys(base.keys)
            await base.database.keyring.ready([tenant])
            assert all(key.wrapped for key in await keys.keys(tenant))
            while not any(one["event"] == "audit chain" for one in logged):
                told.clear()
                await told.wait()
            async with base.database.owner_transaction() as connection:
                old = "UPDATE tenants SET deleted_at = now() - interval '8 days'"
                await connection.script(old)
            gone = Statement("SELECT purged_at IS NOT NULL FROM tenants")
            async with base.database.owner_transaction() as connection:
                while not await connection.scalar(gone):
                    pass
            assert [key.wrapped for key in await keys.keys(tenant)] == [b""]


@pytest.mark.slow
async def test_what_comes_late_of_a_removed_tenant_goes_with_the_next_round(place: Place) -> None:
    data = TenantData(place.sealed, place.keys)
    await data.delete(place.name)
    (removed,) = await data.purge(window_s=0)
    await place.put_file(place.plain, b"late")
    (late,) = await data.purge(window_s=0)
    assert (late.tenant, late.rows["files"]) == (removed.tenant, 1)
    assert await data.purge(window_s=0) == []


@pytest.mark.slow
async def test_a_tenant_that_is_deleted_again_goes_no_later(place: Place) -> None:
    data = TenantData(place.sealed, place.keys)
    await data.delete(place.name)
    await deleted_since(place, 8)
    await data.delete(place.name)
    assert [one.tenant for one in await data.purge()] == [place.name]


@pytest.mark.slow
async def test_flushes_are_resealed_behind_whoever_moves_parts_of_them(place: Place) -> None:
    await place.encryption.enable(place.tenant)
    await flushes.fences(place.sealed, "me", [place.tenant])
    async with place.plain.owner_transaction() as connection:
        await connection.execute(Statement("SELECT FROM writers FOR NO KEY UPDATE"))
        begun = asyncio.create_task(
            resealing.reseal_flushes(place.sealed, place.tenant, after=("", 0), rows_max=9)
        )
        waiting = Statement("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
        async with place.plain.owner_transaction() as other:
            while not await other.scalar(waiting):
                assert not begun.done()
    assert await begun == (0, None)
