"""The lock is what keeps two turns from writing at once, and the test build has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.errors import ConversationLocked
from gateway.store import conversations
from tests.chaos import unlocked
from tests.fakes.turns import begin, contents, conversation_of, end

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId


async def test_only_without_the_lock_are_there_two_writers(
    database: Database, tenant: TenantId, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = await conversation_of(database, tenant)
    first = await begin(database, tenant, uuid)
    with pytest.raises(ConversationLocked):
        await begin(database, tenant, uuid)
    for name, *_ in unlocked.CONDITIONS:
        monkeypatch.setattr(
            conversations, name, getattr(conversations, name)
        )  # put back afterwards
    unlocked.tear_out()
    assert not (await contents(database, tenant, uuid)).is_locked
    second = await begin(database, tenant, uuid)
    for response in (second, first):
        await end(database, tenant, response, inputs=[f"in-{response.hex}"])
    left = (await contents(database, tenant, uuid)).items
    assert [item.item_id for item in left] == [f"in-{second.hex}"]
