"""A fleet that is asked for three times what it can do, in simulated time, through the real queue.

Twelve tenants on 64 slots: one has long answers, one floods, ten are small.
"""

from __future__ import annotations

import heapq
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.upstreams.admission.queue import AdmissionQueue, Demand, FairShares, Ticket
from gateway.upstreams.admission.slots import AdmissionPolicy, WorkClass

if TYPE_CHECKING:
    from gateway.upstreams.admission.queue import CountedRequest

SLOTS: Final = 64
SECONDS: Final = 900.0
TOKENS_PER_S: Final = 50.0
"""Of one answer."""
WAITING_MAX: Final = 64
"""Of one tenant; what comes beyond that is refused."""
POLICY: Final = AdmissionPolicy(
    queue_length_max=10**9, wait_max_s=10**9, promotion_s=10**9, background_promotion_s=10**9
)


class Tenant(NamedTuple):
    """Requests a second, tokens of their prompts and of their answers."""

    per_s: float
    prompt: int
    output: int


TENANTS: Final = {
    "long": Tenant(3.0, 500, 2_000),
    "flood": Tenant(40.0, 300, 250),
    **{f"small{number}": Tenant(0.25, 400, 200) for number in range(10)},
}


class Load:
    """One run; the same requests whatever the order. `run` it, then look at what it counted."""

    def __init__(self, *, is_fair: bool) -> None:
        self.now = 0.0
        self.shares = FairShares()
        counted = self.shares if is_fair else FairShares()
        self.queue: AdmissionQueue[CountedRequest] = AdmissionQueue(POLICY, counted)
        self.free = SLOTS
        self.ends: list[tuple[float, int, CountedRequest, int, str]] = []
        self.waited: dict[str, list[float]] = {name: [] for name in TENANTS}
        """Seconds, of those that went."""
        self.refused = dict.fromkeys(TENANTS, 0)
        self.generated = dict.fromkeys(TENANTS, 0)
        """Tokens."""
        self.random = Random(7)
        self.number = 0

    def arrivals(self) -> list[tuple[float, str]]:
        found = []
        for name, tenant in TENANTS.items():
            at = 0.0
            while (at := at + self.random.expovariate(tenant.per_s)) < SECONDS:
                found.append((at, name))
        return sorted(found)

    def arrive(self, name: str) -> None:
        tenant, since = TENANTS[name], self.now
        output = max(1, int(self.random.expovariate(1 / tenant.output)))

        def start() -> CountedRequest | None:
            if not self.free:
                return None
            self.free -= 1
            self.waited[name].append(self.now - since)
            service = self.shares.serve(name, tenant.prompt, WorkClass.DEFAULT)
            self.number += 1
            took = output / TOKENS_PER_S
            heapq.heappush(self.ends, (self.now + took, self.number, service, output, name))
            return service

        if self.queue or start() is None:
            queued = self.queue._of_tenants[name]
            if queued < WAITING_MAX:
                self.queue.push(ticket(0, name, start, since=since), self.now)
            else:
                self.refused[name] += 1

    def run(self) -> None:
        for at, name in self.arrivals():
            while self.ends and self.ends[0][0] <= at:
                self.end()
            self.now = at
            self.arrive(name)
        while self.ends and self.ends[0][0] <= SECONDS:
            self.end()

    def end(self) -> None:
        self.now, _, service, output, name = heapq.heappop(self.ends)
        service.end(output)
        self.generated[name] += output
        self.free += 1
        self.queue.pump(self.now)

    def waits_of_small(self) -> list[float]:
        """Those of the ten small tenants, the shortest first."""
        small = (waits for name, waits in self.waited.items() if name.startswith("small"))
        return sorted(wait for waits in small for wait in waits)


def ticket(
    number: int, tenant: str, start: object = None, *, since: float = 0.0
) -> Ticket[CountedRequest]:
    """One that waits; it would go by `start`."""
    made: Ticket[CountedRequest] = Ticket(
        WorkClass.DEFAULT,
        Demand("m"),
        start,  # type: ignore[arg-type]
        since=since,
        deadline=10**9,
        on_settled=lambda: None,
        tenant=tenant,
    )
    made.number = number
    return made
