"""What a request continues: nothing, a stored response and all before it, or one it was told of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway import ids
from gateway.conversation.assembly import referenced_ids
from gateway.errors import InvalidRequest, PreviousResponseNotFound
from gateway.store import messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from gateway.protocol.context import ContextItem
    from gateway.protocol.requests import CreateResponse
    from gateway.store.engine import Database
    from gateway.tenancy import TenantId

_RUNNING = frozenset({"queued", "in_progress"})


@dataclass(frozen=True, slots=True)
class Parent:
    """What a response continues.

    `uuid` is the stored response before it, None without one. `items` are all of its context.
    `root_created_at` (unix seconds) pins the date in the prompt, so that a conversation that goes
    on after midnight still finds its cached prefix.
    """

    uuid: UUID | None
    items: Sequence[ContextItem]
    root_created_at: int


class Parents:
    """Looks up what requests continue, and the items that they only name."""

    def __init__(self, database: Database, *, depth_max: int, items_max: int) -> None:
        """A chain has at most `depth_max` responses, a context at most `items_max` items."""
        self._database = database
        self._depth_max = depth_max
        self._items_max = items_max

    async def of(
        self,
        tenant_id: TenantId,
        request: CreateResponse,
        *,
        created_at: int,
        local: Mapping[str, Parent],
    ) -> Parent:
        """The parent of a response that is created at `created_at` (unix seconds).

        `local` knows responses by their public id that may be in no database; it is asked first.
        Raises `PreviousResponseNotFound`, `InvalidRequest` for one that is still generated or a
        chain that is too long, `StoreUnavailable`.
        """
        previous = request.previous_response_id
        if previous is None:
            return Parent(None, (), created_at)
        return local.get(previous) or await self._stored(tenant_id, previous)

    async def named_items(
        self, tenant_id: TenantId, request: CreateResponse
    ) -> dict[str, ContextItem]:
        """Stored items that the request's input only names, by id; unknown ones are absent."""
        wanted = referenced_ids(request.input)
        return await messages.find_items(self._database, tenant_id, wanted) if wanted else {}

    async def _stored(self, tenant_id: TenantId, previous: str) -> Parent:
        uuid = ids.parse_response_id(previous)
        history = uuid and await messages.history(
            self._database,
            tenant_id,
            uuid,
            depth_max=self._depth_max,
            items_max=self._items_max,
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
        return Parent(uuid, history.items, int(history.root_created_at.timestamp()))
