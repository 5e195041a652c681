"""What stays of a response when it is over: its body, its items with their ids, its usage."""

from __future__ import annotations

import asyncio
from array import array
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import orjson

from gateway.errors import StoreUnavailable
from gateway.protocol.context import ContextItem, Kind, StoredItem
from gateway.store import responses as rows
from gateway.store import usage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from gateway.generation import RenderedItem
    from gateway.harmony.rendering import Renderer
    from gateway.log import Finished
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

    async def begin(self, specification: RunSpecification) -> None:
        """Record that the response is under way, before a token is spent.

        Raises `StoreUnavailable`.
        """
        head, principal = specification.head, specification.principal
        new = rows.NewResponse(
            uuid=head.uuid,
            key_id=principal.key_id,
            model=specification.model,
            created_at=_moment(head.created_at),
            root_created_at=_moment(specification.root_created_at),
            request=orjson.dumps(head.echo),
            parent=specification.parent,
            background=head.background,
        )
        await rows.insert(self._database, principal.tenant_id, new)

    async def finish(self, specification: RunSpecification, finished: Finished, fold: Fold) -> None:
        """Commit the end of a response in one transaction.

        Tries again for `commit_wait_s` while the database is away, then raises
        `StoreUnavailable`. A commit whose outcome was lost is safe to repeat: the second finds
        the response ended and writes nothing.
        """
        tenant_id = specification.principal.tenant_id
        row = self._row(specification, finished, fold)
        await self._insist(lambda: rows.finish(self._database, tenant_id, row))

    async def meter(self, specification: RunSpecification, finished: Finished, fold: Fold) -> None:
        """Book what an unstored response used; nothing else of it is written anywhere.

        Tries again as `finish` does, then raises `StoreUnavailable`; booking twice is booking once.
        """
        line = usage.UsageLine(
            response=specification.head.uuid,
            key_id=specification.principal.key_id,
            model=specification.model,
            at=_moment(finished.at),
            tokens=fold.usage,
        )
        tenant_id = specification.principal.tenant_id
        await self._insist(lambda: usage.record(self._database, tenant_id, line))

    async def _insist(self, attempt: Callable[[], Awaitable[object]]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._commit_wait_s
        while True:
            try:
                await attempt()
            except StoreUnavailable:
                if loop.time() + RETRY_PAUSE_S > deadline:
                    raise
                await asyncio.sleep(RETRY_PAUSE_S)
            else:
                return

    def _row(
        self, specification: RunSpecification, finished: Finished, fold: Fold
    ) -> rows.FinishedResponse:
        context = [*specification.added, *self._outputs(fold)]
        inputs = len(specification.added)
        return rows.FinishedResponse(
            uuid=specification.head.uuid,
            status=finished.status,
            completed_at=_moment(finished.at),
            body=orjson.dumps(fold.response()),
            recoveries=orjson.dumps(fold.recoveries),
            items=[
                StoredItem(position, position >= inputs, item)
                for position, item in enumerate(context)
            ],
            tokens=fold.usage,
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


def _moment(unix_s: int) -> datetime:
    return datetime.fromtimestamp(unix_s, UTC)
