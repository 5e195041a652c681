"""The faults of a request: those of its own directives, else those of the instance's plan."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.simulator.directives import Directives, Faults, Malformed

if TYPE_CHECKING:
    from collections.abc import Sequence

_NO_FAULTS = Faults()
_WELL_FORMED = Malformed()


class Attempts:
    """Counter of the requests of each prompt. Instances that share one count together."""

    def __init__(self, prompts_max: int) -> None:
        self._prompts_max = prompts_max
        self._counts: OrderedDict[str, int] = OrderedDict()

    def count(self, prompt: str) -> int:
        """Count the requests of this prompt, this one included."""
        number = self._counts.pop(prompt, 0) + 1
        self._counts[prompt] = number
        if len(self._counts) > self._prompts_max:
            self._counts.popitem(last=False)
        return number

    def clear(self) -> None:
        # The next request of each prompt is its first.
        self._counts.clear()


class FaultPlan:
    """The faults of one instance. `standing` may be replaced while it runs."""

    def __init__(self, name: str, standing: Directives, attempts: Attempts) -> None:
        self._name = name
        self.standing = standing
        self._attempts = attempts

    def in_force(self, asked: Directives, turn_prompt: Sequence[int]) -> Directives:
        """Return the directives with the faults of this very request only.

        `turn_prompt` is the prompt up to its open turn, so that a request that continues a cut turn
        counts as another attempt of the same prompt.
        """
        wrong = asked if asked.faults else self.standing
        odd = asked if asked.malformed else self.standing
        terms = [one.faults for one, what in ((wrong, wrong.faults), (odd, odd.malformed)) if what]
        is_counted = any(one.times is not None and self._is_for_here(one) for one in terms)
        attempt = self._count(turn_prompt) if is_counted else 1
        return replace(
            asked,
            faults=wrong.faults if self._applies(wrong.faults, attempt) else _NO_FAULTS,
            malformed=odd.malformed if self._applies(odd.faults, attempt) else _WELL_FORMED,
        )

    def _applies(self, terms: Faults, attempt: int) -> bool:
        # `only` and `times` stand among the faults.
        in_time = terms.times is None or attempt <= terms.times
        return in_time and self._is_for_here(terms)

    def _is_for_here(self, terms: Faults) -> bool:
        return terms.only in {None, self._name}

    def _count(self, turn_prompt: Sequence[int]) -> int:
        return self._attempts.count(ids_hash(turn_prompt))

    def clear(self) -> None:
        self._attempts.clear()


def ids_hash(ids: Sequence[int]) -> str:
    # The first 32 hex digits of SHA-256 over the ids as 32-bit integers.
    return hashlib.sha256(array("I", ids).tobytes()).hexdigest()[:32]
