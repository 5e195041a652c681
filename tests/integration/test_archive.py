"""Keeping a response while the database comes and goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest

from gateway.errors import StoreUnavailable
from gateway.harmony.rendering import Renderer
from gateway.log import Finished, Tokens, TurnEnded, TurnStarted
from gateway.runs.archive import Archive
from gateway.store import messages, responses
from gateway.store.engine import Database
from tests.fakes.harmony_script import script_ids, vocabulary
from tests.fakes.staged_run import STOP, ScriptedTokens, Stage, specification

if TYPE_CHECKING:
    from gateway.log import Entry
    from gateway.tenancy import TenantId

COMPLETED = Finished("completed", 1_795_000_009)


def played(script: str) -> Stage:
    """A finished fold of one turn."""
    stage = Stage(ScriptedTokens([]))
    entries: list[Entry] = [TurnStarted(7), Tokens(tuple(script_ids(script))), TurnEnded(STOP)]
    for entry in [*entries, COMPLETED]:
        stage.live.fold.apply(entry)
    return stage


async def test_a_malformed_message_is_stored_as_it_should_have_been(
    database: Database, tenant: TenantId
) -> None:
    stage = played("<|channel|>final to=nobody?<|message|>Hello<|return|>")
    archive = Archive(database, Renderer(vocabulary()), commit_wait_s=1)
    spec = specification(tenant=tenant)
    await archive.begin(spec)
    await archive.finish(spec, COMPLETED, stage.live.fold)
    history = await messages.history(database, tenant, spec.head.uuid, depth_max=10, items_max=10)
    assert history is not None
    (item,) = history.items
    expected = "<|start|>assistant<|channel|>final<|message|>Hello<|end|>"
    assert list(item.ids or ()) == script_ids(expected)
    stored = await responses.load(database, tenant, spec.head.uuid)
    assert stored is not None
    assert orjson.loads(stored.body or b"") == stage.live.fold.response()
    assert orjson.loads(stored.recoveries or b"") == {
        "header_leftover": 1,
        "unknown_recipient": 1,
    }


async def test_the_same_end_may_be_written_twice(database: Database, tenant: TenantId) -> None:
    stage = played("<|channel|>final<|message|>Hello<|return|>")
    archive = Archive(database, Renderer(vocabulary()), commit_wait_s=1)
    spec = specification(tenant=tenant)
    await archive.begin(spec)
    for _ in range(2):
        await archive.finish(spec, COMPLETED, stage.live.fold)
    history = await messages.history(database, tenant, spec.head.uuid, depth_max=10, items_max=10)
    assert history is not None
    assert len(history.items) == 1


async def test_a_database_that_stays_away_is_given_up(tenant: TenantId) -> None:
    stage = played("<|channel|>final<|message|>Hello<|return|>")
    database = Database.connect(
        "postgresql://nobody:x@127.0.0.1:1/none",
        pool_size_max=1,
        command_timeout_s=1,
        connect_timeout_s=1,
    )
    archive = Archive(database, Renderer(vocabulary()), commit_wait_s=0.5)
    with pytest.raises(StoreUnavailable):
        await archive.finish(specification(tenant=tenant), COMPLETED, stage.live.fold)
    await database.close()
