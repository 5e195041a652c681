"""Whose a response is, and what others use of it: what goes with a person, and what does not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway import ids
from gateway.errors import ConversationLocked
from gateway.metering import Metering, end_user_of
from gateway.protocol.context_item import ConversationPlace
from gateway.protocol.conversations import Conversation
from gateway.services.governance.erasing import Erasing
from gateway.store import conversations, endings, responses, usage
from gateway.store.governance import persons
from gateway.store.governance.persons import used_in
from gateway.store.tools import files
from gateway.store.tools.files import FileBounds, FileRow
from gateway.store.usage import Metered, UsageLine
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
        await usage.record_all(self.database, [(self.tenant, line)])

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
    assert await persons.metered(database, tenant, end_user_of(SECRET, tenant, "grace")) == set()


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
        new_response(),
        request=b'{"user":"grace"}',
        conversation=ConversationPlace(talk.uuid, 0),
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
