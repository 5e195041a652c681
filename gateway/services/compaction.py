"""Compact a conversation for its own sake: its client goes on with what it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from gateway import ids
from gateway.protocol.responses.body import compacted_response, compaction_body

if TYPE_CHECKING:
    from gateway.engine.supervisor import Supervisor
    from gateway.protocol.responses.create import CreateResponse
    from gateway.services.compactor import Compactor, Made, SummaryPlan
    from gateway.services.run_builder import RunBuilder
    from gateway.tenancy import Principal


class Compaction:
    """The use case of `POST /v1/responses/compact`."""

    def __init__(self, supervisor: Supervisor, builder: RunBuilder, compactor: Compactor) -> None:
        self._supervisor = supervisor
        self._builder = builder
        self._compactor = compactor

    async def compact(
        self, principal: Principal, request: CreateResponse, *, body_bytes: int
    ) -> CompactedContext:
        """All messages of the user, and a compaction item that stands for everything else.

        Raises what `RunBuilder.build` does, `RateLimited`, `UpstreamError`, `SummaryFailed`.
        """
        with self._supervisor.admitted():
            plan = await self._builder.summary(principal, request, body_bytes=body_bytes)
            made = await self._compactor.make(plan.spec)
        await self._compactor.book(made)
        return CompactedContext(plan, made)


class CompactedContext(NamedTuple):
    """What came of a compaction for its own sake."""

    plan: SummaryPlan
    made: Made

    @property
    def model(self) -> str:
        """The model that wrote the summary."""
        return self.plan.spec.model

    @property
    def body(self) -> bytes:
        """The answer as JSON; its `output` may be the input of the next request as it is."""
        head = self.plan.spec.head
        users: list[dict[str, Any]] = [
            orjson.loads(item.json) for item in self.plan.items if item.role == "user"
        ]
        item_id = ids.output_item_id(ids.COMPACTION_PREFIX, head.uuid, 0)
        output = [*users, compaction_body(item_id, self.made.compacted.seal)]
        usage = self.made.summary.usage
        return orjson.dumps(compacted_response(head.uuid, head.created_at, output, usage))
