"""Spending that is set aside for background responses which wait in the database.

Any process may generate them. Until each has ended the process that accepted it keeps what it may
spend, or whatever is queued would pass every budget.
"""

from __future__ import annotations

import time
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
"""Seconds between two looks which of them have ended elsewhere, at most."""
LOOKED_AT_MAX: Final = 1_000
"""Responses that are looked at at once; the others are next."""
UNSEEN_MAX_S: Final = 60.0
"""Time after which spending is given back though nobody could say that its response has ended: a
budget must not be used up by responses that nothing is known of."""

_log = EventLog(__name__)


class _Kept(NamedTuple):
    """A charge, and until when it is kept unless its response is seen to wait or run."""

    charge: Charge
    until: float


class QueuedCharges:
    """The charges of responses that this process accepted and others may generate."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        # `clock` gives seconds and never goes back.
        self._clock = clock
        self._kept: dict[tuple[TenantId, UUID], _Kept] = {}
        """Charges by response, the least recently looked at first."""

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
        # `heads` is `store.claims.heads` of a database.
        async def look() -> None:
            await self.look(heads)

        await run_periodically(look, LOOK_S, _log.debug, "queued responses were not looked at")

    async def look(self, heads: ReadHeads) -> None:
        """Give back what is set aside for responses that have ended. Raises `StoreError`."""
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
