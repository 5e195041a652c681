"""Which faults apply to a request: its own directives, else the instance's plan."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING

from gateway.simulator.directives import Faults

if TYPE_CHECKING:
    from collections.abc import Sequence

_NONE = Faults()


class Attempts:
    """Counts the requests of each prompt. Instances that share one count together."""

    def __init__(self, prompts_max: int) -> None:
        self._prompts_max = prompts_max
        self._counts: OrderedDict[str, int] = OrderedDict()

    def count(self, prompt: str) -> int:
        """How many requests of this prompt there have been, this one included."""
        number = self._counts.pop(prompt, 0) + 1
        self._counts[prompt] = number
        if len(self._counts) > self._prompts_max:
            self._counts.popitem(last=False)
        return number

    def clear(self) -> None:
        """Start again."""
        self._counts.clear()


class FaultPlan:
    """The faults of one instance. `standing` may be replaced while it runs."""

    def __init__(self, name: str, standing: Faults, attempts: Attempts) -> None:
        self._name = name
        self.standing = standing
        self._attempts = attempts

    def faults_of(self, asked: Faults, turn_prompt: Sequence[int]) -> Faults:
        """What is to go wrong with this request.

        `turn_prompt` is the prompt up to its open turn, so that a request that continues a cut
        turn counts as another attempt of the same prompt.
        """
        faults = asked or self.standing
        if not faults or (faults.only is not None and faults.only != self._name):
            return _NONE
        if faults.times is not None and self._count(turn_prompt) > faults.times:
            return _NONE
        return faults

    def _count(self, turn_prompt: Sequence[int]) -> int:
        return self._attempts.count(ids_hash(turn_prompt))

    def clear(self) -> None:
        """Forget all attempts."""
        self._attempts.clear()


def ids_hash(ids: Sequence[int]) -> str:
    """32 hex digits of SHA-256 over the ids as 32-bit integers."""
    return hashlib.sha256(array("I", ids).tobytes()).hexdigest()[:32]
