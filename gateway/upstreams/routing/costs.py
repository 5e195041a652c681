"""Choice of a member by least cost in seconds of waiting.

docs/routing.md explains the rule, and the measurements behind each number. Times are seconds of a
clock that never goes back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random


Reason = Literal["turn", "row", "index", "owner", "load", "cold", "only"]
"""See docs/routing.md; a row is that of the response before."""

WARM_SHARE: Final = 0.5
"""All members are considered for a prompt of which one holds so much."""
CACHE_CHOICES: Final = 2
RANDOM_CHOICES: Final = 2
"""Members beside the best holders, so that replicas do not all take the same idle one."""


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """Numbers of routing; see docs/routing.md. Sizes are tokens."""

    uncached_weight: float = 2.0
    delay_slack_share: float = 0.5
    kv_tokens: int = 2_000_000
    horizon_s: float = 3600.0
    read_tokens_per_s: float = 8_000.0
    exchange_interval_s: float = 1.0
    exchange_entries_max: int = 4_096


REQUEST_S: Final = 0.004
WAITING_S: Final = 0.1
DRAIN_SHARE: Final = 0.7
"""Share of what a member can read, assumed to be worked off after a report."""
HOLD_BACK_DELAY_S: Final = 0.7
PEER_EXPIRY_S: Final = 10.0
LOAD_AVERAGE_S: Final = 30.0
HORIZON_MIN_S: Final = 5.0
HORIZON_MAX_S: Final = 86_400.0
READ_TOKENS_PER_S_MIN: Final = 2_000.0
READ_TOKENS_PER_S_MAX: Final = 200_000.0


class Candidate(NamedTuple):
    """Member with the tokens of the prompt that it probably holds, its delay and read rate."""

    name: str
    held: int
    delay_s: float
    rate: float


def delay_s(owed: float, in_flight: int, waiting: float, rate: float) -> float:
    return owed / rate + REQUEST_S * in_flight + WAITING_S * waiting


def drained(amount: float, seconds: float, per_s: float) -> float:
    """Return what is left of an amount reported `seconds` ago."""
    return max(0.0, amount - DRAIN_SHARE * per_s * max(0.0, seconds))


def unread(owed: float, prompts: int, seconds: float, rate: float) -> float:
    """Return how many of the `owed` tokens of `prompts` (at least one) are still to be read.

    `seconds` is the time since the last first token or the start of reading. The current prompt
    counts as one of mean length, so that a member that stands still keeps the prompts behind it.
    """
    return max(owed - owed / prompts, drained(owed, seconds, rate))


def cost_s(one: Candidate, prompt: int, least_delay_s: float, policy: RoutingPolicy) -> float:
    slack_s = (1 + policy.delay_slack_share) * least_delay_s
    uncached_s = (prompt - one.held) / one.rate
    return max(0.0, one.delay_s - slack_s) + policy.uncached_weight * uncached_s


def considered(candidates: Sequence[Candidate], prompt: int, random: Random) -> list[Candidate]:
    few = CACHE_CHOICES + RANDOM_CHOICES
    if len(candidates) <= few or max(one.held for one in candidates) >= WARM_SHARE * prompt:
        return list(candidates)
    holders = sorted((one for one in candidates if one.held), key=lambda one: -one.held)
    holders = holders[:CACHE_CHOICES]
    others = [one for one in candidates if one not in holders]
    return holders + random.sample(others, RANDOM_CHOICES)


def choose(
    candidates: Sequence[Candidate], prompt: int, policy: RoutingPolicy, random: Random
) -> Candidate:
    chosen_from = considered(candidates, prompt, random)
    least_s = min(one.delay_s for one in chosen_from)
    costs = [(cost_s(one, prompt, least_s, policy), one.delay_s) for one in chosen_from]
    best = min(costs)
    ties = [one for one, cost in zip(chosen_from, costs, strict=True) if cost == best]
    return ties[0] if len(ties) == 1 else random.choice(ties)


def choose_owner(
    candidates: Sequence[Candidate], owner: str, prompt: int, policy: RoutingPolicy, random: Random
) -> Candidate:
    """Return the candidate for a cold prompt, as if its owner held all of it."""
    least_s = min(one.delay_s for one in candidates)
    mine = next(one for one in candidates if one.name == owner)
    best = choose(candidates, prompt, policy, random)
    as_if = cost_s(mine._replace(held=prompt), prompt, least_s, policy)
    return mine if as_if <= cost_s(best, prompt, least_s, policy) else best


def hold_back(candidates: Sequence[Candidate], prompt: int, *, is_continued: bool) -> bool:
    is_warm = any(one.held >= WARM_SHARE * prompt for one in candidates)
    if is_continued or is_warm or not candidates:
        return False
    return median(one.delay_s for one in candidates) > HOLD_BACK_DELAY_S


RATE_TOKENS_MIN: Final = 512
"""The time for fewer tokens measures the network."""
RATES_MIN: Final = 8
"""With fewer observations a member that was busy would be believed to be slow."""
RATE_LIFETIME_S: Final = 600.0
"""A rate is dropped then, since a slow member gets no prompts that would correct it."""
RATE_STEP: Final = 0.08
RATE_QUANTILE: Final = 0.9
"""Most prompts look slow because of others."""
UNREPORTED_QUANTILE: Final = 0.75
"""Quantile of members that do not report cached tokens: an unforeseen hit makes them look fast."""
LEARN: Final = 0.3
"""Weight of an observation in the logarithm of the horizon."""
EXPECTED_MIN: Final = 1_024
"""Shorter hits say nothing of what a member keeps."""
LOST_MIN: Final = 2_048
LOST_AGE_S: Final = 60.0
LOSSES_MAX: Final = 2
"""After so many in a row without a hit the cache counts as lost."""
MISS: Final = 0.7
HIT: Final = 0.95


class LoadAverage:
    """Average load of this replica at a member, for other replicas.

    By the load of one moment all replicas would run to the same member.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._at: float | None = None
        self._in_flight = 0.0
        self._owed = 0.0

    def advance(self, now: float, in_flight: int, owed: int) -> None:
        if self._at is not None and now > self._at:
            share = -math.expm1((self._at - now) / self._window_s)
            self._in_flight += share * (in_flight - self._in_flight)
            self._owed += share * (owed - self._owed)
        self._at = now

    def rounded(self) -> tuple[int, int]:
        return round(self._in_flight), round(self._owed)


@dataclass(slots=True)
class PeerLoad:
    in_flight: int
    owed: int
    at: float


class MemberLoad:
    """Load of one member: `number` is its position in the index, `id` its id in rows and reports.

    Prefixes sent before `since` are not cached any more.
    """

    def __init__(self, name: str, number: int, id_: int, policy: RoutingPolicy) -> None:
        self.name = name
        self.number = number
        self.id = id_
        self.in_flight = 0
        self.owed = 0
        """Tokens of prompts without a first token yet."""
        self.since = -math.inf
        self.epoch = 0
        self.horizon_s = policy.horizon_s
        self.reports = False
        """True if it has ever reported cached tokens."""
        self.kv_tokens: int | None = None
        self.peers: dict[str, PeerLoad] = {}
        self.average = LoadAverage(LOAD_AVERAGE_S)
        self._rate: float | None = None
        self._rate_at = -math.inf
        self._rates: list[float] = []
        self._unread = 0
        self._read_at = -math.inf
        """Time of the last first token, or of the first prompt after a pause."""
        self._waiting = 0
        self._probed_at = -math.inf
        self._losses = 0

    def rate_at(self, now: float) -> float | None:
        # Tokens a second; None while the last measurement is too old.
        return self._rate if now - self._rate_at <= RATE_LIFETIME_S else None

    def add(self, now: float, in_flight: int, owed: int) -> None:
        self.average.advance(now, self.in_flight, self.owed)
        if owed > 0:
            if not self._unread:
                self._read_at = now
            self._unread += 1
        elif owed:
            self._unread -= 1
            self._read_at = now
        self.in_flight += in_flight
        self.owed += owed

    def averages(self, now: float) -> tuple[int, int]:
        self.average.advance(now, self.in_flight, self.owed)
        return self.average.rounded()

    def delay_s(self, rate: float, now: float) -> float:
        owed, in_flight = float(self.owed), self.in_flight
        if self._unread:
            owed = unread(owed, self._unread, now - self._read_at, rate)
        for peer in self.peers.values():
            if now - peer.at <= PEER_EXPIRY_S:
                owed += peer.owed
                in_flight += peer.in_flight
        waiting = 0.0
        if self._waiting:
            seconds = now - self._probed_at
            waiting = drained(self._waiting, seconds, 1 / WAITING_S)
        return delay_s(owed, in_flight, waiting, rate)

    def note_waiting(self, waiting: int, now: float) -> None:
        self._waiting, self._probed_at = waiting, now

    def note_prefill(self, tokens: int, seconds: float, now: float) -> None:
        """Learn the read rate from the time to first token of a prompt that no other delayed."""
        if tokens < RATE_TOKENS_MIN or seconds <= 0:
            return
        least, most = READ_TOKENS_PER_S_MIN, READ_TOKENS_PER_S_MAX
        seen = min(max(tokens / seconds, least), most)
        quantile = RATE_QUANTILE if self.reports else UNREPORTED_QUANTILE
        if (rate := self.rate_at(now)) is not None:
            step = quantile if seen > rate else quantile - 1
            self._rate, self._rate_at = min(max(rate * (1 + RATE_STEP * step), least), most), now
            return
        self._rates.append(seen)
        if len(self._rates) == RATES_MIN:
            self._rate, self._rate_at = sorted(self._rates)[int(quantile * RATES_MIN)], now
            self._rates.clear()

    def note_start(self, epoch: int, age_s: float, now: float) -> bool:
        """Note the start of its process (unix seconds); returns True if it is another one."""
        if abs(epoch - self.epoch) <= 1:
            return False
        self.epoch = epoch
        # Its clock may be ahead of this one: what it is sent from now on counts all the same.
        since, self.since = self.since, max(self.since, now - max(0.0, age_s))
        return self.since > since and since != -math.inf

    def forget_cache(self, now: float) -> None:
        self.since, self._losses = now, 0

    def note_cached(self, expected: int, cached: int, age_s: float, now: float) -> bool:
        """Note how many tokens were in its cache; returns True if its cache must be lost.

        The `expected` ones were last used `age_s` ago.
        """
        self.reports = self.reports or cached > 0
        if not self.reports or expected <= EXPECTED_MIN:
            return False
        if cached == 0 and expected > LOST_MIN and age_s < LOST_AGE_S:
            self._losses += 1
            if self._losses >= LOSSES_MAX:
                self.forget_cache(now)
                return True
        elif cached:
            self._losses = 0
        self._learn_horizon(cached / expected, age_s)
        return False

    def _learn_horizon(self, share: float, age_s: float) -> None:
        is_shorter = share < MISS and age_s < self.horizon_s
        if is_shorter or (share >= HIT and age_s > self.horizon_s):
            moved = LEARN * (math.log(max(age_s, 0.1)) - math.log(self.horizon_s))
            horizon_s = self.horizon_s * math.exp(moved)
            self.horizon_s = min(max(horizon_s, HORIZON_MIN_S), HORIZON_MAX_S)
