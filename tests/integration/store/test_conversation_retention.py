"""Conversations have no time after which they go, unlike the responses in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.retention import sweep
from gateway.settings.sections import Retention
from gateway.store import conversations
from tests.fakes.aged import stored_ids
from tests.fakes.turns import begin, contents, conversation_of, end

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

NOTHING = Retention.model_construct(log_s=0, response_s=-60, idempotency_key_s=0, traces_s=0)
"""Whatever was made before a minute from now has expired."""
MANY = 1000


@pytest.mark.requirement("conversations.kept")
async def test_a_conversation_outlives_its_responses(database: Database, tenant: TenantId) -> None:
    uuid = await conversation_of(database, tenant, "1", "2")
    response = await begin(database, tenant, uuid)
    await end(database, tenant, response, inputs=["3"], outputs=["4"])
    before = await contents(database, tenant, uuid)
    assert len(before.items) == 4
    assert await sweep.delete_responses(database, NOTHING, rows_max=MANY) == 1
    assert await stored_ids(database, tenant) == set()
    assert await conversations.load(database, tenant, uuid) is not None
    assert await contents(database, tenant, uuid) == before
