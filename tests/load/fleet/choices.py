"""Who chooses a member in the simulation: the policy of the product, and what it stands beside."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from gateway.upstreams.routing.costs import Candidate, RoutingPolicy, delay_s
from gateway.upstreams.routing.router import PeerReport, Router
from tests.load.fleet.member import RATE, SLOTS
from tests.load.fleet.prompts import Said

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.generation import Route
    from gateway.upstreams.routing.router import Flight
    from tests.load.fleet.events import World
    from tests.load.fleet.member import Job, SimulatedMember
    from tests.load.fleet.prompts import SimulatedPrefix

PROBE_S: Final = 2.0
EXACT: Final = replace(RoutingPolicy(), delay_slack_share=0.0)


@dataclass(eq=False)
class Asked:
    """A turn on its way: its prompt, and what is known of its session."""

    prefix: SimulatedPrefix
    session: int
    kind: str
    route: Route


class Chooser:
    """What one replica does. `members` are those that are up."""

    def __init__(self, world: World, members: Sequence[SimulatedMember], seed: int) -> None:
        self.world = world
        self.members = members
        self.random = Random(seed)
        self.in_flight = dict.fromkeys((member.name for member in members), 0)
        self.probed = dict(self.in_flight)
        world.after(self.random.uniform(0, PROBE_S), self._probe)

    @property
    def up(self) -> list[SimulatedMember]:
        """Those that may be chosen."""
        return [member for member in self.members if member.is_up]

    def choose(self, asked: Asked) -> SimulatedMember:
        """The member for a turn."""
        raise NotImplementedError

    def sent(self, asked: Asked, member: SimulatedMember) -> None:
        """It is on its way."""
        self.in_flight[member.name] += 1

    def first(self, asked: Asked, member: SimulatedMember) -> None:
        """Its first token came."""

    def ended(self, asked: Asked, member: SimulatedMember, job: Job) -> None:
        """It is over."""
        self.in_flight[member.name] -= 1

    def lost(self, asked: Asked, member: SimulatedMember) -> None:
        """The member died."""
        self.in_flight[member.name] -= 1

    def returned(self, member: SimulatedMember) -> None:
        """A member that had died is back."""

    def _probe(self) -> None:
        for member in self.up:
            self.look(member)
        self.world.after(PROBE_S, self._probe)

    def look(self, member: SimulatedMember) -> None:
        """What a poll shows."""
        self.probed[member.name] = len(member.waiting) + member.running

    def busy(self, member: SimulatedMember) -> int:
        """Requests of this replica, and what the last poll showed."""
        return max(self.in_flight[member.name], self.probed[member.name])


class RoundRobin(Chooser):
    """In turns."""

    turn = 0

    @override
    def choose(self, asked: Asked) -> SimulatedMember:
        self.turn += 1
        up = self.up
        return up[self.turn % len(up)]


class LeastLoaded(Chooser):
    """The one with the fewest requests, by its own count and the polls."""

    @override
    def choose(self, asked: Asked) -> SimulatedMember:
        return min(self.up, key=lambda one: (self.busy(one), self.random.random()))


class TwoChoices(Chooser):
    """The less busy one of two."""

    @override
    def choose(self, asked: Asked) -> SimulatedMember:
        up = self.up
        return min(self.random.sample(up, min(2, len(up))), key=self.busy)


class Rendezvous(Chooser):
    """The owner of the session, unless it has a quarter more than its share."""

    @override
    def choose(self, asked: Asked) -> SimulatedMember:
        up = self.up
        share = 1.25 * (1 + sum(map(self.busy, up))) / len(up)
        ranked = sorted(up, key=lambda one: _weight(one.name, asked.session))
        return next((one for one in ranked if self.busy(one) <= share), ranked[0])


class Oracle(Chooser):
    """Sees all caches and queues as they are, and takes the least cost."""

    @override
    def choose(self, asked: Asked) -> SimulatedMember:
        up = {one.name: one for one in self.up}
        candidates = [
            Candidate(
                one.name,
                one.cache.held(asked.prefix),
                delay_s(one.owed, one.running, 0, RATE)
                + max(0, one.running + len(one.waiting) - SLOTS) * 0.1,
                RATE,
            )
            for one in up.values()
        ]
        least = min(one.delay_s for one in candidates)
        # All are looked at: what it sees is true now.
        best = min(
            candidates,
            key=lambda one: (
                max(0.0, one.delay_s - least)
                + EXACT.uncached_weight * (asked.prefix.length - one.held) / RATE,
                one.delay_s,
                self.random.random(),
            ),
        )
        return up[best.name]


@dataclass
class Board:
    """Where replicas leave what they tell; `trouble` is what becomes of each message: the seconds
    after which each copy is heard.
    """

    trouble: Callable[[Random], Sequence[float]] = field(default=lambda _: (0.01,))
    random: Random = field(default_factory=lambda: Random(5))
    routers: dict[str, Router] = field(default_factory=dict)

    def tell(self, world: World, replica: str) -> None:
        """One exchange of one replica."""
        router = self.routers[replica]
        loads, entries = router.report()
        for name, other in self.routers.items():
            if name == replica:
                continue
            for late_s in self.trouble(self.random):
                report = PeerReport(replica, late_s, loads, entries)
                world.after(late_s, partial(other.exchanged, [report]))


class Routed(Chooser):
    """The product: its `Router`, told what the pool would tell it."""

    def __init__(
        self,
        world: World,
        members: Sequence[SimulatedMember],
        seed: int,
        *,
        policy: RoutingPolicy,
        board: Board | None,
    ) -> None:
        self.router = Router(
            policy,
            b"simulated",
            clock=world.clock,
            wall=lambda: world.now + 1e9,
            random=Random(seed),
        )
        self._flights: dict[Asked, Flight] = {}
        super().__init__(world, members, seed)
        for member in members:
            self.router.probed(member.name, kv_tokens=member.kv_tokens)
        if board is not None:
            self._name = f"replica-{seed}"
            self._board = board
            board.routers[self._name] = self.router
            self._tell_again()

    def _tell_again(self) -> None:
        interval_s = self.router.policy.exchange_interval_s
        self.world.after(interval_s * self.random.uniform(0.8, 1.2), self._tell)

    def _tell(self) -> None:
        self._board.tell(self.world, self._name)
        self._tell_again()

    @override
    def choose(self, asked: Asked) -> SimulatedMember:
        up = {one.name: one for one in self.up}
        decision = self.router.choose(list(up), asked.prefix, asked.route)  # type: ignore[arg-type]
        self._flights[asked] = self.router.begin(decision, asked.route)
        return up[decision.member.name]

    @override
    def first(self, asked: Asked, member: SimulatedMember) -> None:
        self._flights[asked].first()

    @override
    def ended(self, asked: Asked, member: SimulatedMember, job: Job) -> None:
        super().ended(asked, member, job)
        flight = self._flights.pop(asked)
        flight.ended(Said(job.said), job.cached, is_finished=True)
        flight.close()

    @override
    def lost(self, asked: Asked, member: SimulatedMember) -> None:
        super().lost(asked, member)
        self._flights.pop(asked).close()

    @override
    def returned(self, member: SimulatedMember) -> None:
        self.router.returned(member.name)

    @override
    def look(self, member: SimulatedMember) -> None:
        super().look(member)
        self.router.probed(member.name, waiting=len(member.waiting))


def _weight(name: str, session: int) -> bytes:
    return blake2b(f"{name} {session}".encode(), digest_size=8).digest()
