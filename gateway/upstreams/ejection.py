"""When a backend that fails is left out, and when it is tried again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gateway.upstreams.probe import LATE, CheckOutcome

_DOUBLINGS_MAX = 30


@dataclass(frozen=True, slots=True)
class EjectionPolicy:
    """`failures_max` in a row eject a backend for `backoff_s`, doubled each time it fails again."""

    failures_max: int = 3
    backoff_s: float = 1.0
    backoff_max_s: float = 30.0


class Health:
    """Health of one backend, by its requests and polls.

    Failures in a row eject it. After the back-off one request is its trial: an answer lets it back,
    a failure ejects it for longer. Only a stream that ended well resets the count. A good poll does
    not end an ejection (a hung engine still answers), but after the back-off makes the backend
    healthy: a gateway without healthy backends gets no request that could be the trial.

    On a starved machine answers are late, and requests are served: a backend that is only late is
    used if there is no better one.
    """

    def __init__(self, policy: EjectionPolicy) -> None:
        self.failures = 0
        self._policy = policy
        self._ejections = 0
        self._ejected_until: float | None = None
        self._trials = 0
        self._trial = 0
        """Number of the request; 0: none is."""
        self._awaits_trial = False
        self._polls_failed = 0
        self._polls_late = 0
        self._unanswered: deque[float] = deque(maxlen=policy.failures_max)

    @property
    def reachable(self) -> bool:
        return self._polls_failed < self._policy.failures_max

    @property
    def is_late(self) -> bool:
        # Unreachable for no other reason than that the last polls got no answer in time.
        return self._polls_late >= self._policy.failures_max and not self.is_ejected

    @property
    def in_doubt(self) -> bool:
        return self._polls_failed > 0

    @property
    def mute_since(self) -> float | None:
        # None unless each of the last `failures_max` polls was unanswered.
        return self._unanswered[0] if len(self._unanswered) == self._policy.failures_max else None

    @property
    def is_ejected(self) -> bool:
        return self._ejected_until is not None and not self._awaits_trial

    @property
    def healthy(self) -> bool:
        return self.reachable and not self.is_ejected

    def available(self, now: float) -> bool:
        if self._polls_failed >= self._policy.failures_max:
            return False
        if self._ejected_until is None:
            return True
        return now >= self._ejected_until and not self._trial

    def begin_trial(self, now: float) -> int:
        """Return the number of the trial for `end_trial`; 0 if the request is none."""
        if self._ejected_until is None or self._trial or now < self._ejected_until:
            return 0
        self._trials += 1
        self._trial = self._trials
        return self._trial

    def end_trial(self, number: int) -> None:
        # Without a verdict (the client disconnected) the next request is the trial.
        if self._trial == number:
            self._trial = 0

    def answered(self) -> bool:
        """Note that the backend works; returns True if it was ejected until now."""
        was_ejected = self._ejected_until is not None
        self._end_ejection()
        return was_ejected

    def completed(self) -> None:
        self._end_ejection()
        self.failures = 0
        self._ejections = 0

    def _end_ejection(self) -> None:
        # The stream of a trial may go on for long: if it is ejected again, another is the trial.
        self._ejected_until = None
        self._trial = 0

    def failed(self, now: float) -> None:
        """Note a failed request; those sent before an ejection do not count twice."""
        self.failures += 1
        if self._ejected_until is not None and now < self._ejected_until:
            return
        if self.failures >= self._policy.failures_max or self._ejected_until is not None:
            backoff_s = self._policy.backoff_s * 2.0 ** min(self._ejections, _DOUBLINGS_MAX)
            self._ejected_until = now + min(backoff_s, self._policy.backoff_max_s)
            self._awaits_trial = False
            self._ejections += 1

    def polled(self, outcome: CheckOutcome, *, began_at: float) -> None:
        alive = outcome is CheckOutcome.WELL
        self._polls_failed = 0 if alive else self._polls_failed + 1
        self._polls_late = self._polls_late + 1 if outcome in LATE else 0
        if alive and self._ejected_until is not None and began_at >= self._ejected_until:
            self._awaits_trial = True
        if outcome is CheckOutcome.MUTE:
            self._unanswered.append(began_at)
        else:
            self._unanswered.clear()
