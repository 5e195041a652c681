"""Bytes of fetched images are counted while they are there, and no tenant takes all the room."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.services.runs.images import ImageBudget, ImageHold, NoRoom
from gateway.tenancy import TenantId

ONE, OTHER, THIRD = (TenantId(UUID(one * 32)) for one in "123")


def budget() -> ImageBudget:
    return ImageBudget(bytes_max=100, tenant_bytes_max=60)


def test_a_tenant_leaves_room_for_others() -> None:
    made = budget()
    first, again, other = ImageHold(made, ONE), ImageHold(made, ONE), ImageHold(made, OTHER)
    first.add(50)
    with pytest.raises(NoRoom, match="Your requests hold more than 60 bytes"):
        again.add(11)
    again.add(10)
    other.add(40)
    with pytest.raises(NoRoom, match="The server holds"):
        ImageHold(made, THIRD).add(1)
    assert made.held_bytes == 100


def test_what_nobody_has_any_more_does_not_count() -> None:
    made = budget()
    hold = ImageHold(made, ONE)
    hold.add(60)
    hold.give_back(20)
    kept = {"spec": hold}
    del hold
    assert made.held_bytes == 40
    kept.clear()
    assert made.held_bytes == 0
    ImageHold(made, ONE).add(60)


STEPS = st.lists(st.tuples(st.sampled_from([ONE, OTHER, THIRD]), st.integers(0, 70)), max_size=40)


@pytest.mark.slow
@given(STEPS)
def test_no_bound_is_ever_passed(asked: list[tuple[TenantId, int]]) -> None:
    """A size of 0: the request of that tenant ends."""
    made = budget()
    holds: dict[TenantId, ImageHold] = {}
    counted = dict.fromkeys((ONE, OTHER, THIRD), 0)
    for tenant, size in asked:
        if not size:
            holds.pop(tenant, None)
            counted[tenant] = 0
        elif counted[tenant] + size <= 60 and sum(counted.values()) + size <= 100:
            holds.setdefault(tenant, ImageHold(made, tenant)).add(size)
            counted[tenant] += size
        else:
            with pytest.raises(NoRoom):
                holds.setdefault(tenant, ImageHold(made, tenant)).add(size)
        assert made.held_bytes == sum(counted.values())
