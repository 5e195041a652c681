"""One use case: an operator has recorded usage cost what prices of today say of its time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.governance.audit import COMMAND_LINE
from gateway.limits.money import Prices
from gateway.store import tenants
from gateway.store.ledger.repricing import Repricing, reprice
from gateway.store.limits import prices, reconciliation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.governance.audit import AuditEvent, Author
    from gateway.store.postgres.database import Database
    from gateway.tenancy import Tenant

RESPONSES_AT_ONCE: Final = 500
"""Of one transaction."""


@dataclass(slots=True)
class Repriced:
    """Of one tenant: how many responses were looked at, and by model how many of them cost
    otherwise, and by how many nano-dollars in all.
    """

    tenant: str
    seen: int = 0
    lines: Counter[str] = field(default_factory=Counter)
    nano: Counter[str] = field(default_factory=Counter)


async def reprice_usage(
    database: Database,
    from_at: datetime,
    until_at: datetime,
    *,
    tenant: str | None = None,
    is_dry: bool = False,
    author: Author = COMMAND_LINE,
) -> list[Repriced]:
    """Book what responses that ended in this time cost too little or too much, of one tenant or of
    all; what is spent of budgets follows. With `is_dry` only tell.

    What breaks off is gone on with by the next call: nothing is booked twice. Raises
    `InvalidRequest`, `ResourceNotFound` for an unknown tenant, and `StoreUnavailable`.
    """
    if from_at >= until_at:
        raise InvalidRequest("The time ends before it begins.", param="until")
    known = Prices(await prices.every(database))
    found = []
    for one in await _tenants(database, tenant):
        asked = Repricing(
            one.id, from_at, until_at, known, author.actor.owner_id or "operator", is_dry
        )
        found.append(await _of_tenant(database, one, asked, author))
    if not is_dry and any(one.lines for one in found):
        await reconciliation.reconcile(database, datetime.now(UTC))
    return found


async def _tenants(database: Database, name: str | None) -> Sequence[Tenant]:
    if name is None:
        return await tenants.all_tenants(database)
    found = await tenants.find_tenant(database, name)
    if found is None:
        raise ResourceNotFound(f"There is no tenant {name!r}.", param="tenant")
    return [found]


async def _of_tenant(
    database: Database, tenant: Tenant, asked: Repricing, author: Author
) -> Repriced:
    span = {"from": asked.from_at.isoformat(), "until": asked.until_at.isoformat()}

    def told(lines: int, nano: int) -> AuditEvent:
        data = {**span, "lines": lines, "nano": nano}
        return author.event("harmony.usage.repriced", str(tenant.id), data=data)

    repriced, after = Repriced(tenant.name), None
    while True:
        page = await reprice(database, asked, told, after=after, rows_max=RESPONSES_AT_ONCE)
        repriced.seen += page.seen
        repriced.lines.update(page.lines)
        repriced.nano.update(page.nano)
        if (after := page.after) is None:
            return repriced
