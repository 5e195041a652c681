"""One simulated hour of a fleet, and what came of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from gateway.generation import Route
from gateway.upstreams.routing.costs import RoutingPolicy
from tests.load.fleet.choices import (
    Asked,
    Board,
    Chooser,
    LeastLoaded,
    Oracle,
    Rendezvous,
    RoundRobin,
    Routed,
    TwoChoices,
)
from tests.load.fleet.events import World
from tests.load.fleet.member import Job, SimulatedMember
from tests.load.fleet.prompts import SimulatedPrefix
from tests.load.fleet.traffic import WORKLOADS, Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from tests.load.fleet.traffic import Turn

SLO_S = 3.0
POLICIES: dict[str, type[Chooser]] = {
    "round robin": RoundRobin,
    "least loaded": LeastLoaded,
    "two choices": TwoChoices,
    "rendezvous": Rendezvous,
    "oracle": Oracle,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is simulated. `load` is the share of what the oracle carries, `stored` that of sessions
    with rows. What begins in the first `warm_s` seconds is not counted. `policy` is a name of
    `POLICIES`, or the product's. `events` happen at their time. `speeds` are those of the first
    members, the others have 1.
    """

    workload: str
    load: float = 0.9
    policy: str | RoutingPolicy = field(default_factory=RoutingPolicy)
    members: int = 8
    replicas: int = 3
    stored: float = 0.5
    seconds: float = 400.0
    warm_s: float = 300.0
    seed: int = 1
    exchanges: bool = True
    reads_rows: bool = True
    board: Callable[[], Board] = Board
    events: tuple[tuple[float, Callable[[Fleet], None]], ...] = ()
    speeds: tuple[float, ...] = ()


class Row(NamedTuple):
    """One request: when it was asked, its tokens that were cached and that might be, how soon
    its first token took, where it went, and of which kind its session is.
    """

    at: float
    cached: int
    possible: int
    first_s: float
    member: str
    kind: str


@dataclass
class Result:
    """What was measured: `cached` of `possible` tokens, of which one infinite cache would have
    had all; times to the first token; requests by member.
    """

    cached: int = 0
    possible: int = 0
    first_s: list[float] = field(default_factory=list)
    unanswered: int = 0
    goodput: int = 0
    """Tokens said by requests whose first one came in time."""
    by_member: Counter[str] = field(default_factory=Counter)
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def share(self) -> float:
        """Cached tokens, of those that one infinite cache would have had."""
        return self.cached / max(1, self.possible)

    def quantile(self, share: float) -> float:
        """Seconds to the first token, for that share of the requests at most."""
        times = sorted(self.first_s) + [float("inf")] * self.unanswered
        return times[min(len(times) - 1, int(share * len(times)))] if times else 0.0

    @property
    def in_time(self) -> float:
        """The share that had its first token within the objective."""
        total = len(self.first_s) + self.unanswered
        return sum(time <= SLO_S for time in self.first_s) / max(1, total)

    @property
    def imbalance(self) -> float:
        """The requests of the busiest member, of those of the mean."""
        counts = self.by_member.values()
        return max(counts) * len(counts) / max(1, sum(counts))

    def between(self, start: float, end: float, kinds: Container[str] | None = None) -> Result:
        """Of what was asked in that time, and answered; of sessions of these kinds only."""
        part = Result(seconds=end - start)
        for row in self.rows:
            if start <= row.at < end and (kinds is None or row.kind in kinds):
                part.add(row)
        return part

    def add(self, row: Row) -> None:
        """One request more."""
        self.cached += row.cached
        self.possible += row.possible
        self.first_s.append(row.first_s)
        self.by_member[row.member] += 1
        self.rows.append(row)


class Fleet:
    """Members, replicas, and the sessions that ask them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World()
        self.result = Result(seconds=plan.seconds)
        self._random = Random(plan.seed)
        self._traffic = Traffic(Random(plan.seed + 1))
        workload = WORKLOADS[plan.workload]
        self.members = [
            SimulatedMember(f"gpu-{n}", self.world, kv_tokens=workload.kv_tokens, speed=speed)
            for n, speed in enumerate((*plan.speeds, *[1.0] * plan.members)[: plan.members])
        ]
        self.replicas = list(self._choosers())
        self.is_open = True
        """Sessions begin."""
        self._turn = 0
        self._sessions = 0
        self._seen: set[int] = set()
        self._waiting: dict[Asked, float] = {}
        scale = plan.load * plan.members / 8
        for kind, rate in workload.rates:
            self._begin_later(kind, rate * scale)
        for at, event in plan.events:
            self.world.after(at, partial(event, self))

    def _choosers(self) -> Iterator[Chooser]:
        plan = self.plan
        board = plan.board() if plan.exchanges and plan.replicas > 1 else None
        for n in range(plan.replicas):
            seed = plan.seed * 100 + n
            if isinstance(plan.policy, RoutingPolicy):
                yield Routed(self.world, self.members, seed, policy=plan.policy, board=board)
            else:
                yield POLICIES[plan.policy](self.world, self.members, seed)

    def run(self) -> Result:
        """All of it."""
        self.world.run(self.plan.warm_s + self.plan.seconds)
        now = self.world.now
        # Who waits longer than the objective already has missed it, whenever the answer comes.
        late = [at for at in self._waiting.values() if self.counts(at) and now - at > SLO_S]
        self.result.unanswered = len(late)
        return self.result

    def counts(self, at: float) -> bool:
        """Whether what began then is measured."""
        return at >= self.plan.warm_s

    def revive(self, member: SimulatedMember) -> None:
        """A member that died is back, and every replica sees it."""
        member.is_up = True
        for chooser in self.replicas:
            chooser.returned(member)

    def begin(self, kind: Callable[[Traffic], Iterator[Turn]]) -> None:
        """A session begins now."""
        if not self.is_open:
            return
        self._sessions += 1
        is_stored = self.plan.reads_rows and self._random.random() < self.plan.stored
        session = kind(self._traffic)
        named = kind.__name__
        self._next(session, (self._sessions, named), None, is_stored=is_stored)

    def _begin_later(self, kind: Callable[[Traffic], Iterator[Turn]], rate: float) -> None:
        def begin() -> None:
            self.begin(kind)
            self._begin_later(kind, rate)

        self.world.after(self._random.expovariate(rate), begin)

    def _next(
        self,
        session: Iterator[Turn],
        named: tuple[int, str],
        route: Route | None,
        *,
        is_stored: bool,
    ) -> None:
        turn = next(session, None)
        if turn is None:
            return
        placement = route.placement if route is not None and is_stored else None
        route = Route(placement, opening=turn.opening)
        asked = Asked(SimulatedPrefix(turn.messages), *named, route)
        then = partial(self._next, session, named, asked.route, is_stored=is_stored)
        self.world.after(turn.pause_s, partial(self._ask, asked, turn, then))

    def _ask(self, asked: Asked, turn: Turn, then: Callable[[], None]) -> None:
        self._turn += 1
        chooser = self.replicas[self._turn % len(self.replicas)]
        possible = self._possible(asked.prefix)
        self._waiting[asked] = self.world.now
        self._send(chooser, asked, turn, then, possible)

    def _send(
        self, chooser: Chooser, asked: Asked, turn: Turn, then: Callable[[], None], possible: int
    ) -> None:
        member = chooser.choose(asked)
        chooser.sent(asked, member)

        def on_first(job: Job) -> None:
            chooser.first(asked, member)
            self._note_first(asked, job, member, possible)

        def on_end(job: Job) -> None:
            chooser.ended(asked, member, job)
            self._seen.update(job.prefix.longer_by(job.said).chains)
            then()

        def on_lost(job: Job) -> None:
            chooser.lost(asked, member)
            if asked in self._waiting:
                self._send(chooser, asked, turn, then, possible)
            else:
                then()

        job = Job(asked.prefix, turn.said, self.world.now, on_first, on_end, on_lost)
        member.send(job)

    def _note_first(self, asked: Asked, job: Job, member: SimulatedMember, possible: int) -> None:
        at = self._waiting.pop(asked)
        self._seen.update(job.prefix.chains)
        if not self.counts(at):
            return
        seconds = self.world.now - at
        cached = min(job.cached, possible)
        self.result.add(Row(at, cached, possible, seconds, member.name, asked.kind))
        if seconds <= SLO_S:
            self.result.goodput += job.output

    def _possible(self, prefix: SimulatedPrefix) -> int:
        """What one infinite cache would have of it."""
        held = 0
        for chain, end in zip(prefix.chains, prefix.ends, strict=True):
            if chain not in self._seen:
                break
            held = end
        return min(held, prefix.length - 1)


def simulate(plan: Plan) -> Result:
    """Run it."""
    return Fleet(plan).run()
