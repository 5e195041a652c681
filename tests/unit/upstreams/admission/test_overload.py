"""Three times as much as the backends can do, in simulated time: the real slots and queue before
servers with few places, which let the rest wait as engines do.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from statistics import quantiles
from typing import TYPE_CHECKING

import pytest

from gateway.upstreams.admission.queue import AdmissionQueue, Demand, Ticket
from gateway.upstreams.admission.slots import AdmissionPolicy, MemberSlots, Slot, WorkClass

if TYPE_CHECKING:
    from collections.abc import Callable

MODEL = Demand("m")
SERVERS, PLACES = 4, 8
FIRST_TOKEN_S, SERVICE_S = 0.2, (1.0, 3.0)
LEARNING_S, MEASURED_S = 120.0, 600.0
PROBE_S = 2.0


@dataclass
class Request:
    arrived_at: float
    service_s: float
    slot: Slot | None = None
    sent_at: float = 0.0


@dataclass
class Server:
    slots: MemberSlots
    running: int = 0
    waiting: deque[Request] = field(default_factory=deque)


class Fleet:
    """Servers behind one gateway, in simulated time."""

    def __init__(
        self,
        policy: AdmissionPolicy,
        *,
        tells_queue: bool,
        places: int,
        learning_s: float,
        measured_s: float,
    ) -> None:
        self.now = 0.0
        self.places = places
        self.learning_s = learning_s
        self.measured_s = measured_s
        self.random = Random(5)
        self.servers = [Server(MemberSlots(f"s{i}", policy)) for i in range(SERVERS)]
        self.queue = AdmissionQueue[Slot](policy)
        self.policy = policy
        self.tells_queue = tells_queue
        self.done_s = 0.0
        self.first_s: list[float] = []
        self.refused = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._number), event))

    def run(self, load: float) -> None:
        """`load` is the share of what the places can do."""
        self.arrive(load * SERVERS * self.places / (sum(SERVICE_S) / 2))
        self.probe()
        while self.now < self.learning_s + self.measured_s:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def arrive(self, rate_per_s: float) -> None:
        self.at(self.random.expovariate(rate_per_s), partial(self.arrive, rate_per_s))
        request = Request(self.now, self.random.uniform(*SERVICE_S))
        if self.queue.refuses(WorkClass.DEFAULT, "m", self.now) is not None:
            self.refuse()
            return
        ticket: Ticket[Slot] = Ticket(
            WorkClass.DEFAULT,
            MODEL,
            partial(self.send, request),
            since=self.now,
            deadline=self.now + self.policy.wait_max_s,
            on_settled=lambda: self.refuse() if ticket.refused_for else None,
        )
        self.queue.push(ticket, self.now)
        self.queue.pump(self.now)

    def refuse(self) -> None:
        self.refused += self.now > self.learning_s

    def send(self, request: Request) -> Slot | None:
        roomy = [one for one in self.servers if one.slots.has_room(WorkClass.DEFAULT)]
        if not roomy:
            return None
        server = min(roomy, key=lambda one: one.slots.in_flight)
        request.slot = server.slots.take(WorkClass.DEFAULT, 100)
        request.sent_at = self.now
        server.waiting.append(request)
        self.begin(server)
        return request.slot

    def begin(self, server: Server) -> None:
        while server.waiting and server.running < self.places:
            request = server.waiting.popleft()
            server.running += 1
            self.at(FIRST_TOKEN_S, partial(self.first, request))
            self.at(request.service_s, partial(self.end, server, request))

    def first(self, request: Request) -> None:
        assert request.slot is not None
        request.slot.first(self.now - request.sent_at)
        if self.now > self.learning_s:
            self.first_s.append(self.now - request.arrived_at)
        self.queue.pump(self.now)

    def end(self, server: Server, request: Request) -> None:
        assert request.slot is not None
        server.running -= 1
        request.slot.release()
        self.done_s += request.service_s * (self.now > self.learning_s)
        self.begin(server)
        self.queue.pump(self.now)

    def probe(self) -> None:
        self.at(PROBE_S, self.probe)
        for server in self.servers:
            told = (len(server.waiting), server.running) if self.tells_queue else (None, None)
            server.slots.reported(*told)
        self.queue.pump(self.now)

    @property
    def goodput(self) -> float:
        """Of what places that are never empty do."""
        return self.done_s / (SERVERS * self.places * self.measured_s)

    @property
    def p99_s(self) -> float:
        return quantiles(self.first_s, n=100)[98]


def loaded(
    share: float,
    *,
    tells_queue: bool,
    places: int = PLACES,
    learning_s: float = LEARNING_S,
    measured_s: float = MEASURED_S,
    **policy: int,
) -> Fleet:
    fleet = Fleet(
        AdmissionPolicy(**policy),
        tells_queue=tells_queue,
        places=places,
        learning_s=learning_s,
        measured_s=measured_s,
    )
    fleet.run(share)
    return fleet


@pytest.mark.slow
@pytest.mark.parametrize(("tells_queue", "times_max"), [(True, 2.0), (False, 3.0)])
def test_an_overload_costs_no_capacity_and_little_patience(
    tells_queue: bool, times_max: float
) -> None:
    busy = loaded(0.9, tells_queue=tells_queue)
    assert busy.refused == 0
    over = loaded(3.0, tells_queue=tells_queue)
    assert over.goodput >= 0.97
    assert over.p99_s <= times_max * busy.p99_s
    assert all(PLACES / 2 <= one.slots.bound <= 2 * PLACES for one in over.servers)


@pytest.mark.slow
def test_while_an_overload_begins_nobody_waits_for_long() -> None:
    """Neither at a backend of which nothing was learned, nor here as for a burst."""
    busy = loaded(0.9, tells_queue=True)
    over = loaded(3.0, tells_queue=True, learning_s=0.0, measured_s=40.0)
    assert over.p99_s <= 3.5 * busy.p99_s


@pytest.mark.slow
@pytest.mark.parametrize("places", [64, 200])
def test_a_large_server_is_soon_sent_what_it_can_do(places: int) -> None:
    cold = loaded(0.9, tells_queue=False, learning_s=0.0, measured_s=20.0, places=places)
    assert cold.refused == 0
    assert cold.p99_s < 3 * FIRST_TOKEN_S


@pytest.mark.slow
def test_a_server_that_can_do_more_is_soon_sent_more() -> None:
    fleet = loaded(0.9, tells_queue=True, slots_start=4, slots_min=1)
    assert fleet.goodput >= 0.87
    assert fleet.refused == 0
