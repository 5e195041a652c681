"""How many requests a backend is sent at once, learned from times to first token (AIMD).

The bound grows by one after first tokens on time and shrinks by a share after late ones. It doubles
until it shrinks for the first time (slow start): an unknown backend must not get a queue that takes
longer to drain than to discover. Only requests that were sent while the bound was nearly used
count, and after its last change, which shows no earlier than a first token later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final


class WorkClass(IntEnum):
    """Class of a request: a lower value is served first."""

    PRIORITY = 0
    DEFAULT = 1
    BACKGROUND = 2

    @property
    def label(self) -> str:
        # The name in metrics and in `/readyz`.
        return self.name.lower()


def class_of(priority: int, *, is_background: bool) -> WorkClass:
    """Return the class of a `TokenRequest.priority`."""
    if not priority:  # as nearly always
        return WorkClass.BACKGROUND if is_background else WorkClass.DEFAULT
    rank = WorkClass.DEFAULT - priority + is_background
    return WorkClass(min(max(rank, WorkClass.PRIORITY), WorkClass.BACKGROUND))


BACKGROUND_PROMOTION_S: Final = 300.0
"""After this the lowest class goes one class up, here as in the database."""


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """Numbers of admission.

    A first token is late after `first_token_target_s` and the time to read the prompt. While a
    queue lasts, the wait that is allowed shrinks from `wait_max_s` to `overload_wait_max_s`.
    """

    slots_start: int = 16
    slots_min: int = 4
    slots_max: int = 16_384
    first_token_target_s: float = 2.0
    read_tokens_per_s: float = 2_000.0
    late_share: float = 0.05
    shrink_share: float = 0.9
    background_share: float = 0.8
    queue_length_max: int = 1_000
    wait_max_s: float = 3.0
    overload_wait_max_s: float = 1.0
    background_wait_max_s: float = 600.0
    promotion_s: float = 30.0
    background_promotion_s: float = BACKGROUND_PROMOTION_S

    def promotion_of(self, work: WorkClass) -> float:
        return self.background_promotion_s if work is WorkClass.BACKGROUND else self.promotion_s

    def target_s(self, prompt: int) -> float:
        return self.first_token_target_s + prompt / self.read_tokens_per_s


FULL_SHARE: Final = 0.9
"""Share in use from which first tokens let the bound grow."""
BUSY_SHARE: Final = 0.5
"""With less in use, a late first token has another cause."""
ROUND: Final = 8
"""First tokens on time that raise the bound by one step."""
FAST_ROUND: Final = 4
FAST_GROWTH: Final = 2.0
FAST_SHARE: Final = 0.75
"""`FULL_SHARE` during slow start, below the saturation at which an autoscaler adds backends
(docs/operate.md): a bound that was never reached must not add any."""
WAITING_FREE_SHARE: Final = 0.02
"""Share of running requests that may be queued at the backend."""
BEYOND_SHARE: Final = 0.125
"""Beyond the bound, for tenants that have nothing running: streams may take minutes."""
SOONER_ALPHA: Final = 0.3
LATER_ALPHA: Final = 0.05
CROWDED_ALPHA: Final = 0.001
"""Weights of the latest time to first token in its average: if sooner, later, and later while much
was in use, since queueing must not become usual."""
OVERDUE_FACTOR: Final = 4.0
OVERDUE_MIN_S: Final = 0.1
CAUTION_FACTOR: Final = 4
CAUTION_MAX: Final = 16
"""Bound of the multiple of `ROUND`: trying again soon would make tenants without slots wait
again."""
CALM_GROWTH: Final = 1.25
"""Growth of the bound that ends the caution."""
HALF: Final = 0.5
"""The least that one observation leaves of the bound: it may be others' load."""
REPORTS_MIN: Final = 2
"""Reports in a row before the bound shrinks: one may be a burst."""


class MemberSlots:
    """Slots of one backend. `begun` have had their first token, `beyond` had no free slot.

    `in_flight` may exceed `bound`: requests that continue a response do not wait.
    """

    __slots__ = (
        "_calm_at", "_caution", "_exact", "_has_shrunk", "_late", "_most", "_on_time", "_policy",
        "_queued_reports", "_round", "_seen", "_usual_s", "background", "background_bound", "begun",
        "beyond", "bound", "in_flight", "name",
    )  # fmt: skip

    def __init__(self, name: str, policy: AdmissionPolicy) -> None:
        self.name = name
        self.in_flight = 0
        self.begun = 0
        self.background = 0
        self.beyond = 0
        self._policy = policy
        self._has_shrunk = False
        self._caution = 1
        self._calm_at = 0.0
        self._usual_s: float | None = None
        self._queued_reports = 0
        self._round = 0
        self._seen = self._on_time = self._late = 0
        self._most = policy.slots_max
        self._set(max(policy.slots_start, policy.slots_min))

    def follow(self, policy: AdmissionPolicy) -> None:
        # Reported slots of the backend count again from its next report on.
        self._policy = policy
        self._most = policy.slots_max
        self._set(self._exact)

    def _set(self, bound: float) -> None:
        self._exact = bound = min(bound, self._most)
        self.bound = int(bound)
        self.background_bound = max(1, int(bound * self._policy.background_share))

    def has_room(self, work: WorkClass) -> bool:
        if self.in_flight >= self.bound:
            return False
        return work is not WorkClass.BACKGROUND or self.background < self.background_bound

    @property
    def has_spare(self) -> bool:
        # The extra slots are for tenants that have nothing running.
        return self.beyond < max(1, int(self.bound * BEYOND_SHARE))

    @property
    def background_room(self) -> int:
        return max(0, min(self.bound - self.in_flight, self.background_bound - self.background))

    def take(self, work: WorkClass, prompt: int, *, is_extra: bool = False) -> Slot:
        """Take a slot, even if none is free; `is_extra`: `has_spare` allowed one more."""
        self.in_flight += 1
        self.beyond += is_extra
        is_background = work is WorkClass.BACKGROUND
        self.background += is_background
        used = self.in_flight / self.bound
        if is_background:
            # Without other work, no more than its share is ever used.
            used = max(used, self.background / self.background_bound)
        return Slot(self, self._round, used, prompt, is_background, is_extra)

    def answered(self, slot: Slot, seconds: float) -> None:
        usual_s = seconds if self._usual_s is None else self._usual_s
        alpha = SOONER_ALPHA
        if seconds >= usual_s:
            alpha = LATER_ALPHA if slot.used < BUSY_SHARE else CROWDED_ALPHA
        self._usual_s = usual_s + alpha * (seconds - usual_s)
        if slot.round != self._round or slot.used < BUSY_SHARE:
            return
        self._seen += 1
        if seconds > self._policy.target_s(slot.prompt):
            self._late += 1
            if self._late > max(1, self._policy.late_share * self._seen):
                has_most_waiting = self.in_flight > 2 * self.begun
                share = HALF if has_most_waiting else self._policy.shrink_share
                self._shrink(self._exact * share)
            return
        self._on_time += slot.used >= (FULL_SHARE if self._has_shrunk else FAST_SHARE)
        if self._on_time >= (ROUND * self._caution if self._has_shrunk else FAST_ROUND):
            self._grow()

    def refused(self, slot: Slot) -> None:
        if slot.round == self._round:
            self._shrink(self._exact * self._policy.shrink_share)

    def overdue_s(self, prompt: int) -> float | None:
        """Return after how long without a first token a request must be queued at the backend.

        None while that cannot be told from the usual time.
        """
        if self._usual_s is None or self.in_flight < FULL_SHARE * self.bound:
            return None
        read_s = prompt / self._policy.read_tokens_per_s
        return max(OVERDUE_MIN_S, OVERDUE_FACTOR * self._usual_s) + read_s

    def overdue(self, slot: Slot) -> None:
        # An overdue first token means that the backend runs about as many requests as have begun.
        if slot.round == self._round:
            share = self._exact * self._policy.shrink_share
            self._shrink(min(share, max(self.begun, self._exact * HALF)))
            self._caution = min(CAUTION_MAX, self._caution * CAUTION_FACTOR)
            self._calm_at = self._exact * CALM_GROWTH

    def reported(self, waiting: int | None, running: int | None, places: int | None = None) -> None:
        if places is not None:
            self._clamp(places)
        if waiting is None or waiting <= max(1, WAITING_FREE_SHARE * (running or 0)):
            self._queued_reports = 0
            return
        self._queued_reports += 1
        if self._queued_reports < REPORTS_MIN:
            return
        if running:
            # The share of waiting requests is assumed to be the same for all gateways.
            begun = self.in_flight * running / (running + waiting)
            bound = max(begun + max(1, WAITING_FREE_SHARE * begun), self._exact * HALF)
            self._shrink(min(self._exact, bound))
        else:
            self._shrink(self._exact * self._policy.shrink_share)

    def _clamp(self, places: int) -> None:
        policy = self._policy
        most = places + int(max(1, WAITING_FREE_SHARE * places))
        most = min(max(most, policy.slots_min), policy.slots_max)
        if most != self._most:
            self._most = most
            self._set(self._exact)

    def _shrink(self, bound: float) -> None:
        self._set(max(bound, self._policy.slots_min))
        self._has_shrunk = True
        self._begin_round()

    def _grow(self) -> None:
        if not self._queued_reports:
            self._set(self._exact + 1 if self._has_shrunk else self._exact * FAST_GROWTH)
            if self._exact >= self._calm_at:
                self._caution = 1
        self._begin_round()

    def _begin_round(self) -> None:
        self._round += 1
        self._seen = self._on_time = self._late = 0


@dataclass(slots=True, eq=False)
class Slot:
    """Slot of one request; `used` is the share of its class's bound then in use."""

    slots: MemberSlots
    round: int
    used: float
    prompt: int
    is_background: bool
    is_extra: bool
    has_begun: bool = field(default=False, init=False)
    _is_held: bool = field(default=True, init=False)

    def first(self, seconds: float) -> None:
        # Called once, `seconds` after the request was sent.
        self.has_begun = True
        self.slots.begun += 1
        self.slots.answered(self, seconds)

    def refused(self) -> None:
        self.slots.refused(self)

    def overdue(self) -> None:
        self.slots.overdue(self)

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            self.slots.in_flight -= 1
            self.slots.begun -= self.has_begun
            self.slots.background -= self.is_background
            self.slots.beyond -= self.is_extra
