"""What stays of a response when it is over: its body, its items with their ids, its usage."""

from __future__ import annotations

import asyncio
from array import array
from typing import TYPE_CHECKING, Any, cast

import orjson

from gateway.errors import StoreUnavailable
from gateway.protocol.context import ContextItem, Kind, StoredItem
from gateway.store import responses as rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from gateway.generation import RenderedItem
    from gateway.harmony.rendering import Renderer
    from gateway.output.fold import Fold
    from gateway.runs.specification import RunSpecification
    from gateway.store.engine import Database

RETRY_PAUSE_S = 0.2


class Archive:
    """Writes responses; the only part of a run that knows the database."""

    def __init__(self, database: Database, renderer: Renderer, *, commit_wait_s: float) -> None:
        self._database = database
        self._renderer = renderer
        self._commit_wait_s = commit_wait_s

    async def begin(self, specification: RunSpecification, *, parent: UUID | None) -> None:
        """Record that the response is under way, before a token is spent.

        Raises `StoreUnavailable`.
        """
        head = specification.head
        await rows.insert(
            self._database,
            specification.principal.tenant_id,
            rows.NewResponse(
                id=head.uuid,
                model=specification.model,
                background=head.background,
                created_at=head.created_at,
                root_created_at=specification.root_created_at,
                parent_id=parent,
                key_id=specification.principal.key_id,
                request=orjson.dumps(head.echo),
            ),
        )

    async def finish(self, specification: RunSpecification, fold: Fold) -> None:
        """Commit the end of a response in one transaction.

        Tries again for `commit_wait_s` while the database is away, then raises
        `StoreUnavailable`: writing the same end twice changes nothing.
        """
        finished = self._finished(specification, fold)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._commit_wait_s
        while True:
            try:
                tenant_id = specification.principal.tenant_id
                await rows.finish(self._database, tenant_id, finished)
            except StoreUnavailable:
                if loop.time() + RETRY_PAUSE_S > deadline:
                    raise
                await asyncio.sleep(RETRY_PAUSE_S)
            else:
                return

    def _finished(self, specification: RunSpecification, fold: Fold) -> rows.FinishedResponse:
        body = fold.response()
        context = [*specification.added, *self._outputs(fold)]
        inputs = len(specification.added)
        return rows.FinishedResponse(
            id=specification.head.uuid,
            status=body["status"],
            body=orjson.dumps(body),
            items=tuple(
                StoredItem(position, position >= inputs, item)
                for position, item in enumerate(context)
            ),
            usage=fold.usage,
            model=specification.model,
            key_id=specification.principal.key_id,
        )

    def _outputs(self, fold: Fold) -> Iterator[ContextItem]:
        for rendered in fold.items():
            item = output_context(rendered)
            if item.ids is None:
                item = item.with_ids(array("I", self._renderer.render_item(item)))
            yield item


def output_context(rendered: RenderedItem) -> ContextItem:
    """An output item as the next turn's context sees it."""
    item = cast("dict[str, Any]", rendered.item)
    return ContextItem(
        kind=cast("Kind", item["type"]),
        item_id=item["id"],
        json=orjson.dumps(item),
        role=item.get("role"),
        phase=item.get("phase"),
        call_id=item.get("call_id"),
        name=item.get("name"),
        complete=item["status"] == "completed",
        ids=None if rendered.ids is None else array("I", rendered.ids),
    )
