"""Stored responses. Unknown ones, deleted ones, another tenant's, and those not stored yet look the
same.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from gateway import ids
from gateway.engine.run_spec import head_of
from gateway.entries import FOLD_VERSIONS
from gateway.errors import Draining, InvalidRequest, ResourceNotFound, shown
from gateway.eventlog.fold_slices import send_nobody
from gateway.protocol.items import INCLUDABLE, included_body
from gateway.protocol.responses.response_object import Outcome, response_body
from gateway.store import messages
from gateway.store import responses as rows

if TYPE_CHECKING:
    from collections.abc import Collection

    from gateway.engine.archive import Archive
    from gateway.eventlog.feed import Feed
    from gateway.models.format import FormatOf
    from gateway.protocol.pages import Page, PageParams
    from gateway.protocol.responses.response_object import ResponseHead, ResponseStatus
    from gateway.protocol.stream_events import EventSource
    from gateway.store.postgres.database import Database
    from gateway.store.responses import StoredResponse
    from gateway.tenancy import Principal, TenantId

ENDED: Final = {
    "completed": "Cannot cancel a completed response. Retrieve it to see its output.",
    "failed": "Cannot cancel a failed response. Retrieve it to see its error.",
    "incomplete": "Cannot cancel a response in terminal state. Retrieve it to see how it ended.",
}
_UNITS: Final = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


class Retrieval:
    """Use cases of `/v1/responses/{id}`; all raise `ResourceNotFound`, `StoreUnavailable`."""

    def __init__(
        self, *, database: Database, feed: Feed, archive: Archive, format_of: FormatOf
    ) -> None:
        self._database = database
        self._format_of = format_of
        self._feed = feed
        self._archive = archive
        self.follow = feed.stream
        """`Feed.stream`."""

    async def get(
        self, principal: Principal, response_id: str, *, include: Collection[str] = ()
    ) -> bytes:
        tenant_id = principal.tenant_id
        stored = await self._find(principal, response_id)
        if stored.body is None:
            return orjson.dumps(await self._snapshot(tenant_id, stored, include))
        if INCLUDABLE.isdisjoint(include):
            return stored.body
        includable = await messages.includable(
            self._database_for(principal), tenant_id, stored.uuid
        )
        return included_body(stored.body, includable, include)

    async def stream(
        self,
        principal: Principal,
        response_id: str,
        *,
        after: int = -1,
        include: Collection[str] = (),
    ) -> EventSource:
        """Return the events after sequence number `after`, including those to come.

        Raises `InvalidRequest` for a response that has no stream, or whose stream has expired.
        """
        stored = await self._find(principal, response_id)
        if not stored.durable:
            raise _no_stream(response_id, "cannot", "it was not created with background=true")
        if not stored.streamed:
            raise _no_stream(response_id, "cannot", "it was not created with stream=true")
        head = head_of(stored)
        if not self._can_fold(stored, head):
            why = "its model, or the release of this server, has changed since"
            raise _no_stream(response_id, "can no longer", why)
        kept_s, ended_at = principal.policy.log_retention_s, stored.completed_at
        beginning = None
        if ended_at is None or datetime.now(UTC) - ended_at <= timedelta(seconds=kept_s):
            beginning = await self._feed.beginning(principal.tenant_id, stored)
        if beginning is None:
            why = f"its log is kept for {_span(kept_s)} after the end"
            raise _no_stream(response_id, "can no longer", why)
        shown = head.including(include)
        return partial(
            self._feed.stream,
            principal.tenant_id,
            shown,
            after=after,
            beginning=beginning,
            shows_more=shown is not head,
        )

    async def cancel(self, principal: Principal, response_id: str) -> bytes:
        """Cancel a background response; a second call returns the same.

        Raises `InvalidRequest` for a response that ended otherwise, or was no background response.
        """
        stored: StoredResponse | None
        stored = await self._find(principal, response_id)
        if not stored.is_terminal:
            stored = await self._archive.cancel(principal.tenant_id, stored.uuid)
        if stored is None or stored.body is None:
            raise not_found(response_id)
        if stored.status == "cancelled" and stored.durable:
            return stored.body
        if not stored.background:
            raise InvalidRequest(
                "Cannot cancel a synchronous response. Create it with background=true to be able "
                "to, or close the connection that it is sent over."
            )
        raise InvalidRequest(ENDED[stored.status])

    async def delete(self, principal: Principal, response_id: str) -> None:
        """Delete a response, also if no key opens it any more; `InvalidRequest` while it is
        generated.
        """
        uuid, database = ids.parse_response_id(response_id), self._database_for(principal)
        state = None if uuid is None else await rows.state(database, principal.tenant_id, uuid)
        if uuid is None or state is None or not (state.is_terminal or state.durable):
            raise not_found(response_id)
        if not state.is_terminal:
            raise InvalidRequest(
                "Cannot delete an in-flight response. Cancel it first, or wait until it has ended."
            )
        if not await rows.delete(database, principal.tenant_id, uuid):
            raise not_found(response_id)

    async def input_items(
        self,
        principal: Principal,
        response_id: str,
        page: PageParams,
        *,
        include: Collection[str] = (),
    ) -> Page[bytes]:
        stored = await self._find(principal, response_id)
        items = await messages.input_items(
            self._database_for(principal), principal.tenant_id, stored.uuid, page, include=include
        )
        if items is None:
            raise not_found(response_id)
        return items

    async def finished(self, tenant_id: TenantId, head: ResponseHead) -> bytes:
        """Return the Response object after its end; raises `Draining` if this process drains
        before.
        """
        await self._feed.stream(tenant_id, head, send_nobody)
        stored = await rows.load(self._database, tenant_id, head.uuid)
        if stored is None:
            raise not_found(ids.response_id(head.uuid))
        if stored.body is None:
            raise Draining
        return stored.body

    async def _find(self, principal: Principal, response_id: str) -> StoredResponse:
        # A response without a durable log is visible only after its end.
        uuid = ids.parse_response_id(response_id)
        if uuid is not None:
            stored = await rows.load(self._database_for(principal), principal.tenant_id, uuid)
            if stored is not None and (stored.is_terminal or stored.durable):
                return stored
        raise not_found(response_id)

    def _database_for(self, principal: Principal) -> Database:
        return self._database.within(principal.wall)

    async def _snapshot(
        self, tenant_id: TenantId, stored: StoredResponse, include: Collection[str]
    ) -> dict[str, Any]:
        # What ended when no key opened it has no end in its log: only the status is shown.
        head = head_of(stored)
        if self._can_fold(stored, head) and not stored.is_terminal:
            return await self._feed.snapshot(tenant_id, head.including(include))
        status = cast("ResponseStatus", stored.status)
        return response_body(head, Outcome(status), [])

    def _can_fold(self, stored: StoredResponse, head: ResponseHead) -> bool:
        format_name = self._format_of(stored.model).name
        return stored.fold_version in FOLD_VERSIONS and head.is_logged_in(format_name)


def _no_stream(response_id: str, can: str, why: str) -> InvalidRequest:
    # The message has the id: a client that repeats a request by its idempotency key may not know it
    # otherwise.
    return InvalidRequest(
        f"This response {can} be streamed because {why}. Retrieve '{response_id}' without "
        "`stream`.",
        param="stream",
    )


def _span(seconds: int) -> str:
    # In the largest unit that divides it and is not a single one: `24 hours`.
    unit, size = next((u for u in _UNITS if seconds % u[1] == 0 and seconds > u[1]), _UNITS[-1])
    count = seconds // size
    return f"{count} {unit}{'s' if count != 1 else ''}"


def not_found(response_id: str) -> ResourceNotFound:
    return ResourceNotFound(
        f"Response with id '{shown(response_id)}' not found. Responses are kept only when `store` "
        "is true, until they are deleted or expire; without `background` they are found once they "
        "have ended."
    )
