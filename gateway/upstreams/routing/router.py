from __future__ import annotations

import time
from array import array
from collections import deque
from dataclasses import dataclass
from hashlib import blake2b
from operator import attrgetter
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.errors import UpstreamError
from gateway.telemetry.metrics import Metrics
from gateway.upstreams.routing.costs import (
    EXPECTED_MIN,
    MISS,
    WARM_SHARE,
    Candidate,
    MemberLoad,
    PeerLoad,
    choose,
    choose_owner,
    hold_back,
)
from gateway.upstreams.routing.prefix_index import (
    MEMBERS_MAX,
    TICKS_PER_S,
    HashedPrefix,
    Placement,
    PrefixIndex,
    PrefixKeys,
    marks_of,
    member_id,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gateway.generation import Route, TokenChunk, TokenRequest, TokenSink
    from gateway.upstreams.routing.costs import Reason, RoutingPolicy


NO_AGE: Final = 0.0
NUMBERS_MIN: Final = 1_024
"""Members so far, before the numbers of those that have left are used again."""


class SentPrefix(NamedTuple):
    """First `tokens` ids that a member was sent, according to `reason`."""

    tokens: int
    age_s: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class Decision:
    """Member for a prompt, of which it probably holds `expected` tokens, used last `age_s` ago."""

    member: MemberLoad
    prefix: HashedPrefix
    expected: int
    age_s: float
    reason: Reason
    placement: Placement | None


class PlacedEntry(NamedTuple):
    """News for other replicas: the member has what `digest` stands for, and `tail` ids more."""

    digest: int
    member: int
    tail: int


@dataclass(frozen=True, slots=True)
class PeerReport:
    replica: str
    age_s: float
    loads: Mapping[int, tuple[int, int]]
    """Average requests in flight and tokens owed, by `member_id`."""
    entries: Sequence[PlacedEntry]


class Router:
    """Members of all models, and where prefixes are; waits for nothing.

    `clock` never goes back, `wall` gives unix seconds.
    """

    def __init__(
        self,
        policy: RoutingPolicy,
        secret: bytes,
        *,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        random: Random | None = None,
    ) -> None:
        # `secret` is the same in all replicas, and keys the digests.
        self.policy = policy
        self._keys = PrefixKeys(secret)
        self._metrics = metrics = metrics or Metrics()
        self._clock = clock
        self._wall = wall
        self._random = random or Random()  # noqa: S311 - spreads load, no secret
        self._started_at = clock()
        self._members: dict[str, MemberLoad] = {}
        self._numbers = 0
        self._numbers_free: deque[int] = deque()
        self._by_id: dict[int, MemberLoad] = {}
        self.index = PrefixIndex(policy.entries_max)
        self._default_rate = policy.read_tokens_per_s
        self._news: deque[PlacedEntry] = deque(maxlen=policy.exchange_entries_max)
        self._exchanged_at: float | None = None
        self._has_peers = False
        metrics.routing_reads(age_s=lambda: self.exchange_age_s, entries=self.index.__len__)

    def member(self, name: str) -> MemberLoad:
        load = self._members.get(name)
        if load is None:
            load = MemberLoad(name, 0, member_id(name), self.policy)
            self._number(load)
            self._members[name] = self._by_id[load.id] = load
            self._bound_index()
        return load

    def _number(self, member: MemberLoad) -> None:
        # The index may still have entries of the number's previous owner: entries older than the
        # member do not count.
        if self._numbers_free and self._numbers >= NUMBERS_MIN:
            member.number = self._numbers_free.popleft()
            member.since = self._clock()
        else:
            member.number = self._numbers = min(self._numbers + 1, MEMBERS_MAX)

    def knows(self, name: str) -> bool:
        # True also for a member that has just left.
        return name in self._members

    def forget(self, name: str) -> None:
        """Remove a member without anything in flight."""
        member = self._members.pop(name, None)
        if member is None:
            return
        if self._by_id.get(member.id) is member:  # the hashes of two names may be equal
            del self._by_id[member.id]
        if not member.in_flight:
            self._numbers_free.append(member.number)
        self._bound_index()

    def prefix(self, request: TokenRequest) -> HashedPrefix:
        return HashedPrefix(request.prompt_ids, self._keys.of(request.cache_salt, request.model))

    def choose(
        self, names: Sequence[str], prefix: HashedPrefix, route: Route | None = None
    ) -> Decision:
        """Choose the member for a prompt, of those with these names; there must be one."""
        members = [self.member(name) for name in names]
        placement = self._placement(route)
        sent = self._find_sent(members, prefix, placement, route)
        candidates = self._candidates(members, prefix, sent)
        prompt = prefix.length
        warmest = max(candidates, key=attrgetter("held"))
        owner = None
        if warmest.held < WARM_SHARE * prompt and placement is None and self._is_cut_off():
            owner = self._owner(members, prefix, route)
        if owner is not None:
            chosen = choose_owner(candidates, owner, prompt, self.policy, self._random)
        else:
            chosen = choose(candidates, prompt, self.policy, self._random)
        what = sent.get(chosen.name)
        reason = _reason(chosen, warmest, what, owner, len(candidates))
        decision = Decision(
            self._members[chosen.name],
            prefix,
            chosen.held,
            NO_AGE if what is None else what.age_s,
            reason,
            placement,
        )
        self._metrics.routed(chosen.name, reason, prompt=prompt, expected=chosen.held)
        return decision

    def candidates(
        self, names: Sequence[str], prefix: HashedPrefix, route: Route | None = None
    ) -> list[Candidate]:
        members = [self.member(name) for name in names]
        sent = self._find_sent(members, prefix, self._placement(route), route)
        return self._candidates(members, prefix, sent)

    def holds_back(self, names: Sequence[str], request: TokenRequest) -> bool:
        policy, now, rate = self.policy, self._clock(), self._default_rate
        limit_s, idle = policy.hold_back_delay_s, 0
        for name in names:
            one = self.member(name)
            idle += one.delay_s(one.rate_at(now) or rate, now) <= limit_s
            if 2 * idle > len(names):  # as nearly always: nothing is hashed
                return False
        route = request.route
        return hold_back(
            self.candidates(names, self.prefix(request), route),
            request.prompt_tokens,
            is_continued=route is not None and route.placement is not None,
            policy=policy,
        )

    def begin(
        self, decision: Decision, route: Route | None = None, *, surplus_ids: int = 0
    ) -> Flight:
        # The caller must call `close` in the end. `surplus_ids` is that of `TokenRequest`.
        return Flight(self, decision, route, surplus_ids)

    def probed(
        self,
        name: str,
        *,
        waiting: int | None = None,
        epoch: int | None = None,
        kv_tokens: int | None = None,
    ) -> None:
        member, now = self.member(name), self._clock()
        if waiting is not None:
            member.note_waiting(waiting, now)
        if epoch is not None and member.note_start(epoch, self._wall() - epoch, now):
            self._metrics.cache_lost(member.name)
        if kv_tokens is not None and kv_tokens != member.kv_tokens:
            member.kv_tokens = kv_tokens
            self._bound_index()

    def returned(self, name: str, *, epoch: int | None = None) -> None:
        """Note that an unreachable member is back.

        Unless it reports the same process as before, its cache counts as lost.
        """
        member = self.member(name)
        if epoch is not None and abs(epoch - member.epoch) <= 1:
            return
        member.forget_cache(self._clock())
        if epoch is not None:
            member.epoch = epoch
        self._metrics.cache_lost(member.name)

    def report(self) -> tuple[dict[int, tuple[int, int]], list[PlacedEntry]]:
        """Return (in flight, owed) by member id, and the placements since the last call."""
        now = self._clock()
        loads = {one.id: one.averages(now) for one in self._members.values()}
        entries = list(self._news)
        self._news.clear()
        return loads, entries

    def exchanged(self, reports: Iterable[PeerReport]) -> None:
        """Take in reports of other replicas, in any order, perhaps repeated."""
        now = self._exchanged_at = self._clock()
        expiry_s = self.policy.peer_expiry_s
        for member in self._members.values():
            if member.peers:
                member.peers = {
                    replica: load
                    for replica, load in member.peers.items()
                    if now - load.at <= expiry_s
                }
        for report in reports:
            self._take(report, now)
        self._has_peers = any(member.peers for member in self._members.values())

    @property
    def now(self) -> float:
        # In seconds of the router's clock.
        return self._clock()

    @property
    def exchange_age_s(self) -> float:
        # 0 if there was no exchange with other replicas yet.
        return 0.0 if self._exchanged_at is None else self._clock() - self._exchanged_at

    def _take(self, report: PeerReport, now: float) -> None:
        at = now - report.age_s
        for id_, (in_flight, owed) in report.loads.items():
            member = self._by_id.get(id_)
            if member is None or report.age_s > self.policy.peer_expiry_s:
                continue
            previous = member.peers.get(report.replica)
            if previous is None or previous.at <= at:
                member.peers[report.replica] = PeerLoad(in_flight, owed, at)
        ticks = self._ticks(at)
        for entry in report.entries:
            placed_at = self._by_id.get(entry.member)
            if placed_at is not None:
                self.index.put(entry.digest, placed_at.number, ticks)
                if entry.tail:
                    self.index.note_tail(entry.digest, entry.tail)

    def _placement(self, route: Route | None) -> Placement | None:
        if route is None or route.placement is None:
            return None
        return Placement.unpack(route.placement)

    def _find_sent(
        self,
        members: Iterable[MemberLoad],
        prefix: HashedPrefix,
        placement: Placement | None,
        route: Route | None,
    ) -> dict[str, SentPrefix]:
        now, ticks = self._clock(), self._ticks(self._clock())
        oldest = [0] * (self._numbers + 1)
        for one in members:
            oldest[one.number] = max(0, self._ticks(max(one.since, now - one.horizon_s)))
        holdings = self.index.find(prefix, oldest)
        sent = {
            one.name: SentPrefix(held.tokens, (ticks - held.used_at) / TICKS_PER_S, "index")
            for one in members
            if (held := holdings.get(one.number)) is not None
        }
        last = None if placement is None else self._by_id.get(placement.member)
        if placement is not None and last is not None:
            tokens, age_s = self._held_by_row(last, placement, prefix, now)
            if tokens and (last.name not in sent or tokens >= sent[last.name].tokens):
                is_own = route is not None and route.turns
                sent[last.name] = SentPrefix(tokens, age_s, "turn" if is_own else "row")
        return sent

    def _held_by_row(
        self, member: MemberLoad, placement: Placement, prefix: HashedPrefix, now: float
    ) -> tuple[int, float]:
        # Returns (tokens held, seconds since the last use).
        age_s = max(0.0, self._wall() - placement.at)
        is_same = not placement.epoch or not member.epoch or placement.epoch == member.epoch
        if not is_same or now - age_s < member.since or age_s > member.horizon_s:
            return 0, age_s
        return placement.held(prefix), age_s

    def _candidates(
        self, members: Iterable[MemberLoad], prefix: HashedPrefix, sent: Mapping[str, SentPrefix]
    ) -> list[Candidate]:
        now, most = self._clock(), max(0, prefix.length - 1)
        made = []
        for one in members:
            rate = one.rate_at(now) or self._default_rate
            held = min(sent[one.name].tokens, most) if one.name in sent else 0
            made.append(Candidate(one.name, held, one.delay_s(rate, now), rate))
        return made

    def _is_cut_off(self) -> bool:
        return self._has_peers and self.exchange_age_s > self.policy.peer_expiry_s

    def _owner(
        self, members: Sequence[MemberLoad], prefix: HashedPrefix, route: Route | None
    ) -> str | None:
        # Rendezvous hashing: every replica sends an unknown session to the same member.
        if route is None or (route.cache_key is None and not route.opening):
            return None
        if route.cache_key is not None:
            session = prefix.named(route.cache_key)
        else:
            session = prefix.at(min(route.opening, prefix.length))
        weights = {one.name: _weight(one.id, session) for one in members}
        return max(weights, key=weights.__getitem__)

    def placed(
        self, member: MemberLoad, prefix: HashedPrefix, ends: Sequence[int], *, from_place: int = 0
    ) -> None:
        ticks = self._ticks(self._clock())
        news = self.index.touch(prefix, member.number, ticks, ends, from_place=from_place)
        self._news.extend(PlacedEntry(digest, member.id, tail) for digest, tail in news)

    def placement(self, decision: Decision, prefix: HashedPrefix) -> Placement:
        """Return the placement for a response's row; `prefix` includes the generated ids."""
        member, before = decision.member, decision.placement
        lengths = (decision.prefix.length, prefix.length)
        marks = marks_of(prefix, lengths, () if before is None else before.marks)
        return Placement(member.id, member.epoch, int(self._wall()), tuple(marks))

    def read(self, decision: Decision, seconds: float, cached: int | None) -> None:
        had, now = decision.expected if cached is None else cached, self._clock()
        decision.member.note_prefill(decision.prefix.length - had, seconds, now)
        current_rates = (one.rate_at(now) for one in self._members.values())
        rates = [rate for rate in current_rates if rate is not None]
        self._default_rate = median(rates) if rates else self.policy.read_tokens_per_s

    def reported(self, decision: Decision, cached: int) -> None:
        member, expected = decision.member, decision.expected
        self._metrics.cache_reported(
            member.name,
            expected=expected,
            cached=cached,
            mispredicted=expected > EXPECTED_MIN and cached < MISS * expected,
            horizon_s=member.horizon_s,
        )
        if member.note_cached(expected, cached, decision.age_s, self._clock()):
            self._metrics.cache_lost(member.name)

    def _bound_index(self) -> None:
        policy = self.policy
        tokens = sum(one.kv_tokens or policy.kv_tokens for one in self._members.values())
        self.index.bound(min(policy.entries_max, int(policy.entries_per_kv_token * tokens)))

    def _ticks(self, now: float) -> int:
        since_s = now - self._started_at
        return 1 + int(max(0.0, since_s) * TICKS_PER_S)


class Flight:
    """Load of a member by a prompt. `first` may be called once, then `ended`; `close` always."""

    __slots__ = (
        "_decision", "_first_s", "_in_flight", "_owed", "_route", "_router", "_started_at",
        "_was_idle",
    )  # fmt: skip

    def __init__(
        self, router: Router, decision: Decision, route: Route | None, surplus_ids: int = 0
    ) -> None:
        member = decision.member
        self._router = router
        self._decision = decision
        self._route = route
        self._started_at = router.now
        self._was_idle = not member.owed
        self._first_s: float | None = None
        self._in_flight = 1
        self._owed = max(0, decision.prefix.length - surplus_ids - decision.expected)
        member.add(self._started_at, 1, self._owed)

    def first(self) -> None:
        decision, now = self._decision, self._router.now
        decision.member.add(now, 0, -self._owed)
        self._owed = 0
        self._first_s = now - self._started_at
        self._router.placed(decision.member, decision.prefix, (decision.prefix.length,))

    def ended(self, ids: Sequence[int], cached: int | None, *, is_finished: bool) -> None:
        """Note the end of the turn; members report `cached` only of one that `is_finished`.

        The member has not read, and so not cached, the last id.
        """
        if self._first_s is None:
            return
        router, decision = self._router, self._decision
        place = len(decision.prefix.digests)
        prefix = decision.prefix.longer(ids[:-1]) if len(ids) > 1 else decision.prefix
        router.placed(decision.member, prefix, (prefix.length,), from_place=place)
        if self._route is not None:
            self._route.moved(router.placement(decision, prefix).pack())
        had = None
        if is_finished and (cached or decision.member.reports):
            had = cached or 0
            router.reported(decision, had)
        if self._was_idle and is_finished:
            router.read(decision, self._first_s, had)

    def close(self) -> None:
        self._decision.member.add(self._router.now, -self._in_flight, -self._owed)
        self._in_flight = self._owed = 0


def _reason(
    chosen: Candidate, warmest: Candidate, sent: SentPrefix | None, owner: str | None, count: int
) -> Reason:
    if count == 1:
        return "only"
    if chosen.name == owner:
        return "owner"
    if sent is not None and chosen.held > WARM_SHARE * warmest.held:
        return sent.reason
    return "load" if warmest.held else "cold"


def _weight(member: int, session: int) -> bytes:
    return blake2b(b"%d %d" % (member, session), digest_size=8).digest()


class FlightSink:
    """Token sink before another one, which reports to a flight."""

    __slots__ = ("_cached", "_flight", "_ids", "_is_finished", "_on_tokens", "room")

    def __init__(self, flight: Flight, sink: TokenSink) -> None:
        self._flight = flight
        self._on_tokens = sink.on_tokens
        self.room = sink.room
        self._ids: array[int] | None = None
        self._cached: int | None = None
        self._is_finished = False

    def on_tokens(self, chunk: TokenChunk) -> bool:
        ids = self._ids
        if ids is None:
            ids = self._ids = array("I")
            self._flight.first()
        ids.fromlist(chunk.ids)
        if chunk.finish is not None:
            self._is_finished, self._cached = True, chunk.cached_tokens
        return self._on_tokens(chunk)

    def close(self, error: BaseException | None) -> None:
        # After an error of the member its cache is unknown, so nothing is noted as placed.
        if self._ids is not None and not isinstance(error, UpstreamError):
            self._flight.ended(self._ids, self._cached, is_finished=self._is_finished)
        self._flight.close()
