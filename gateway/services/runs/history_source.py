from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gateway import ids
from gateway.context.assembly import may_repeat, referenced_ids
from gateway.errors import ConversationLocked, InvalidRequest, PreviousResponseNotFound
from gateway.protocol.conversation_bodies import unknown_conversation
from gateway.protocol.hosted_tools import CodeInterpreterTool, McpServerTool, WebSearchTool
from gateway.store import conversations, messages
from gateway.store.messages import NeededJson

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from gateway.protocol.context_item import ContextItem, ConversationPlace
    from gateway.protocol.responses.create_request import CreateResponse
    from gateway.store.postgres.database import Database
    from gateway.tenancy import Principal

DEPTH_MAX: Final = 1000
ITEMS_MAX: Final = 20_000
_RUNNING = frozenset({"queued", "in_progress"})


@dataclass(frozen=True, slots=True)
class History:
    """Context that a response continues: that of `parent`, or of a `conversation` as of now.

    `root_created_at` (Unix seconds) pins the date in the prompt, so that a conversation that goes
    on after midnight still finds its cached prefix. `unstored` items, the last of `items`, are
    stored with the next stored response. `tool_state` is of hosted tools (`protocol.grants`).
    """

    parent: UUID | None
    items: Sequence[ContextItem]
    root_created_at: int
    unstored: Sequence[ContextItem] = ()
    conversation: ConversationPlace | None = None
    tool_state: bytes | None = None
    placement: bytes | None = None

    @property
    def stored(self) -> tuple[ContextItem, ...]:
        return tuple(self.items[: len(self.items) - len(self.unstored)])


class HistorySource:
    def __init__(
        self, database: Database, *, depth_max: int = DEPTH_MAX, items_max: int = ITEMS_MAX
    ) -> None:
        self._database = database
        self._depth_max = depth_max
        self._items_max = items_max

    async def of(
        self,
        principal: Principal,
        request: CreateResponse,
        *,
        created_at: int,
        local: Mapping[str, History],
        with_json: bool = False,
    ) -> History:
        """Look up the history of a new response.

        With `with_json` the items are shown, too. `local` has responses by public id that may be in
        no database; it lacks what its first continuation did not need. Raises `InvalidRequest` for
        a response in progress or a chain that is too long, and `ConversationLocked` if the response
        could not be added.
        """
        needed = NeededJson(
            with_json or combines(request),
            with_tool_lists=any(isinstance(tool, McpServerTool) for tool in request.tools),
            repeated=may_repeat(request.input),
        )
        if request.conversation is not None:
            return await self._read_conversation(
                principal, request.conversation.id, needed, is_written=request.store
            )
        previous = request.previous_response_id
        if previous is None:
            return History(None, (), created_at)
        history = local.get(previous)
        if history is None:
            return await self._read_chain(principal, previous, needed)
        # Most items were read without their JSON.
        lacks_json = any(not item.json and needed.includes(item) for item in history.stored)
        if history.parent is not None and lacks_json:
            stored = await self._read_chain(principal, ids.response_id(history.parent), needed)
            return replace(history, items=(*stored.items, *history.unstored))
        return history

    async def named_items(
        self, principal: Principal, request: CreateResponse
    ) -> dict[str, ContextItem]:
        """Return the stored items that the input references."""
        wanted = referenced_ids(request.input)
        if not wanted:
            return {}
        return await messages.find_items(
            self._database.within(principal.wall), principal.tenant_id, wanted
        )

    async def _read_conversation(
        self, principal: Principal, conversation_id: str, needed: NeededJson, *, is_written: bool
    ) -> History:
        # `is_written`: the response will be added to the conversation.
        uuid = ids.parse_conversation_id(conversation_id)
        contents = uuid and await conversations.read_contents(
            self._database.within(principal.wall),
            principal.tenant_id,
            uuid,
            items_max=self._items_max,
            needed=needed,
        )
        if not contents:
            raise unknown_conversation(conversation_id)
        if is_written and contents.is_locked:
            raise ConversationLocked
        created_at = int(contents.created_at.timestamp())
        return History(
            None,
            contents.items,
            created_at,
            conversation=contents.place,
            tool_state=contents.tool_state,
            placement=contents.placement,
        )

    async def _read_chain(self, principal: Principal, previous: str, needed: NeededJson) -> History:
        uuid = ids.parse_response_id(previous)
        history = uuid and await messages.history(
            self._database.within(principal.wall),
            principal.tenant_id,
            uuid,
            depth_max=self._depth_max,
            items_max=self._items_max,
            needed=needed,
        )
        if not history:
            raise PreviousResponseNotFound(previous)
        if history.status in _RUNNING:
            raise InvalidRequest(
                f"Previous response with id '{previous}' is still in progress. Wait until it has "
                "ended, then continue it.",
                code="invalid_value",
                param="previous_response_id",
            )
        return History(
            uuid,
            history.items,
            int(history.root_created_at.timestamp()),
            tool_state=history.tool_state,
            placement=history.placement,
        )


def combines(request: CreateResponse) -> bool:
    """Return True if the browser is offered together with tools that may reveal secrets."""
    kinds = {type(tool) for tool in request.tools}
    return WebSearchTool in kinds and bool(kinds & {CodeInterpreterTool, McpServerTool})
