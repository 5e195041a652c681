"""A conversation is held by its writer until that one has ended, by whomever."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.errors import ConversationLocked
from gateway.store import messages
from tests.fakes.replica import LEASE_S, Replica, Speaker, background, foreground, replica
from tests.fakes.stored import let_time_pass
from tests.fakes.turns import contents, conversation_of

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.engine.run_spec import RunSpec
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

ANSWER = "<|channel|>final<|message|>Hello<|return|>"
BEGINNING = "<|channel|>final<|message|>Hel"


async def continuing(database: Database, tenant: TenantId, uuid: UUID, spec: RunSpec) -> RunSpec:
    """The same response, as the next turn of a conversation."""
    return replace(spec, conversation=(await contents(database, tenant, uuid)).place)


async def kinds_in(database: Database, tenant: TenantId, uuid: UUID) -> list[str | None]:
    return [item.role for item in (await contents(database, tenant, uuid)).items]


async def test_a_dead_writer_holds_it_until_it_is_swept(
    database: Database, tenant: TenantId
) -> None:
    uuid = await conversation_of(database, tenant)
    dead = await continuing(database, tenant, uuid, foreground(tenant))
    await Replica(database, Speaker(ANSWER)).archive.begin(dead)
    one = Replica(database, Speaker(ANSWER))
    await one.keeper.heartbeat()
    late = await continuing(database, tenant, uuid, foreground(tenant))
    with pytest.raises(ConversationLocked):
        await one.archive.begin(late)
    await let_time_pass(database, tenant, seconds=LEASE_S + 1)
    assert await one.reaper.round() == 1
    assert await kinds_in(database, tenant, uuid) == []
    await one.archive.begin(late)
    assert (await contents(database, tenant, uuid)).is_locked


@pytest.mark.slow
async def test_a_replica_that_takes_over_adds_the_turn_once(
    database: Database, tenant: TenantId
) -> None:
    uuid = await conversation_of(database, tenant)
    spec = await continuing(database, tenant, uuid, background(tenant))
    silent = Speaker(BEGINNING, silent=True)
    async with replica(database, silent) as one, replica(database, Speaker(ANSWER)) as other:
        await one.archive.accept(spec, None, owned=False)
        await one.scheduler.claim_available()
        await one.stalled(silent)
        assert (await contents(database, tenant, uuid)).is_locked
        await let_time_pass(database, tenant, seconds=LEASE_S + 1)
        await other.scheduler.claim_available()
        await other.idle()
        found = await contents(database, tenant, uuid)
        own = await messages.history(database, tenant, spec.head.uuid, depth_max=9, items_max=99)
        assert own is not None
        assert found.items == own.items
        assert "Hello" in found.items[-1].json.decode()
        assert not found.is_locked
    assert (await contents(database, tenant, uuid)).items == found.items


async def test_a_queued_response_that_is_cancelled_lets_others_go_on(
    database: Database, tenant: TenantId
) -> None:
    uuid = await conversation_of(database, tenant)
    spec = await continuing(database, tenant, uuid, background(tenant))
    one = Replica(database, Speaker(ANSWER))
    await one.archive.accept(spec, None, owned=False)
    late = await continuing(database, tenant, uuid, background(tenant))
    with pytest.raises(ConversationLocked):
        await one.archive.accept(late, None, owned=False)
    await one.archive.cancel(tenant, spec.head.uuid)
    assert await kinds_in(database, tenant, uuid) == []
    await one.archive.accept(late, None, owned=False)
