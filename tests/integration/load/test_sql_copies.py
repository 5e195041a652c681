"""Histories, logs and crowds that the benchmark makes in SQL are such as the gateway reads."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from gateway import ids
from gateway.entries import Queued, Tokens, pack, unpack
from gateway.protocol.conversation_bodies import Conversation
from gateway.store import conversations, events, messages, responses
from gateway.store.events import day_of
from tests.fakes.stored import durable_response, item, store_turn
from tests.load import copying, crowds, histories, replays

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId


@pytest.mark.slow
async def test_a_copied_chain_is_read_as_one_history(
    database: Database, database_url: str, tenant: TenantId
) -> None:
    first = await store_turn(database, tenant, "one")
    chain = await asyncio.to_thread(histories.copy_chain, database_url, first, 5)
    read = await messages.history(database, tenant, chain[-1], depth_max=10, items_max=100)
    assert read is not None
    assert len({found.item_id for found in read.items}) == len(read.items) == 10
    assert {tuple(found.ids or ()) for found in read.items} == {(1, 2, 3)}


@pytest.mark.slow
async def test_a_conversation_is_filled_and_copied(
    database: Database, database_url: str, tenant: TenantId
) -> None:
    made = Conversation(ids.new_uuid(), datetime.now(UTC), {})
    await conversations.create(database, tenant, made, [item("only")])
    await asyncio.to_thread(histories.repeat_item, database_url, made.uuid, 30)
    copies = await asyncio.to_thread(histories.copies, database_url, made.uuid, 2)
    for uuid in (made.uuid, *copies):
        contents = await conversations.read_contents(database, tenant, uuid, items_max=100)
        assert contents is not None
        assert contents.place.end == 30
        assert len({found.item_id for found in contents.items}) == 30


@pytest.mark.slow
async def test_a_crowd_of_copies_is_of_finished_responses_of_several_tenants(
    database: Database, database_url: str, tenant: TenantId
) -> None:
    name_it = ("UPDATE tenants SET name = 'load' WHERE id = $1", tenant)
    await asyncio.to_thread(copying.execute, database_url, name_it)
    template = await store_turn(database, tenant, "one")
    found = await asyncio.to_thread(crowds.filled, database_url, 8 * crowds.TENANTS)
    assert len(set(found)) == 8
    assert template not in found
    for uuid in found:
        stored = await responses.load(database, tenant, uuid)
        assert stored is not None
        assert stored.is_terminal
        assert uuid.int >> 80 == int(stored.created_at.timestamp() * 1000)


@pytest.mark.slow
async def test_a_log_is_written_anew_with_an_id_in_each_entry(
    database: Database, database_url: str, tenant: TenantId
) -> None:
    said = pack([Queued(), Tokens((7, 8, 9))])
    new = replace(durable_response(owner="replica"), entries=(2, said))
    await responses.insert(database, tenant, new)
    await asyncio.to_thread(replays.rewrite, database_url, new.uuid, 1)
    day = day_of(new.created_at)
    rows = await events.read(database, tenant, new.uuid, day, bytes_max=10_000)
    entries = [entry for row in rows for entry in unpack(row.entries)]
    assert entries == [Queued(), Tokens((7,)), Tokens((8,)), Tokens((9,))]
    stored = await responses.load(database, tenant, new.uuid)
    assert stored is not None
    assert stored.next_entry == 4
