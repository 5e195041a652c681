"""Spending reserved for background responses that wait in the database.

The accepting process keeps each reservation until the response has ended anywhere; otherwise queued
responses would pass every budget.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.store.periodic import run_periodically
from gateway.store.schema import TERMINAL
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from uuid import UUID

    from gateway.engine.run_spec import RunSpec
    from gateway.limits.accounting import Charge
    from gateway.store.claims import LogHead
    from gateway.tenancy import TenantId

    ReadHeads = Callable[[Collection[tuple[TenantId, UUID]]], Awaitable[dict[UUID, LogHead]]]

LOOK_S: Final = 2.0
LOOKED_AT_MAX: Final = 1_000
UNSEEN_MAX_S: Final = 60.0
"""Budgets must not stay used up by responses of which nothing is known."""

_log = EventLog(__name__)


class _Kept(NamedTuple):
    charge: Charge
    until: float


class QueuedCharges:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[tuple[TenantId, UUID], _Kept] = {}
        """The least recently checked first."""

    def leave(self, spec: RunSpec) -> None:
        # Whoever generates the response settles its charge.
        if spec.charge is not None and spec.charge.leave():
            key = spec.principal.tenant_id, spec.head.uuid
            self._kept[key] = _Kept(spec.charge, self._clock() + UNSEEN_MAX_S)

    def end(self, tenant_id: TenantId, uuid: UUID) -> None:
        # The response has ended here.
        kept = self._kept.pop((tenant_id, uuid), None)
        if kept is not None:
            kept.charge.give_back_spending()

    async def run(self, heads: ReadHeads) -> None:
        failure = "queued responses were not looked at"
        await run_periodically(partial(self.look, heads), LOOK_S, _log.debug, failure)

    async def look(self, heads: ReadHeads) -> None:
        some = list(islice(self._kept, LOOKED_AT_MAX))
        for key in some:
            if self._kept[key].until < self._clock():
                self.end(*key)
        head_of = await heads(some) if some else {}
        until = self._clock() + UNSEEN_MAX_S
        for key in some:
            head = head_of.get(key[1])
            if head is None or head.status in TERMINAL:
                self.end(*key)
            elif (kept := self._kept.pop(key, None)) is not None:
                self._kept[key] = kept._replace(until=until)
