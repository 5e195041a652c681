"""Which queued responses are claimed next: fair, within all limits, from few rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.store.claim_order import (
    FreePlaces,
    QueuedKey,
    QueuedResponse,
    RunningCount,
    RunningLimit,
    choose,
    keys_to_read,
)
from gateway.tenancy import TenantId

TENANTS = 6
KEYS = 3
PROJECTS = 2


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What waits and runs. `keys` are in the order of the index, each with one project."""

    keys: tuple[QueuedKey, ...]
    waiting: tuple[QueuedResponse, ...]
    limits: tuple[RunningLimit, ...]
    running: tuple[RunningCount, ...]

    def places(self) -> FreePlaces:
        return FreePlaces(self.keys, self.limits, self.running)

    def of_key(self, key: UUID, number: int) -> list[QueuedResponse]:
        return [one for one in self.waiting if one.key_id == key][:number]


def uuid(kind: int, number: int) -> UUID:
    return UUID(int=kind << 64 | number)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    keys: list[QueuedKey] = []
    waiting: list[QueuedResponse] = []
    limits: list[RunningLimit] = []
    running: list[RunningCount] = []
    small = st.integers(0, 4)
    for tenant_number in range(draw(st.integers(1, TENANTS))):
        tenant = TenantId(uuid(1, tenant_number))
        served = float(draw(st.integers(0, 6)) * 500)
        expected = float(draw(st.sampled_from((250, 1000, 3000))))
        running_max = draw(small)
        for key_number in range(draw(st.integers(1, KEYS))):
            key = uuid(2, tenant_number * KEYS + key_number)
            project = uuid(3, tenant_number * PROJECTS + draw(st.integers(0, PROJECTS - 1)))
            if number := draw(small):
                running.append(RunningCount(tenant, key, project, number))
            has_waited = draw(st.booleans())
            # In any order, and no two alike.
            numbers = draw(st.lists(st.integers(0, 2**32), min_size=1, max_size=5))
            first = len(waiting)
            own = [uuid(4, one << 16 | first + place) for place, one in enumerate(numbers)]
            queued = (tenant, key, min(own), project, has_waited)
            keys.append(QueuedKey(*queued, running_max, served, expected))
            waiting += [QueuedResponse(tenant, one, key, project, has_waited) for one in own]
            if draw(st.booleans()):
                # One limit for this key and those that replaced it, or for itself alone.
                root = uuid(2, tenant_number * KEYS) if draw(st.booleans()) else key
                shared = [one for one in limits if (one.scope, one.scope_id) == ("key", root)]
                value = shared[0].value if shared else draw(small)
                limits.append(RunningLimit(tenant, "key", root, key, value))
        for scope in ("tenant", "organization"):
            value = draw(st.integers(0, 9))
            limits.append(RunningLimit(tenant, scope, tenant, tenant, value))
        for number in range(PROJECTS):
            if draw(st.booleans()):
                project = uuid(3, tenant_number * PROJECTS + number)
                limits.append(RunningLimit(tenant, "project", project, project, draw(small)))
    waiting.sort(key=lambda one: one.id)
    return Snapshot(tuple(keys), tuple(waiting), tuple(limits), tuple(running))


def is_within(one: QueuedResponse | RunningCount, members: list[RunningLimit]) -> bool:
    for limit in members:
        of = {"key": one.key_id, "project": one.project_id}.get(limit.scope, one.tenant_id)
        if (one.tenant_id, of) == (limit.tenant_id, limit.member_id):
            return True
    return False


@pytest.mark.slow
@settings(max_examples=150)
@given(snapshots(), st.integers(1, 12))
def test_no_limit_is_passed_and_nothing_waits_that_could_run(
    snapshot: Snapshot, limit: int
) -> None:
    starts = choose(snapshot.keys, snapshot.waiting, snapshot.places(), limit=limit)
    chosen = [one for one in snapshot.waiting if one.id in starts]
    bounds: dict[tuple[str, UUID], list[RunningLimit]] = {}
    for key in snapshot.keys:
        of = key.tenant_id
        bounds["policy", of] = [RunningLimit(of, "policy", of, of, key.running_max)]
    for one in snapshot.limits:
        bounds.setdefault((one.scope, one.scope_id), []).append(one)
    full: list[list[RunningLimit]] = []
    for members in bounds.values():
        before = sum(one.number for one in snapshot.running if is_within(one, members))
        begun = sum(is_within(one, members) for one in chosen)
        assert not begun or before + begun <= members[0].value
        if before + begun >= members[0].value:
            full.append(members)
    if len(chosen) < limit:
        left = [one for one in snapshot.waiting if one.id not in starts]
        assert all(any(is_within(one, members) for members in full) for one in left)


@pytest.mark.slow
@settings(max_examples=150)
@given(snapshots(), st.integers(1, 12))
def test_the_rows_that_are_read_lead_to_the_same_choice_as_all_rows(
    snapshot: Snapshot, limit: int
) -> None:
    places = snapshot.places()
    read = [
        one
        for key in keys_to_read(snapshot.keys, places, limit=limit)
        for one in snapshot.of_key(key.key_id, key.number)
    ]
    of_few = choose(snapshot.keys, read, places, limit=limit)
    of_all = choose(snapshot.keys, snapshot.waiting, snapshot.places(), limit=limit)
    assert list(of_few.items()) == list(of_all.items())


def test_a_full_project_holds_back_no_other_project_of_a_key() -> None:
    """Tokens of an operator's issuer act for one key in several projects."""
    tenant, key = TenantId(uuid(1, 1)), uuid(2, 1)
    of_projects = [uuid(3, 1), uuid(3, 1), uuid(3, 2)]
    waiting = tuple(
        QueuedResponse(tenant, uuid(4, number), key, project, has_waited=False)
        for number, project in enumerate(of_projects)
    )
    first = waiting[0]
    queued = QueuedKey(tenant, key, first.id, first.project_id, False, 9, 0.0, 1000.0)
    limit = RunningLimit(tenant, "project", first.project_id, first.project_id, 1)
    snapshot = Snapshot((queued,), waiting, (limit,), ())
    places = snapshot.places()
    (read,) = keys_to_read(snapshot.keys, places, limit=3)
    starts = choose(snapshot.keys, snapshot.of_key(key, read.number), places, limit=3)
    assert list(starts) == [waiting[0].id, waiting[2].id]


@pytest.mark.slow
@settings(max_examples=150)
@given(snapshots(), st.integers(1, 12))
def test_tenants_take_turns_by_what_they_were_served_and_go_in_their_own_order(
    snapshot: Snapshot, limit: int
) -> None:
    places = snapshot.places()
    starts = choose(snapshot.keys, snapshot.waiting, places, limit=limit)
    order = [(not start.promoted, start.start, uuid) for uuid, start in starts.items()]
    assert order == sorted(order)
    number: Counter[TenantId] = Counter()
    served = {one.tenant_id: one.served for one in snapshot.keys}
    for start in starts.values():
        turn = number[start.tenant_id]
        assert start.start == served[start.tenant_id] + turn * start.expected
        assert not start.promoted or not (turn or places.running[start.tenant_id])
        number[start.tenant_id] += 1
