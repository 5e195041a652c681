"""Whose a response is, and what others use of it: what goes with a person, and what does not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway import ids
from gateway.errors import ConversationLocked, StoreUnavailable
from gateway.metering import Metering, end_user_of
from gateway.protocol.context_item import ConversationPlace
from gateway.protocol.conversation_bodies import Conversation
from gateway.protocol.trace_records import TraceRecord
from gateway.retention import person_erasure
from gateway.retention.person_erasure import Erasing, used_in
from gateway.store import conversations, endings, responses, traces, usage_lines
from gateway.store.postgres.statements import Statement
from gateway.store.tools import containers, files
from gateway.store.tools.containers import ContainerRow
from gateway.store.tools.files import FileBounds, FileRow
from gateway.store.usage_lines import Metered, UsageLine
from tests.fakes.stored import COMPLETED, USAGE, finished, item, new_response

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

SECRET = b"secret"
BOUNDS = FileBounds(10**6, 10**6, 10)


class Store:
    def __init__(self, database: Database, tenant: TenantId) -> None:
        self.database = database
        self.tenant = tenant

    async def say(self, parent: UUID | None = None, *, names: Any = None, **request: Any) -> UUID:
        """A response; `names` puts a file into an item of it."""
        new = replace(new_response(parent=parent), request=orjson.dumps(request))
        await responses.insert(self.database, self.tenant, new)
        said = {"content": [{"type": "input_file", "file_id": ids.file_id(names)}]} if names else {}
        one = replace(item("i"), json=orjson.dumps(said))
        end = replace(finished(new.uuid, [one]), tokens=None)
        await endings.finish(self.database, self.tenant, end)
        return new.uuid

    async def meter(self, response: UUID, person: str) -> None:
        who = Metering(end_user_of(SECRET, self.tenant, person))
        metered = Metered(who=who)
        line = UsageLine(response, ids.new_uuid(), "m", COMPLETED, USAGE, metered=metered)
        await usage_lines.record_all(self.database, [(self.tenant, line)])

    async def upload(self) -> UUID:
        now, content = datetime.now(UTC), b"x"
        row = FileRow(
            ids.new_uuid(), None, "n", "user_data", None, 1, sha256(content).digest(), now
        )
        assert await files.put(self.database, self.tenant, row, [b"x"], bounds=BOUNDS)
        return row.uuid

    async def has(self, response: UUID) -> bool:
        return await responses.load(self.database, self.tenant, response) is not None

    async def has_file(self, file: UUID) -> bool:
        now = datetime.now(UTC)
        return await files.load(self.database, self.tenant, file, now=now) is not None

    def erasing(self) -> Erasing:
        digest = end_user_of(SECRET, self.tenant, "grace")
        return Erasing(self.database, self.tenant, "grace", digest)


@pytest.mark.slow
async def test_what_continues_theirs_for_nobody_is_theirs(
    database: Database, tenant: TenantId
) -> None:
    store = Store(database, tenant)
    first = await store.say(user="grace")
    second = await store.say(first)
    third = await store.say(second)
    for_bob = await store.say(second, safety_identifier="bob")
    with_token = await store.say(first)
    await store.meter(with_token, "bob")
    by_token = await store.say()
    await store.meter(by_token, "grace")
    # It breaks off in the middle, and goes on with the next one.
    broken = store.erasing()
    await broken._find()
    await broken._follow()
    assert await broken._delete([third]) == 1
    erased = await store.erasing().run()
    assert erased.responses == 3
    theirs = {first, second, third, by_token}
    kept = {one for one in (*theirs, for_bob, with_token) if await store.has(one)}
    assert kept == {for_bob, with_token}
    assert (
        await person_erasure.metered(database, tenant, end_user_of(SECRET, tenant, "grace"))
        == set()
    )


async def test_files_that_others_use_stay(database: Database, tenant: TenantId) -> None:
    store = Store(database, tenant)
    own, shared, unused = [await store.upload() for _ in range(3)]
    await store.say(user="grace", names=own)
    await store.say(user="grace", names=shared)
    await store.say(user="bob", names=shared)
    # Words are not what names a file.
    await store.say(user="grace", instructions=f'{{"file_id": "{ids.file_id(unused)}"}}')
    erased = await store.erasing().run()
    assert (erased.responses, erased.rows) == (3, {"files": 1})
    assert [await store.has_file(one) for one in (own, shared, unused)] == [False, True, True]


async def test_a_conversation_goes_with_what_is_being_added_to_it(
    database: Database, tenant: TenantId
) -> None:
    store = Store(database, tenant)
    talk = Conversation(ids.new_uuid(), datetime.now(UTC), {})
    await conversations.create(database, tenant, talk, [])
    new = replace(
        new_response(), request=b'{"user":"grace"}', conversation=ConversationPlace(talk.uuid, 0)
    )
    await responses.insert(database, tenant, new)
    with pytest.raises(ConversationLocked):
        await conversations.delete_conversation(database, tenant, talk.uuid)
    erased = await store.erasing().run()
    assert (erased.responses, erased.conversations) == (1, 1)
    assert await conversations.load(database, tenant, talk.uuid) is None


def test_only_what_names_something_is_found() -> None:
    uuid = ids.new_uuid()
    container, file = ids.container_id(uuid), ids.file_id(uuid)
    said = {
        "tools": [{"container": container}, {"container": {"type": "auto", "file_ids": [file, 7]}}],
        "input": [{"text": container, "file_id": "no"}, {"annotations": [{"container_id": None}]}],
    }
    found = used_in(said)
    assert (found.containers, found.files) == ({uuid}, {uuid})
    assert used_in([{"text": file, "x": {"y": container}}]).may_be_shared is False


@pytest.mark.slow
async def test_pages_of_a_tenant_end_between_any_two_rows(
    database: Database, tenant: TenantId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the first page there are responses of theirs, and items of others."""
    monkeypatch.setattr("gateway.retention.person_erasure.ROWS_AT_ONCE", 1)
    store = Store(database, tenant)
    shared, own = await store.upload(), await store.upload()
    kept = [await store.say(user="bob"), await store.say()]
    gone = [await store.say(user="grace", names=shared), await store.say(user="grace", names=own)]
    gone += [await store.say(one) for one in gone]
    kept += [await store.say(user="bob"), await store.say(user="bob", names=shared)]
    erased = await store.erasing().run()
    assert (erased.seen, erased.responses, erased.rows) == (8, 4, {"files": 1})
    assert [one for one in (*kept, *gone) if await store.has(one)] == kept
    assert [await store.has_file(one) for one in (shared, own)] == [True, False]


@pytest.mark.parametrize("other", [{"user": "bob"}, {}])
async def test_what_requests_of_others_name_stays(
    database: Database, tenant: TenantId, other: dict[str, str]
) -> None:
    store = Store(database, tenant)
    shared, own = await store.upload(), await store.upload()

    def using(*some: UUID) -> list[Any]:
        named = list(map(ids.file_id, some))
        return [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": named}}]

    await store.say(user="grace", tools=using(shared, own))
    await store.say(None, tools=using(shared), **other)
    assert (await store.erasing().run()).rows == {"files": 1}
    assert [await store.has_file(one) for one in (shared, own)] == [True, False]


def naming(file: UUID) -> Any:
    said = {"content": [{"type": "input_file", "file_id": ids.file_id(file)}]}
    return replace(item(f"of-{file}"), json=orjson.dumps(said))


@pytest.mark.slow
async def test_a_conversation_goes_with_what_it_has_and_those_of_others_stay(
    database: Database, tenant: TenantId
) -> None:
    store = Store(database, tenant)
    shared, own = await store.upload(), await store.upload()
    talk, other = [Conversation(ids.new_uuid(), datetime.now(UTC), {}) for _ in range(2)]
    await conversations.create(database, tenant, talk, [naming(shared), naming(own)])
    await conversations.create(database, tenant, other, [naming(shared)])
    said = {"hers": b'{"user":"grace"}', "nobody's": b"{}", "bob's": b'{"user":"bob"}'}
    made = {}
    for name, request in said.items():
        async with database.transaction(tenant) as connection:
            asked = Statement("SELECT next_position FROM conversations WHERE id = :id")
            end = await connection.scalar(asked, {"id": talk.uuid})
        place = ConversationPlace(talk.uuid, end)
        new = replace(new_response(), request=request, conversation=place)
        await responses.insert(database, tenant, new)
        await endings.finish(database, tenant, replace(finished(new.uuid), tokens=None))
        made[name] = new.uuid
    erased = await store.erasing().run()
    assert (erased.responses, erased.conversations, erased.rows) == (2, 1, {"files": 1})
    assert [name for name, one in made.items() if await store.has(one)] == ["bob's"]
    assert [await store.has_file(one) for one in (shared, own)] == [True, False]
    assert await conversations.load(database, tenant, talk.uuid) is None
    assert await conversations.load(database, tenant, other.uuid) is not None


async def test_containers_that_no_request_names_go(database: Database, tenant: TenantId) -> None:
    """One that was made for a response, and one that its tools went on with."""
    store = Store(database, tenant)
    used = ids.new_uuid()
    state = orjson.dumps({"pages": [], "container_id": ids.container_id(used)})
    response = await store.say(user="grace")
    async with database.owner_transaction() as connection:
        told = Statement("UPDATE responses SET tool_state = CAST(:state AS bytea) WHERE id = :id")
        await connection.execute(told, {"state": state, "id": response})
    now = datetime.now(UTC)
    for uuid in (auto := ids.auto_container(response), used):
        row = ContainerRow(uuid, "c", now, now, now + timedelta(hours=1), 60, 10**6)
        assert await containers.create(database, tenant, row, containers_max=9)
    assert (await store.erasing().run()).rows == {"containers": 2}
    for uuid in (auto, used):
        assert await containers.load(database, tenant, uuid) is None


async def test_usage_of_what_was_not_stored_forgets_who_it_was(
    database: Database, tenant: TenantId
) -> None:
    who = [Metering(end_user_of(SECRET, tenant, name), {"team": name}) for name in ("grace", "bob")]
    for one in who:
        line = UsageLine(
            ids.new_uuid(), ids.new_uuid(), "m", COMPLETED, USAGE, metered=Metered(who=one)
        )
        await usage_lines.record_all(database, [(tenant, line)])
    assert (await Store(database, tenant).erasing().run()).rows["usage"] == 1
    left = Statement("SELECT end_user, tags::text FROM usage ORDER BY end_user NULLS FIRST")
    async with database.transaction(tenant) as connection:
        hers, his = await connection.execute(left)
    assert tuple(hers) == (None, None)
    assert (his.end_user, "bob" in his.tags) == (who[1].end_user, True)


async def test_every_trace_that_names_a_response_of_theirs_goes_as_a_whole(
    database: Database, tenant: TenantId
) -> None:
    store = Store(database, tenant)
    hers = [await store.say(user="grace") for _ in range(2)]
    his = await store.say(user="bob")
    for name, response in (("one", hers[0]), ("two", hers[1]), ("his", his)):
        spans = [
            TraceRecord("span", name, "generation", b"{}", response),
            TraceRecord("span", name, "tool", b"{}"),
            TraceRecord("trace", name, name, b"{}"),
        ]
        await traces.put(database, tenant, spans)
    assert (await store.erasing().run()).rows == {"traces": 6}
    left = [await traces.read(database, tenant, name, rows_max=9) for name in ("one", "two", "his")]
    assert [len(records) for records in left] == [0, 0, 3]


async def a_turn(store: Store, talk: UUID, request: bytes) -> UUID:
    """A response that is being added to a conversation."""
    async with store.database.transaction(store.tenant) as connection:
        asked = Statement("SELECT next_position FROM conversations WHERE id = :id")
        end = await connection.scalar(asked, {"id": talk})
    new = replace(new_response(), request=request, conversation=ConversationPlace(talk, end))
    await responses.insert(store.database, store.tenant, new)
    return new.uuid


async def end_turn(store: Store, turn: UUID) -> None:
    end = replace(finished(turn, [item(f"of-{turn}")]), tokens=None)
    await endings.finish(store.database, store.tenant, end)


@pytest.mark.slow
@pytest.mark.parametrize("is_told_by", ["request", "token"])
async def test_a_conversation_that_somebody_else_adds_to_is_found_again(
    database: Database, tenant: TenantId, is_told_by: str
) -> None:
    store = Store(database, tenant)
    talk = Conversation(ids.new_uuid(), datetime.now(UTC), {})
    await conversations.create(database, tenant, talk, [])
    is_named = is_told_by == "request"
    hers = await a_turn(store, talk.uuid, b'{"user":"grace"}' if is_named else b"{}")
    await end_turn(store, hers)
    if not is_named:
        await store.meter(hers, "grace")
    his = await a_turn(store, talk.uuid, b'{"user":"bob"}')
    first = await store.erasing().run()
    assert (first.responses, first.conversations, first.busy) == (0, 0, 1)
    await end_turn(store, his)
    second = await store.erasing().run()
    assert (second.responses, second.conversations, second.busy) == (1, 1, 0)
    assert await conversations.load(database, tenant, talk.uuid) is None
    assert (
        await person_erasure.metered(database, tenant, end_user_of(SECRET, tenant, "grace"))
        == set()
    )


@pytest.mark.slow
async def test_nobody_takes_a_conversation_over_that_is_being_erased(
    database: Database, tenant: TenantId
) -> None:
    """Between the look at who adds to it and its end: then nothing would lead to it any more."""
    store = Store(database, tenant)
    talk = Conversation(ids.new_uuid(), datetime.now(UTC), {})
    await conversations.create(database, tenant, talk, [])
    hers = await a_turn(store, talk.uuid, b'{"user":"grace"}')
    async with database.transaction(tenant) as connection:
        # Hers ends while she is erased: the erasure has to wait for its row.
        ended = Statement("UPDATE responses SET status = 'completed' WHERE id = :id")
        await connection.execute(ended, {"id": hers})
        erasing = asyncio.create_task(store.erasing().run())
        waiting = Statement("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
        while not await connection.scalar(waiting):  # noqa: ASYNC110 - the other one is another task's
            await asyncio.sleep(0)
        taken = Statement(
            "UPDATE conversations SET writer = :writer, next_position = next_position + 1"
            " WHERE id = :id RETURNING true"
        )
        his = new_response().uuid
        is_his = await connection.scalar(taken, {"id": talk.uuid, "writer": his})
    assert is_his is None
    erased = await erasing
    assert (erased.responses, erased.conversations, erased.busy) == (1, 1, 0)
    assert await conversations.load(database, tenant, talk.uuid) is None


async def test_whom_a_token_named_is_found_again_where_an_erasure_breaks_off(
    database: Database, tenant: TenantId, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(database, tenant)
    response = await store.say()
    await store.meter(response, "grace")

    async def lost(*_: Any) -> bool:
        raise StoreUnavailable("gone")

    with monkeypatch.context() as broken:
        broken.setattr(responses, "delete", lost)
        with pytest.raises(StoreUnavailable):
            await store.erasing().run()
    erased = await store.erasing().run()
    assert (erased.responses, erased.rows) == (1, {"usage": 1})
    assert not await store.has(response)
