"""Shares of tenants in background work, of all processes: they decide who is claimed next.

A row for each tenant has the counter of `upstreams.admission.queue` for work that waits in the
database: what it was served, in weighted tokens, and what one of its responses is expected to cost.
A claim adds the expected cost of the response, and the actual cost replaces it after the end: the
process that generated the response reports that with its next claim. Claims are made one after the
other, so this is exact whichever process claims. The row of the nil tenant has the place in line of
the tenant that was claimed last: no tenant begins further back than one response behind it, however
long it was away. UNLOGGED: after a crash all begin anew, alike.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.store.locks import removing
from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from gateway.store.postgres.database import Connection, Database
    from gateway.tenancy import TenantId

EXPECTED_AT_FIRST: Final = 2_048.0
"""Expected cost of a response while nothing is known of its tenant: the 256 tokens of output that
admission expects, in the class of background."""
ALPHA: Final = 0.1
"""Weight of the latest response among those that the next is expected from, as in admission."""
KEPT_DAYS: Final = 7
"""Days that the estimates of a tenant are remembered."""

# Who has no row begins where those are that go now.
_MAKE: Final = Statement("""
INSERT INTO background_shares (tenant_id, served, expected, at)
SELECT one.tenant_id, coalesce(last.served, 0), :expected, clock_timestamp()
FROM unnest(CAST(:tenants AS uuid[])) AS one (tenant_id)
LEFT JOIN background_shares AS last ON last.tenant_id = CAST(:everyone AS uuid)
ORDER BY one.tenant_id
ON CONFLICT (tenant_id) DO NOTHING
""")
_SETTLE: Final = Statement("""
UPDATE background_shares AS s
SET served = greatest(s.served, last.served - s.expected) + one.amount, at = clock_timestamp(),
    expected = s.expected * kept.share + one.mean * (1 - kept.share)
FROM unnest(
    CAST(:tenants AS uuid[]), CAST(:amounts AS double precision[]),
    CAST(:means AS double precision[]), CAST(:counts AS integer[])
) AS one (tenant_id, amount, mean, count)
CROSS JOIN LATERAL (SELECT power(CAST(:rest AS double precision), one.count) AS share) AS kept
JOIN background_shares AS last ON last.tenant_id = CAST(:everyone AS uuid)
WHERE s.tenant_id = one.tenant_id
""")
_SERVE: Final = Statement("""
UPDATE background_shares AS s SET served = greatest(s.served, one.served), at = clock_timestamp()
FROM unnest(CAST(:tenants AS uuid[]), CAST(:served AS double precision[]))
     AS one (tenant_id, served)
WHERE s.tenant_id = one.tenant_id
""")
_FORGET: Final = Statement(f"""
DELETE FROM background_shares AS s
WHERE at < clock_timestamp() - interval '{KEPT_DAYS} days' AND NOT EXISTS (
    SELECT FROM tenants WHERE tenants.id = s.tenant_id AND tenants.held_at IS NOT NULL
)
""")  # noqa: S608 - constants only


class EndedResponse(NamedTuple):
    """A response in background that was generated: what it cost, in weighted tokens, and how much
    of that was counted when it was claimed (0: it was begun where it was accepted).
    """

    tenant_id: TenantId
    cost: float
    counted: float


class Start(NamedTuple):
    """A response that is claimed: where its tenant stood, and what it is expected to cost. The
    start of one that was `promoted` tells nothing about who goes now.
    """

    tenant_id: TenantId
    start: float
    expected: float
    promoted: bool = False


async def settle(connection: Connection, ended: Sequence[EndedResponse]) -> None:
    """Count generated responses for their tenants.

    Call it and `serve` under the claimants' lock.
    """
    if not ended:
        return
    amounts: dict[UUID, float] = defaultdict(float)
    costs: dict[UUID, list[float]] = defaultdict(list)
    for one in ended:
        amounts[one.tenant_id] += one.cost - one.counted
        costs[one.tenant_id].append(one.cost)
    await _make(connection, [EVERYONE])
    await _make(connection, amounts)
    parameters = {
        "tenants": list(amounts),
        "amounts": list(amounts.values()),
        "means": [sum(costs[tenant]) / len(costs[tenant]) for tenant in amounts],
        "counts": [len(costs[tenant]) for tenant in amounts],
        "rest": 1 - ALPHA,
        "everyone": EVERYONE,
    }
    await connection.execute(_SETTLE, parameters)


async def serve(connection: Connection, starts: Sequence[Start]) -> None:
    """Count claimed responses for their tenants, at their expected cost."""
    if not starts:
        return
    served: dict[UUID, float] = {}
    for one in starts:
        served[one.tenant_id] = max(served.get(one.tenant_id, 0.0), one.start + one.expected)
    if going := [one.start for one in starts if not one.promoted]:
        served[EVERYONE] = max(going)
    await _make(connection, served)
    parameters = {"tenants": list(served), "served": list(served.values())}
    await connection.execute(_SERVE, parameters)


async def forget(database: Database) -> None:
    """Remove tenants without background work for a long time. Raises `StoreError`."""
    async with database.runs_transaction() as connection:
        await removing(connection)
        await connection.execute(_FORGET, {})


async def _make(connection: Connection, tenants: Iterable[UUID]) -> None:
    parameters = {"tenants": list(tenants), "expected": EXPECTED_AT_FIRST, "everyone": EVERYONE}
    await connection.execute(_MAKE, parameters)
