"""Conversations. Unknown ones and another tenant's look the same."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gateway import ids
from gateway.context.assembly import may_repeat, referenced_ids, take_in, unseal
from gateway.errors import InvalidRequest, NoUpstreamAvailable
from gateway.protocol.conversation_bodies import Conversation, unknown_conversation, unknown_item
from gateway.protocol.items import Reasoning
from gateway.services.runs.history_source import ITEMS_MAX
from gateway.services.runs.tool_grants import pending
from gateway.services.zero_retention import require_storage
from gateway.store import conversations as rows
from gateway.store import messages

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from gateway.models.format import ModelFormat
    from gateway.protocol.context_item import ContextItem
    from gateway.protocol.conversation_bodies import NewConversation
    from gateway.protocol.items import InputItem
    from gateway.protocol.pages import Page, PageParams
    from gateway.replication.limiter import Limiter
    from gateway.sealing import Sealer, Unsealed
    from gateway.services.executor import ThreadExecutor
    from gateway.services.models import Models
    from gateway.store.postgres.database import Database
    from gateway.tenancy import Principal, TenantId

PARAM = "items"
_NOTHING: Final[Mapping[str, ContextItem]] = MappingProxyType({})


class Conversations:
    """Use cases of `/v1/conversations`, which raise `ResourceNotFound`, `StoreUnavailable`, and
    `ConversationLocked` for changes of items while a response will be added.
    """

    def __init__(  # noqa: PLR0913 - its dependencies
        self,
        database: Database,
        *,
        models: Models,
        sealer: Sealer,
        format_: ModelFormat,
        executor: ThreadExecutor,
        limiter: Limiter,
        items_max: int = ITEMS_MAX,
    ) -> None:
        self._database = database
        self._models = models
        self._sealer = sealer
        self._format = format_
        self._executor = executor
        self._storing = limiter.storing
        self._items_max = items_max

    async def create(
        self, principal: Principal, new: NewConversation, *, body_bytes: int
    ) -> Conversation:
        require_storage(principal, "A conversation")
        conversation = Conversation(ids.new_uuid(), datetime.now(UTC), new.metadata)
        async with self._storing(principal, body_bytes):
            items = await self._take_in(principal, new.items, body_bytes=body_bytes)
            await rows.create(
                self._database,
                principal.tenant_id,
                conversation,
                items,
                project_id=principal.project,
            )
        return conversation

    async def get(self, principal: Principal, conversation_id: str) -> Conversation:
        uuid = _uuid(conversation_id)
        conversation = await rows.load(self._database_for(principal), principal.tenant_id, uuid)
        return _require(conversation, conversation_id)

    async def set_metadata(
        self, principal: Principal, conversation_id: str, metadata: dict[str, str]
    ) -> Conversation:
        require_storage(principal, "A conversation")
        uuid = _uuid(conversation_id)
        async with self._storing(principal, 0):
            changed = await rows.set_metadata(
                self._database_for(principal), principal.tenant_id, uuid, metadata
            )
        return _require(changed, conversation_id)

    async def delete(self, principal: Principal, conversation_id: str) -> None:
        """Delete the conversation. Stored responses keep copies of its items."""
        uuid = _uuid(conversation_id)
        if not await rows.delete_conversation(
            self._database_for(principal), principal.tenant_id, uuid
        ):
            raise unknown_conversation(conversation_id)

    async def add_items(
        self,
        principal: Principal,
        conversation_id: str,
        new: Sequence[InputItem],
        *,
        body_bytes: int,
    ) -> list[bytes]:
        """Add items and return them as JSON.

        An item keeps its id unless the conversation has that id already. A reference, or an item
        with an id of this gateway, becomes a copy of the stored item, or is dropped if the
        conversation has it. Raises `InvalidRequest` if such an item was changed, for reasoning
        sealed elsewhere, and for an approval that would start a call; `NoUpstreamAvailable` while
        the models that reasoning may be sealed for are unknown.
        """
        require_storage(principal, "A conversation")
        uuid, tenant_id = _uuid(conversation_id), principal.tenant_id
        database = self._database_for(principal)
        own = {item.id for item in new if item.id is not None}
        async with self._storing(principal, body_bytes):
            before = await rows.find_items(database, tenant_id, uuid, own)
            items = await self._take_in(principal, new, before, body_bytes=body_bytes)
            exists = await rows.add_items(
                database, tenant_id, uuid, items, items_max=self._items_max
            )
            if not exists:
                raise unknown_conversation(conversation_id)
        return [item.json for item in items]

    async def list_items(
        self,
        principal: Principal,
        conversation_id: str,
        page: PageParams,
        *,
        include: Collection[str] = (),
    ) -> Page[bytes]:
        uuid = _uuid(conversation_id)
        items = await rows.list_items(
            self._database_for(principal), principal.tenant_id, uuid, page, include=include
        )
        if items is None:
            raise unknown_conversation(conversation_id)
        return items

    async def get_item(
        self,
        principal: Principal,
        conversation_id: str,
        item_id: str,
        *,
        include: Collection[str] = (),
    ) -> bytes:
        uuid = _uuid(conversation_id)
        item = await rows.find_item(
            self._database_for(principal), principal.tenant_id, uuid, item_id, include=include
        )
        if item is None:
            raise unknown_conversation(conversation_id)
        if item.json is None:
            raise unknown_item(conversation_id, item_id)
        return item.json

    async def delete_item(
        self, principal: Principal, conversation_id: str, item_id: str
    ) -> Conversation:
        uuid = _uuid(conversation_id)
        deleted = await rows.delete_item(
            self._database_for(principal), principal.tenant_id, uuid, item_id
        )
        if deleted is None:
            raise unknown_conversation(conversation_id)
        conversation, was_there = deleted
        if not was_there:
            raise unknown_item(conversation_id, item_id)
        return conversation

    def _database_for(self, principal: Principal) -> Database:
        return self._database.within(principal.wall)

    async def _take_in(
        self,
        principal: Principal,
        new: Sequence[InputItem],
        before: Mapping[str, ContextItem] = _NOTHING,
        *,
        body_bytes: int,
    ) -> list[ContextItem]:
        copied = may_repeat(new) & before.keys()
        _refuse_answers([item for item in new if item.id not in copied])
        stored = await messages.find_items(
            self._database_for(principal), principal.tenant_id, referenced_ids(new)
        )

        def kept() -> list[ContextItem]:
            items = take_in(
                new,
                stored=stored,
                unsealed=self._unseal(principal.tenant_id, new),
                source=ids.new_uuid(),
                before=before,
                param=PARAM,
            )
            return list(self._render(items))

        return await self._executor.run(kept, size_bytes=body_bytes)

    def _unseal(self, tenant_id: TenantId, new: Sequence[InputItem]) -> dict[int, Unsealed]:
        models = [model.id for model in self._models.list()]
        if not models and any(isinstance(i, Reasoning) and i.encrypted_content for i in new):
            raise NoUpstreamAvailable("any", "no backend has said yet what it serves")
        return unseal(new, self._sealer, tenant=tenant_id, models=models, param=PARAM)

    def _render(self, items: Iterable[ContextItem]) -> Iterator[ContextItem]:
        # Ids are stored, so that later turns need not render the items again. Sealed items are
        # opened only here, and their JSON has no text to render later. Outputs without their call,
        # results of calls that were approved and calls that were cut off stay as they are.
        functions: dict[str | None, str | None] = {}
        for item in items:
            if item.is_call:
                functions[item.call_id] = item.name
            is_alone = item.is_output and item.call_id not in functions
            is_approved = item.kind == "mcp_call" and item.call_id is not None
            if is_alone or is_approved or not item.complete or item.ids is not None:
                yield item
            else:
                function = functions.pop(item.call_id) if item.is_output else None
                yield item.with_ids(array("I", self._format.render_item(item, function)))


def _uuid(conversation_id: str) -> UUID:
    uuid = ids.parse_conversation_id(conversation_id)
    if uuid is None:
        raise unknown_conversation(conversation_id)
    return uuid


def _refuse_answers(new: Sequence[InputItem]) -> None:
    # An approval that nothing follows would start a call, which items cannot do. In a history kept
    # elsewhere, its result follows it.
    if pending(new, PARAM):
        raise InvalidRequest(
            "Invalid 'items': an 'mcp_approval_response' begins a call, and items of a "
            "conversation begin none. Send it in the 'input' of POST /v1/responses, with this "
            "'conversation' and the MCP server among its 'tools'.",
            code="invalid_value",
            param=PARAM,
        )


def _require(conversation: Conversation | None, conversation_id: str) -> Conversation:
    if conversation is None:
        raise unknown_conversation(conversation_id)
    return conversation
