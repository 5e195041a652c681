"""Spending that is set aside for background responses which wait in the database.

Any process may generate them. Until each has ended the process that accepted it keeps what it may
spend, or whatever is queued would pass every budget.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

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

_log = EventLog(__name__)


class QueuedCharges:
    """The charges of responses that this process accepted and others may generate."""

    def __init__(self) -> None:
        self._charges: dict[tuple[TenantId, UUID], Charge] = {}

    def leave(self, spec: RunSpec) -> None:
        # Whoever generates the response settles its charge.
        if spec.charge is not None and spec.charge.leave():
            self._charges[spec.principal.tenant_id, spec.head.uuid] = spec.charge

    def end(self, tenant_id: TenantId, uuid: UUID) -> None:
        # The response has ended here.
        charge = self._charges.pop((tenant_id, uuid), None)
        if charge is not None:
            charge.give_back_spending()

    async def run(self, heads: ReadHeads) -> None:
        # `heads` is `store.claims.heads` of a database.
        async def look() -> None:
            await self.look(heads)

        await run_periodically(look, LOOK_S, _log.debug, "queued responses were not looked at")

    async def look(self, heads: ReadHeads) -> None:
        """Give back what is set aside for responses that have ended. Raises `StoreError`."""
        some = list(islice(self._charges, LOOKED_AT_MAX))
        head_of = await heads(some) if some else {}
        for tenant_id, uuid in some:
            head = head_of.get(uuid)
            if head is None or head.status in TERMINAL:
                self.end(tenant_id, uuid)
            elif (charge := self._charges.pop((tenant_id, uuid), None)) is not None:
                self._charges[tenant_id, uuid] = charge
