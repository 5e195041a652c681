"""Items that are added to conversations by hand, without HTTP."""

from __future__ import annotations

from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway import ids
from gateway.errors import InvalidRequest, NoUpstreamAvailable, ResourceNotFound
from gateway.protocol.conversation_bodies import NewConversation, parse_items
from gateway.sealing import Binding, Sealer, SealingSecret, Unsealed
from gateway.services.conversations import Conversations
from gateway.services.executor import ThreadExecutor
from gateway.services.models import Models
from gateway.telemetry.metrics import Metrics
from gateway.tenancy import Principal
from gateway.upstreams.backend import Backend
from gateway.upstreams.http.client import KeepAlivePolicy, build_client
from gateway.upstreams.pool import Pool, PoolPolicy
from tests.conftest import new_tenant
from tests.fakes.create_bodies import LIMITS
from tests.fakes.harmony_script import harmony, harmony_of, script_ids
from tests.fakes.limited import limiter
from tests.fakes.turns import contents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.protocol.items import InputItem
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

SEALER = Sealer([SealingSecret("k", b"sixteen bytes or more")])
MODELS = ("one", "two")
THOUGHT = "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>"


class Desk:
    """Conversations of one tenant."""

    def __init__(self, database: Database, conversations: Conversations, tenant: TenantId) -> None:
        self.database = database
        self.conversations = conversations
        self.principal = Principal(tenant, "acme", ids.new_uuid())

    async def added(self, *items: Any) -> list[Any]:
        """Context items of a conversation that has been given these."""
        made = await self.conversations.create(self.principal, NewConversation(), body_bytes=0)
        named = ids.conversation_id(made.uuid)
        await self.conversations.add_items(self.principal, named, read(*items), body_bytes=0)
        return list((await contents(self.database, self.principal.tenant_id, made.uuid)).items)

    def thought(self, said: Unsealed, model: str) -> dict[str, Any]:
        """Reasoning that was sealed for a model."""
        seal = SEALER.seal(Binding(self.principal.tenant_id, model, "k"), said.content)
        return {"type": "reasoning", "summary": [], "encrypted_content": seal}


def read(*items: Any) -> tuple[InputItem, ...]:
    return parse_items(orjson.dumps({"items": items}), limits=LIMITS).items


@asynccontextmanager
async def desk(database: Database, *models: str) -> AsyncIterator[Desk]:
    served = dict.fromkeys(models, 1000)
    backend = Backend(
        "b0", "http://127.0.0.1:9", models={m: m for m in models}, context_lengths=served
    )
    client = build_client(keep_alive=KeepAlivePolicy(connections_max=1, expiry_s=1))
    pool = Pool([backend], client, policy=PoolPolicy(), metrics=Metrics())
    # Whatever is heavy is done in a thread.
    with closing(ThreadExecutor(threads_max=1, inline_bytes_max=-1)) as threads:
        conversations = Conversations(
            database,
            models=Models(pool, harmony_of, aliases={}, efforts={}, tasks={}),
            sealer=SEALER,
            format_=harmony(),
            executor=threads,
            limiter=limiter(database, "one"),
            items_max=3,
        )
        yield Desk(database, conversations, await new_tenant(database))
    await pool.close()


@pytest.mark.parametrize("model", MODELS)
async def test_sealed_reasoning_is_kept_as_it_was_said(
    shared_database: Database, model: str
) -> None:
    said = script_ids(THOUGHT)
    async with desk(shared_database, *MODELS) as at:
        (exact,) = await at.added(at.thought(Unsealed(ids=tuple(said)), model))
        (told,) = await at.added(at.thought(Unsealed(text="Hm."), model))
    assert list(exact.ids) == said
    assert list(told.ids) == said
    assert b"content" not in exact.json.replace(b"encrypted_content", b"")


@pytest.mark.parametrize("fields", [{}, {"phase": "commentary"}])
async def test_a_preamble_is_listed_and_shown_as_one(
    shared_database: Database, fields: dict[str, str]
) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    said = {"role": "assistant", "content": "I look.", **fields}
    async with desk(shared_database) as at:
        preamble, _, answer = await at.added(said, call, {"role": "assistant", "content": "Rain."})
    assert orjson.loads(preamble.json)["phase"] == preamble.phase == "commentary"
    start = "<|start|>assistant<|channel|>"
    assert list(preamble.ids) == script_ids(f"{start}commentary<|message|>I look.<|end|>")
    assert list(answer.ids) == script_ids(f"{start}final<|message|>Rain.<|end|>")


async def test_reasoning_for_a_model_of_others_is_refused(shared_database: Database) -> None:
    async with desk(shared_database, *MODELS) as at:
        with pytest.raises(InvalidRequest) as refused:
            await at.added(at.thought(Unsealed(text="Hm."), "three"))
    assert refused.value.param == "items[0].encrypted_content"


async def test_while_no_model_is_known_nothing_sealed_is_judged(shared_database: Database) -> None:
    async with desk(shared_database) as at:
        with pytest.raises(NoUpstreamAvailable):
            await at.added(at.thought(Unsealed(text="Hm."), "one"))
        open_thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}
        (kept,) = await at.added(open_thought)
    assert list(kept.ids) == script_ids(THOUGHT)


async def test_a_conversation_keeps_to_its_bound(shared_database: Database) -> None:
    hello = {"role": "user", "content": "Hello"}
    async with desk(shared_database) as at:
        assert len(await at.added(*[hello] * 3)) == 3
        with pytest.raises(InvalidRequest, match="at most 3 items"):
            await at.added(*[hello] * 4)


async def test_an_unknown_conversation_is_not_found(shared_database: Database) -> None:
    hello = read({"role": "user", "content": "Hello"})
    async with desk(shared_database) as at:
        for named in ("conv_nonsense", ids.conversation_id(ids.new_uuid())):
            with pytest.raises(ResourceNotFound):
                await at.conversations.add_items(at.principal, named, hello, body_bytes=0)
            with pytest.raises(ResourceNotFound):
                await at.conversations.delete_item(at.principal, named, "msg_1")
