"""For how long the spending of queued responses stays set aside."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from gateway.errors import StoreUnavailable
from gateway.limits.accounting import Charge, SpendCharge
from gateway.limits.money import SpendMeter
from gateway.limits.rules import Meter
from gateway.replication.durable_runs import LOOKED_AT_MAX, UNSEEN_MAX_S, QueuedCharges
from gateway.store.claims import LogHead
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from collections.abc import Collection

TENANT = TenantId(UUID(int=1))
WAITING, RUNNING, ENDED = (LogHead(1, 0, one) for one in ("queued", "in_progress", "completed"))


class Queue:
    """Charges of 10 tokens each, and what the database has of their responses."""

    def __init__(self, count: int = 1) -> None:
        self.now, self.places = 0.0, 0
        self.meter = SpendMeter(Meter("tokens", "tokens", "month"), datetime.now(UTC))
        self.heads = {UUID(int=number): WAITING for number in range(count)}
        self.charges = QueuedCharges(lambda: self.now)
        for uuid in self.heads:
            charge = Charge(self, TENANT, TENANT, "model", "default")  # type: ignore[arg-type]
            charge.spend = (SpendCharge(self.meter, 10),)
            self.meter.reserved += 10
            spec: Any = SimpleNamespace(
                principal=SimpleNamespace(tenant_id=TENANT),
                head=SimpleNamespace(uuid=uuid),
                charge=charge,
            )
            self.charges.leave(spec)
            self.charges.leave(spec)  # only the first counts

    def give_up_places(self, charge: Charge) -> None:
        assert not charge.is_open
        self.places += 1

    async def read(self, asked: Collection[tuple[TenantId, UUID]]) -> dict[UUID, LogHead]:
        return {uuid: self.heads[uuid] for _, uuid in asked if uuid in self.heads}


async def test_what_is_set_aside_is_given_back_once_its_response_has_ended() -> None:
    queue = Queue(3)
    first, second, third = queue.heads
    assert (queue.meter.reserved, queue.places) == (30, 3)
    queue.heads[second] = RUNNING
    await queue.charges.look(queue.read)
    assert queue.meter.reserved == 30
    queue.heads[first] = ENDED
    del queue.heads[second]
    await queue.charges.look(queue.read)
    assert queue.meter.reserved == 10
    queue.charges.end(TENANT, third)
    queue.charges.end(TENANT, third)
    assert queue.meter.reserved == 0


async def test_a_look_has_a_bounded_number_and_the_next_one_the_others() -> None:
    queue = Queue(LOOKED_AT_MAX + 1)
    last = UUID(int=LOOKED_AT_MAX)
    queue.heads[last] = ENDED
    await queue.charges.look(queue.read)
    assert queue.meter.reserved == 10 * (LOOKED_AT_MAX + 1)
    await queue.charges.look(queue.read)
    assert queue.meter.reserved == 10 * LOOKED_AT_MAX


async def test_what_nothing_is_heard_of_is_given_back_in_the_end() -> None:
    queue = Queue()

    async def fail(_: object) -> dict[UUID, LogHead]:
        raise StoreUnavailable("away")

    queue.now += UNSEEN_MAX_S
    await queue.charges.look(queue.read)  # from here on it counts anew
    queue.now += UNSEEN_MAX_S
    with pytest.raises(StoreUnavailable):
        await queue.charges.look(fail)
    assert queue.meter.reserved == 10
    queue.now += 1
    await queue.charges.look(queue.read)
    assert queue.meter.reserved == 0
