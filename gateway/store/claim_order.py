"""Choice of the queued responses to claim next.

The tenant that was served least goes first, with its oldest response; the expected cost of each
chosen response counts before the next one is chosen. A tenant of which nothing runs goes before all
others once its first response has waited for long. A response that a limit keeps from running uses
up no place of another limit.

`background_shares` has the counters of `upstreams.admission.queue` for work in the database: a
claim adds a response's expected cost, and its process corrects that with its next claim. The nil
tenant's row is the counter of the tenant that was claimed last: no tenant begins more than one
response behind it, however long it was away.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
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
"""Weighted tokens: the 256 of output that admission expects, in the class of background."""
ALPHA: Final = 0.1
"""Weight of the latest response in the expected cost, as in admission."""
KEPT_DAYS: Final = 7

# A tenant without a row begins at the `served` of the tenant whose turn was last.
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
    """Cost in weighted tokens, of which its claim charged `counted` (0: the process that accepted
    the response began it).
    """

    tenant_id: TenantId
    cost: float
    counted: float


class Start(NamedTuple):
    """A claimed response. The counter of a `promoted` one says nothing about the order."""

    tenant_id: TenantId
    start: float
    expected: float
    promoted: bool = False


async def settle_costs(connection: Connection, ended: Sequence[EndedResponse]) -> None:
    """Count generated responses for their tenants, under the claimants' lock."""
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


async def charge_starts(connection: Connection, starts: Sequence[Start]) -> None:
    """Charge claimed responses to their tenants, under the claimants' lock."""
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


async def forget_shares(database: Database) -> None:
    async with database.runs_transaction() as connection:
        await removing(connection)
        await connection.execute(_FORGET, {})


async def _make(connection: Connection, tenants: Iterable[UUID]) -> None:
    parameters = {"tenants": list(tenants), "expected": EXPECTED_AT_FIRST, "everyone": EVERYONE}
    await connection.execute(_MAKE, parameters)


class QueuedKey(NamedTuple):
    """A key that has queued responses; id, project and waiting time are those of its oldest one.

    Others may be of other projects if the key is of an operator's issuer. `running_max`, `served`
    and `expected` are the tenant's.
    """

    tenant_id: TenantId
    key_id: UUID
    first_id: UUID
    project_id: UUID
    has_waited: bool
    running_max: int
    served: float
    expected: float


class QueuedResponse(NamedTuple):
    """A queued response. `project_id` of the default project is the tenant's id."""

    tenant_id: TenantId
    id: UUID
    key_id: UUID
    project_id: UUID
    has_waited: bool


class RunningCount(NamedTuple):
    tenant_id: TenantId
    key_id: UUID
    project_id: UUID
    number: int


class RunningLimit(NamedTuple):
    """Limit of running responses, with one row for each key that shares it by replacing another."""

    tenant_id: TenantId
    scope: str
    scope_id: UUID
    member_id: UUID
    value: int


class ReadKey(NamedTuple):
    tenant_id: TenantId
    key_id: UUID
    number: int


@dataclass(slots=True)
class _Places:
    free: int


class FreePlaces:
    def __init__(
        self,
        keys: Iterable[QueuedKey],
        limits: Iterable[RunningLimit],
        running: Iterable[RunningCount],
    ) -> None:
        self._of_tenants = {one.tenant_id: [_Places(one.running_max)] for one in keys}
        self._narrower: dict[tuple[TenantId, str, UUID], list[_Places]] = defaultdict(list)
        self.running: Counter[TenantId] = Counter()
        of_keys: dict[tuple[TenantId, UUID], _Places] = {}
        for tenant_id, scope, scope_id, member_id, value in limits:
            if scope == "key":
                places = of_keys.setdefault((tenant_id, scope_id), _Places(value))
                self._narrower[tenant_id, scope, member_id].append(places)
            elif scope == "project":
                self._narrower[tenant_id, scope, member_id].append(_Places(value))
            else:
                self._of_tenants[tenant_id].append(_Places(value))
        for one in running:
            if one.tenant_id not in self._of_tenants:
                continue
            self.running[one.tenant_id] += one.number
            for places in self._of(one):
                places.free -= one.number

    def may_start(self, one: QueuedKey) -> bool:
        return all(places.free > 0 for places in self._of(one))

    def of_key(self, one: QueuedKey) -> int:
        # Their projects do not matter.
        of_key = self._narrower.get((one.tenant_id, "key", one.key_id), [])
        return min(places.free for places in self._of_tenants[one.tenant_id] + of_key)

    def take(self, one: QueuedResponse) -> bool:
        # False: a limit has no place left, and none is taken of the others.
        shared = self._of(one)
        if any(places.free <= 0 for places in shared):
            return False
        for places in shared:
            places.free -= 1
        return True

    def _of(self, one: QueuedKey | QueuedResponse | RunningCount) -> list[_Places]:
        tenant_id = one.tenant_id
        of_tenant = self._of_tenants[tenant_id]
        if not self._narrower:
            return of_tenant
        of_project = self._narrower.get((tenant_id, "project", one.project_id), [])
        return of_tenant + of_project + self._narrower.get((tenant_id, "key", one.key_id), [])


def keys_to_read(keys: Sequence[QueuedKey], places: FreePlaces, *, limit: int) -> list[ReadKey]:
    """Return the keys whose responses may be among the next `limit`, and how many of each.

    If `limit` tenants or more wait, only those served least count, with the responses that would
    stand before the last of these.
    """
    turns: dict[TenantId, tuple[bool, float, UUID]] = {}
    for one in keys:
        if not places.may_start(one):
            continue
        is_promoted = one.has_waited and not places.running[one.tenant_id]
        turn = (not is_promoted, one.served, one.first_id)
        turns[one.tenant_id] = min(turn, turns.get(one.tenant_id, turn))
    chosen = sorted(turns, key=turns.__getitem__)[:limit]
    last = max((turns[tenant_id][1] for tenant_id in chosen), default=0.0)

    def count(one: QueuedKey) -> int:
        if len(chosen) < limit:
            return limit
        return min(limit, 1 + int((last - one.served) / one.expected))

    among = set(chosen)
    return [
        ReadKey(one.tenant_id, one.key_id, min(count(one), free))
        for one in keys
        if one.tenant_id in among and (free := places.of_key(one)) > 0
    ]


def choose(
    keys: Iterable[QueuedKey], waiting: Iterable[QueuedResponse], places: FreePlaces, *, limit: int
) -> dict[UUID, Start]:
    """Return the next `limit` responses by turn; reduces `places`."""
    shares = {one.tenant_id: (one.served, one.expected) for one in keys}
    ranked: list[tuple[bool, float, UUID, Start]] = []
    by_tenant = attrgetter("tenant_id")
    for tenant_id, own in groupby(sorted(waiting, key=attrgetter("tenant_id", "id")), by_tenant):
        start, expected = shares[tenant_id]
        may_be_promoted = not places.running[tenant_id]
        for one in own:
            if not places.take(one):
                continue
            promoted = may_be_promoted and one.has_waited
            ranked.append(
                (not promoted, start, one.id, Start(tenant_id, start, expected, promoted))
            )
            start += expected
            may_be_promoted = False
    ranked.sort()
    return {uuid: start for _, _, uuid, start in ranked[:limit]}
