"""Data of a tenant as a whole: under another key, erased, exported, and gone for good."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import ids
from gateway.encryption.keyring import OFF, Keyring, KeyringPolicy
from gateway.errors import ConfigError, ContentSealed, InvalidRequest, ResourceNotFound
from gateway.governance.audit import JOB
from gateway.protocol.conversations import Conversation
from gateway.protocol.traces import TraceRecord
from gateway.services.governance.audit import AuditLogs
from gateway.services.governance.encryption import Progress, TenantEncryption
from gateway.services.governance.purging import Purging
from gateway.services.governance.tenant_data import TenantData
from gateway.store import conversations, events, flushes, messages, responses, traces
from gateway.store.claims import Claim
from gateway.store.events import LogBatch, day_of
from gateway.store.governance import audit_log
from gateway.store.governance.export import PAGE_BYTES, ROWS_MAX, rows_next
from gateway.store.governance.resealing import KEYS
from gateway.store.postgres.database import Database
from gateway.store.postgres.statements import Statement
from gateway.store.tenant_keys import TenantKeys
from gateway.store.tenants import insert_tenant
from gateway.store.tools import files, pages
from gateway.store.tools.files import FileBounds, FileRow
from gateway.store.tools.pages import StoredPage
from gateway.tenancy import TenantId
from tests.fakes.keys import MemoryProvider
from tests.fakes.stored import CREATED, durable_response, item, new_response, store_turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from tests.fakes.postgres import PostgresServer

WORD = b"canarywords"
BOUNDS = FileBounds(10**6, 10**6, 10)
PAGE = StoredPage("https://a.example/", "title", WORD.decode())


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
        talk = Conversation(ids.new_uuid(), datetime.now(UTC), {"a": WORD.decode()})
        await conversations.create(database, tenant, talk, [said(b"a"), said(b"b")])
        await store_turn(database, tenant, "t")
        await traces.put(database, tenant, [TraceRecord("trace", "t", "t", WORD)])
        await pages.put(database, tenant, PAGE, asked="x")
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
        listed = await conversations.list_items(
            database, tenant, talk, limit=9, order="asc", after=None
        )
        conversation = await conversations.load(database, tenant, talk)
        return [
            stored.request, stored.plan, [row.entries for row in log], listed, conversation,
            await pages.find(database, tenant, "x", age_max_s=10**6),
            [one.json for one in await traces.read(database, tenant, "t", rows_max=9)],
            await messages.find_items(database, tenant, ["in-t", "out-t"]),
        ]  # fmt: skip


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
    seen: list[Progress] = []
    assert await encryption.reseal(place.tenant, rows_per_s=10**6, tell=seen.append) > 5
    assert {one.table for one in seen} == set(KEYS)
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


async def test_plain_content_that_looks_like_a_log_is_resealed_once(place: Place) -> None:
    file = await place.put_file(place.plain, b"\2\3\1\0\0not sealed")
    await place.put_file(place.plain, b"\2no log")
    await place.encryption.enable(place.tenant)
    assert await place.encryption.reseal(place.tenant, rows_per_s=10**6) == 4
    assert await place.encryption.reseal(place.tenant, rows_per_s=10**6) == 0
    with pytest.raises(ContentSealed):
        await files.chunk(place.plain, place.tenant, file, 0)


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
    data = TenantData(place.sealed, place.keys)
    erased = await data.erase_person(place.name, "grace")
    assert (erased.responses, erased.conversations) == (2, 0)
    assert (erased.seen, erased.sealed) == (3, 0)
    left = [
        name
        for name, uuid in stored.items()
        if await responses.load(place.sealed, place.tenant, uuid) is not None
    ]
    assert left == ["other"]
    rows = await AuditLogs(place.plain).list_entries(place.tenant, _query())
    assert "grace" not in str(rows)
    # What was sealed with a key that is gone is nobody's, and in nobody's way.
    await place.encryption.rotate(place.tenant)
    await place.keys.destroy(place.tenant, before=2)
    new = replace(new_response(), request=b'{"user":"grace"}')
    await responses.insert(place.sealed, place.tenant, new)
    erased = await data.erase_person(place.name, "grace")
    assert (erased.seen, erased.responses, erased.sealed) == (2, 1, 1)
    with pytest.raises(InvalidRequest):
        await data.erase_person(place.name, "")
    with pytest.raises(ResourceNotFound):
        await data.erase_person("nobody", "grace")


def _query() -> Any:
    from gateway.services.governance.audit import AuditQuery

    return AuditQuery(event_types=["harmony.erasure.requested", "harmony.erasure.completed"])


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
        (line, *_) = archive.read("conversations.jsonl").splitlines()
        assert orjson.loads(orjson.loads(line)["metadata"]) == {"a": WORD.decode()}


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


@given(st.integers(1, ROWS_MAX), st.integers(0, 100 * PAGE_BYTES))
def test_pages_of_large_rows_are_short(rows: int, size_bytes: int) -> None:
    following = rows_next(rows, size_bytes)
    assert 1 <= following <= min(2 * rows, ROWS_MAX)
    assert following == 1 or following * size_bytes <= PAGE_BYTES * rows


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
    for refused in (
        data.erase_person(place.name, "grace"),
        place.encryption.shred(place.tenant),
    ):
        with pytest.raises(InvalidRequest, match="held"):
            await refused
    assert all(key.wrapped for key in await place.keys.keys(place.tenant))
    await data.hold(place.name, is_held=False)
    (removed,) = await Purging(place.sealed, data).round()
    assert (removed.tenant, removed.keys) == ("acme", 1)
    assert removed.rows["responses"] == 2
    assert not any((await place.stored(postgres)).values())
    assert await data.purge() == []
    (chain,) = await AuditLogs(place.plain).verify(place.tenant)
    assert chain.faults == ()
    *_, last = await audit_log.since(place.plain, place.tenant, 0, rows_max=100)
    assert (last.type, last.actor) == ("harmony.tenant.shredded", JOB.json())


def test_without_a_provider_nothing_is_encrypted() -> None:
    with pytest.raises(ConfigError, match="not configured"):
        TenantEncryption(
            Database("postgresql://x/x", pool_size_max=1, command_timeout_s=1, connect_timeout_s=1),
            None,
        )
