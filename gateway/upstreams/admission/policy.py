"""The numbers of admission, and the classes of requests."""

from __future__ import annotations

from dataclasses import dataclass
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
    """Return the class of a request with a `TokenRequest.priority`.

    A background request goes one class below its tier; flex is the lowest.
    """
    if not priority:  # as nearly always
        return WorkClass.BACKGROUND if is_background else WorkClass.DEFAULT
    rank = WorkClass.DEFAULT - priority + is_background
    return WorkClass(min(max(rank, WorkClass.PRIORITY), WorkClass.BACKGROUND))


SLOTS_START: Final = 16
SLOTS_MIN: Final = 4
BACKGROUND_PROMOTION_S: Final = 300.0
"""After which what waits in the lowest class goes one class up, here as in the database."""


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """Every number of admission.

    A backend is sent `slots_start` requests at once, in the beginning, and between `slots_min` and
    `slots_max` later. A first token is late that takes longer than `first_token_target_s`, and what
    it takes to read the prompt at `read_tokens_per_s`. Where more than `late_share` of them are
    late, the slots become `shrink_share` of what they were.

    Work of the background takes up to `background_share` of the slots. In the queue are
    `queue_length_max` requests at most; responses in background that were accepted come on top,
    of which no more are claimed than there is room for, and a few. What waited `wait_max_s` is
    refused (`background_wait_max_s` in background), and what waited `promotion_s` goes one class up
    (in the lowest class `background_promotion_s`). The longer somebody has been waiting all the
    time, the sooner must be the turn of who comes in: within what is left of `wait_max_s` since
    then, or `overload_wait_max_s`.
    """

    slots_start: int = SLOTS_START
    slots_min: int = SLOTS_MIN
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
