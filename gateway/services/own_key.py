"""Use case: a key reads its own usage, and what is left of the limits and budgets that bind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.store.ledger import rollup

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.limits.accounting import Figures
    from gateway.replication.limiter import Limiter
    from gateway.store.ledger.rollup import KeyUsage
    from gateway.store.postgres.database import Database
    from gateway.tenancy import Principal


@dataclass(frozen=True, slots=True)
class KeyState:
    """Usage of a key for `total`, `day`, `week` and `month`, as the ledger has it; `figures` of its
    limits and budgets, as requests are held to them.
    """

    usage: Mapping[str, KeyUsage]
    figures: Figures


class OwnKey:
    """Usage and limits of keys, in one database of tenants."""

    def __init__(self, database: Database, limiter: Limiter) -> None:
        self._database = database
        self._limiter = limiter

    async def state(self, principal: Principal) -> KeyState:
        """Return usage and limits of the key. Raises `StoreError`."""
        usage = await rollup.usage_of_key(self._database, principal.tenant_id, principal.key_id)
        return KeyState(usage, await self._limiter.figures(principal))
