"""How many requests a backend is sent at once, learned from how soon it begins to answer them.

The bound of a backend goes up a little after some first tokens on time, and down by a share after
some late ones (AIMD): a server that lets requests wait begins late, whatever it says of itself.
Where more have not begun by then than have, most wait there, and half of the bound goes. It starts
low, and until it goes down for the first time it doubles (slow start): a backend of which nothing
is known must not get a queue that lasts for longer than it takes to learn of it. What a backend
reports of its queue is more exact: as much of the bound goes as waits there. One that says how many
it runs at once is sent no more than these, and few to wait.

Only requests that were sent while the bound was nearly used tell anything of it. After each change
those count that were sent later: it takes as long as a first token until a change shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.upstreams.admission.policy import WorkClass

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from gateway.upstreams.admission.policy import AdmissionPolicy

FULL_SHARE: Final = 0.9
"""Of the bound. First tokens of requests that were sent when so much was used let it grow."""
BUSY_SHARE: Final = 0.5
"""Late ones below that have another cause than too many requests."""
ROUND: Final = 8
"""First tokens on time for each step up."""
FAST_ROUND: Final = 4
"""The same, as long as the bound has not gone down."""
FAST_GROWTH: Final = 2.0
FAST_SHARE: Final = 0.75
"""As `FULL_SHARE`, as long as the bound has not gone down. It is below the saturation at which an
autoscaler adds backends (docs/operate.md): a bound that nobody has reached yet must not do that."""
WAITING_FREE_SHARE: Final = 0.02
"""Of those that run. So few may wait at a backend: it must find somebody when one ends."""
BEYOND_SHARE: Final = 0.125
"""Of the bound. So many more are sent, of tenants of which nothing runs: the streams of others that
have all slots may last for minutes."""
SOONER_ALPHA: Final = 0.3
LATER_ALPHA: Final = 0.05
CROWDED_ALPHA: Final = 0.001
"""Weights of the latest first token among those that the next is expected from, where it came
sooner or later than these, and where it came later while much of the bound was used: what waits at
a backend is late, and that must not become usual."""
OVERDUE_FACTOR: Final = 4.0
OVERDUE_MIN_S: Final = 0.1
"""A first token is overdue that takes so many times as long as usual, and so long at least."""
CAUTION_FACTOR: Final = 4
CAUTION_MAX: Final = 16
"""After one that was overdue, so many times as many on time for a step up: whoever has no slots
must not wait again soon to find out that there is no room. Again so many more after the next."""
CALM_GROWTH: Final = 1.25
"""Times the bound that it was shrunk to: it has become another backend, and caution is over."""
HALF: Final = 0.5
"""Nothing takes more than that at once: it is of a moment, and of what others sent, too."""
REPORTS_MIN: Final = 2
"""Reports in a row of a queue. One alone may be a burst that is being read."""


class MemberSlots:
    """The slots of one backend: it is sent `bound` requests at once, `background_bound` of them
    work of the background (one at least, or there would be none).

    `in_flight` are those taken, `begun` how many of them had their first token, `background` how
    many are work of the background, `beyond` how many were sent though there was no room. It may be
    more than `bound`: what goes on with a response does not wait.
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

    def _set(self, bound: float) -> None:
        self._exact = bound = min(bound, self._most)
        self.bound = int(bound)
        self.background_bound = max(1, int(bound * self._policy.background_share))

    def has_room(self, work: WorkClass) -> bool:
        """Whether one more request of that class may be sent."""
        if self.in_flight >= self.bound:
            return False
        return work is not WorkClass.BACKGROUND or self.background < self.background_bound

    @property
    def has_spare(self) -> bool:
        """Whether one more may be sent beyond the bound, of a tenant of which nothing runs."""
        return self.beyond < max(1, int(self.bound * BEYOND_SHARE))

    @property
    def background_room(self) -> int:
        """How many more requests of the background may be sent."""
        return max(0, min(self.bound - self.in_flight, self.background_bound - self.background))

    def take(self, work: WorkClass, prompt: int, *, is_beyond: bool = False) -> Slot:
        """Send a request with a prompt of so many tokens, whether there is room or not;
        `is_beyond`: there was none (`has_spare`).
        """
        self.in_flight += 1
        self.beyond += is_beyond
        is_background = work is WorkClass.BACKGROUND
        self.background += is_background
        used = self.in_flight / self.bound
        if is_background:
            # Where there is no other work, its share is all that is ever used.
            used = max(used, self.background / self.background_bound)
        return Slot(self, self._round, used, prompt, is_background, is_beyond)

    def answered(self, slot: Slot, seconds: float) -> None:
        """The first token of a request came so many seconds after it was sent."""
        self._learn_usual(slot, seconds)
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
        """It says that it is busy, and did not take the request."""
        if slot.round == self._round:
            self._shrink(self._exact * self._policy.shrink_share)

    def _learn_usual(self, slot: Slot, seconds: float) -> None:
        usual_s = seconds if self._usual_s is None else self._usual_s
        alpha = SOONER_ALPHA
        if seconds >= usual_s:
            alpha = LATER_ALPHA if slot.used < BUSY_SHARE else CROWDED_ALPHA
        self._usual_s = usual_s + alpha * (seconds - usual_s)

    def overdue_s(self, prompt: int) -> float | None:
        """In how many seconds the first token for a prompt of so many tokens is overdue: it seems
        to wait at the backend. None where it is not known what is usual, or there is so much room
        that nothing should wait.
        """
        if self._usual_s is None or self.in_flight < FULL_SHARE * self.bound:
            return None
        read_s = prompt / self._policy.read_tokens_per_s
        return max(OVERDUE_MIN_S, OVERDUE_FACTOR * self._usual_s) + read_s

    def overdue(self, slot: Slot) -> None:
        """It was. About as many as have begun are what the backend does at once."""
        if slot.round == self._round:
            share = self._exact * self._policy.shrink_share
            self._shrink(min(share, max(self.begun, self._exact * HALF)))
            self._caution = min(CAUTION_MAX, self._caution * CAUTION_FACTOR)
            self._calm_at = self._exact * CALM_GROWTH

    def reported(self, waiting: int | None, running: int | None, places: int | None = None) -> None:
        """What it says of its queue, and of how many it runs at once. None: it does not say."""
        if places is not None:
            self._clamp(places)
        if waiting is None or waiting <= max(1, WAITING_FREE_SHARE * (running or 0)):
            self._queued_reports = 0
            return
        self._queued_reports += 1
        if self._queued_reports < REPORTS_MIN:
            return
        if running:
            # As much of what this process sent waits there as of what all did.
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


class Slot:
    """The place of one request at a backend, from when it is sent until it has ended.

    `used` is which share of the bound of its class was in use then, this one among it. A context,
    which gives it back; `release` may be called again.
    """

    __slots__ = (
        "_is_background", "_is_beyond", "_is_held", "_slots", "has_begun", "prompt", "round",
        "used",
    )  # fmt: skip

    def __init__(
        self,
        slots: MemberSlots,
        round_: int,
        used: float,
        prompt: int,
        is_background: bool,  # noqa: FBT001 - made for each request, and nowhere else
        is_beyond: bool,  # noqa: FBT001
    ) -> None:
        self.round = round_
        self.used = used
        self.prompt = prompt
        self._slots = slots
        self._is_background = is_background
        self._is_beyond = is_beyond
        self._is_held = True
        self.has_begun = False

    def first(self, seconds: float) -> None:
        """The first token came, so many seconds after the request was sent. Called once."""
        self.has_begun = True
        self._slots.begun += 1
        self._slots.answered(self, seconds)

    def refused(self) -> None:
        """The backend is too busy to take the request."""
        self._slots.refused(self)

    def overdue(self) -> None:
        """The first token should have come, if nothing waited at the backend."""
        self._slots.overdue(self)

    def release(self) -> None:
        """The request has ended, whatever became of it."""
        if self._is_held:
            self._is_held = False
            self._slots.in_flight -= 1
            self._slots.begun -= self.has_begun
            self._slots.background -= self._is_background
            self._slots.beyond -= self._is_beyond

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
