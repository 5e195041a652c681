"""When a backend is left alone, and when it is tried again. Times are seconds, and given."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_DOUBLINGS_MAX = 30


@dataclass(frozen=True, slots=True)
class EjectionPolicy:
    """`failures_max` in a row eject a backend for `backoff_s`, doubled each time it fails again."""

    failures_max: int = 3
    backoff_s: float = 1.0
    backoff_max_s: float = 30.0


class Health:
    """What requests and polls have shown of one backend.

    Failures in a row eject it. When the back-off is over, one request is its trial: an answer lets
    it back, a failure ejects it for longer. The count of failures starts again only with a stream
    that ended well, so a backend that answers and then breaks off is soon ejected anew. Polls are a
    second, separate verdict: they can take a backend out and back, but a good one proves nothing
    about generating (a hung engine still answers), so it does not end an ejection.
    """

    def __init__(self, policy: EjectionPolicy) -> None:
        self.failures = 0
        self._policy = policy
        self._ejections = 0
        self._ejected_until: float | None = None
        self._on_trial = False
        self._polls_failed = 0
        self._unanswered: deque[float] = deque(maxlen=policy.failures_max)

    @property
    def reachable(self) -> bool:
        """Polls say that something is there."""
        return self._polls_failed < self._policy.failures_max

    @property
    def in_doubt(self) -> bool:
        """The last poll went wrong: whether something is there will be known soon."""
        return self._polls_failed > 0

    @property
    def mute_since(self) -> float | None:
        """When the first of so many polls was asked that it would take to eject it, of which none
        was answered; None where one of them was.
        """
        return self._unanswered[0] if len(self._unanswered) == self._policy.failures_max else None

    def ejected_for(self, now: float) -> float:
        """Seconds until the trial; 0 when there is nothing to wait for."""
        return max(0.0, self._ejected_until - now) if self._ejected_until is not None else 0.0

    @property
    def healthy(self) -> bool:
        """Neither ejected nor unreachable."""
        return self.reachable and self._ejected_until is None

    def available(self, now: float) -> bool:
        """Healthy, or due for its trial."""
        if self._polls_failed >= self._policy.failures_max:
            return False
        if self._ejected_until is None:
            return True
        return now >= self._ejected_until and not self._on_trial

    def begin_trial(self, now: float) -> bool:
        """A request is on its way; True if it is the trial, which `end_trial` must end."""
        if self._ejected_until is None or self._on_trial or now < self._ejected_until:
            return False
        self._on_trial = True
        return True

    def end_trial(self) -> None:
        """The trial is over; without a verdict (the caller went away) the next request is it."""
        self._on_trial = False

    def answered(self) -> bool:
        """It generates; True if it was ejected until now."""
        was_ejected, self._ejected_until = self._ejected_until is not None, None
        return was_ejected

    def completed(self) -> None:
        """A stream ended well."""
        self._ejected_until = None
        self.failures = 0
        self._ejections = 0

    def failed(self, now: float) -> None:
        """A request failed. Those that were under way when it was ejected do not count twice."""
        self.failures += 1
        if self._ejected_until is not None and now < self._ejected_until:
            return
        if self.failures >= self._policy.failures_max or self._ejected_until is not None:
            backoff_s = self._policy.backoff_s * 2.0 ** min(self._ejections, _DOUBLINGS_MAX)
            self._ejected_until = now + min(backoff_s, self._policy.backoff_max_s)
            self._ejections += 1

    def polled(self, *, alive: bool, unanswered_since: float | None = None) -> None:
        """The outcome of one poll; if it got no answer at all, when it was asked."""
        self._polls_failed = 0 if alive else self._polls_failed + 1
        if unanswered_since is None:
            self._unanswered.clear()
        else:
            self._unanswered.append(unanswered_since)
