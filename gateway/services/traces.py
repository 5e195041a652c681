"""Traces of agents, kept beside the responses that they tell of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.store import traces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.protocol.traces import TraceRecord
    from gateway.store.postgres.database import Database
    from gateway.tenancy import Principal


class Traces:
    """What agents report, per tenant."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keep(self, principal: Principal, records: Sequence[TraceRecord]) -> None:
        """Keep all of these, or none: then raise `StoreUnavailable`.

        The same again changes nothing but the time that they are kept from: exporters repeat what
        they do not know to have arrived.
        """
        if records:
            await traces.put(self._database, principal.tenant_id, records)
