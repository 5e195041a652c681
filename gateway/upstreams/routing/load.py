"""The load of one member, as this replica knows it: what it sent there, what other replicas sent,
what the member reports; and what was learned of its speed and its cache.

All times are seconds of a clock that never goes back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.upstreams.routing.policy import delay_s, drained, unread

if TYPE_CHECKING:
    from gateway.upstreams.routing.policy import RoutingPolicy

RATE_TOKENS_MIN: Final = 512
"""The time for fewer tokens of a prompt tells more of the network than of the member."""
RATES_MIN: Final = 8
"""Observations until a rate counts as known. Where few are enough, a member that happened to be
busy is believed to be slow, and is chosen no more until `RATE_KNOWN_S` have passed."""
RATE_KNOWN_S: Final = 600.0
"""A rate is unknown again this long after the last observation, and learned anew: a member that was
slow for a while is sent no prompts that would show that it is not any more."""
RATE_STEP: Final = 0.08
RATE_QUANTILE: Final = 0.9
"""What makes a prompt look slower than it was read is the rule: others have sent prompts, too. So
the rate is near the best that is seen."""
UNREPORTED_QUANTILE: Final = 0.75
"""The same of a member that does not report what it had cached: a hit that was not foreseen makes
it look fast."""
LEARN: Final = 0.3
"""How far what is seen moves what is believed of the horizon."""
EXPECTED_MIN: Final = 1_024
"""Hits below that say nothing of what a member keeps."""
LOST_MIN: Final = 2_048
LOST_AGE_S: Final = 60.0
LOSSES_MAX: Final = 2
"""After this many requests in a row that find nothing of what was used a minute ago the cache is
taken to be lost."""
MISS: Final = 0.7
HIT: Final = 0.95


class LoadAverage:
    """Average load of this replica at a member in the last seconds, for other replicas.

    A member reads a prompt in less time than a report takes, so the load of one moment says nothing
    of the next one, and replicas that went by it would all run to the same member.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._at: float | None = None
        self._in_flight = 0.0
        self._owed = 0.0

    def advance(self, now: float, in_flight: int, owed: int) -> None:
        """Add to the average the values that held until `now`."""
        if self._at is not None and now > self._at:
            share = -math.expm1((self._at - now) / self._window_s)
            self._in_flight += share * (in_flight - self._in_flight)
            self._owed += share * (owed - self._owed)
        self._at = now

    def rounded(self) -> tuple[int, int]:
        return round(self._in_flight), round(self._owed)


@dataclass(slots=True)
class PeerLoad:
    """Another replica's average load at a member, as reported at the time `at`."""

    in_flight: int
    owed: int
    at: float


class MemberLoad:
    """One member: `number` is its place in the index, `id` what rows and replicas call it.

    `since` is from when on its cache counts: what was sent there before is gone. `epoch` is when
    its process began, in unix seconds (0: it does not say).
    """

    def __init__(self, name: str, number: int, id_: int, policy: RoutingPolicy) -> None:
        self.name = name
        self.number = number
        self.id = id_
        self.in_flight = 0
        self.owed = 0
        """Tokens it was sent that it has to read, of prompts whose first token has not come."""
        self.since = -math.inf
        self.epoch = 0
        self.horizon_s = policy.horizon_s
        self.reports = False
        """It has said of a prompt that it had some of it."""
        self.kv_tokens: int | None = None
        self.peers: dict[str, PeerLoad] = {}
        self.average = LoadAverage(policy.load_average_s)
        self._policy = policy
        self._rate: float | None = None
        self._rate_at = -math.inf
        self._rates: list[float] = []
        """The first ones that were seen."""
        self._unread = 0
        """Prompts whose first token has not come."""
        self._read_at = -math.inf
        """When the last one came of those before, or the first prompt after a pause."""
        self._waiting = 0
        self._probed_at = -math.inf
        self._losses = 0

    def rate_at(self, now: float) -> float | None:
        # Tokens a second; None while the last measurement is too old.
        return self._rate if now - self._rate_at <= RATE_KNOWN_S else None

    def add(self, now: float, in_flight: int, owed: int) -> None:
        """Add to requests in flight and tokens owed.

        Values are positive when a prompt is sent, negative when it was read or its request has
        ended.
        """
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
        """Return the average requests in flight and tokens owed, for other replicas."""
        self.average.advance(now, self.in_flight, self.owed)
        return self.average.rounded()

    def delay_s(self, rate: float, now: float) -> float:
        """Return the seconds until the member begins to read a new prompt.

        `rate` is the tokens that it reads a second.
        """
        policy = self._policy
        owed, in_flight = float(self.owed), self.in_flight
        if self._unread:
            owed = unread(owed, self._unread, now - self._read_at, rate, policy)
        for peer in self.peers.values():
            if now - peer.at <= policy.peer_expiry_s:
                owed += peer.owed
                in_flight += peer.in_flight
        waiting = 0.0
        if self._waiting:
            seconds = now - self._probed_at
            waiting = drained(self._waiting, seconds, 1 / policy.waiting_s, policy)
        return delay_s(owed, in_flight, waiting, rate, policy)

    def note_waiting(self, waiting: int, now: float) -> None:
        self._waiting, self._probed_at = waiting, now

    def note_prefill(self, tokens: int, seconds: float, now: float) -> None:
        """Learn the read rate from one prompt: `tokens` took `seconds` up to the first token.

        The member must have had no other prompt of this replica to read.
        """
        if tokens < RATE_TOKENS_MIN or seconds <= 0:
            return
        policy = self._policy
        least, most = policy.read_tokens_per_s_min, policy.read_tokens_per_s_max
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
        """Note that its process reports that it started at `epoch` (unix seconds), `age_s` ago.

        Returns True if it is another process than before.
        """
        if abs(epoch - self.epoch) <= 1:
            return False
        self.epoch = epoch
        # Its clock may be ahead of this one: what it is sent from now on counts all the same.
        since, self.since = self.since, max(self.since, now - max(0.0, age_s))
        return self.since > since and since != -math.inf

    def forget_cache(self, now: float) -> None:
        self.since, self._losses = now, 0

    def note_cached(self, expected: int, cached: int, age_s: float, now: float) -> bool:
        """Note that `cached` tokens of a prompt were in its cache, of `expected` ones.

        `age_s` is how long ago these were last used. Returns True if its cache must have been lost.
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
            policy = self._policy
            horizon_s = self.horizon_s * math.exp(moved)
            self.horizon_s = min(max(horizon_s, policy.horizon_min_s), policy.horizon_max_s)
