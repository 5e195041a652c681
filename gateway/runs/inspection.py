"""Whether what a turn would show when it ends is what was asked for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.checking import Checker
    from gateway.generation import FinishReason
    from gateway.output.fold import Body, Fold

INLINE_CHECK_CHARS: Final = 4096
"""So much text is checked at once, more in a thread."""


class Inspection:
    """Checks the bodies of one response."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._is_compiled = False

    async def faulty(self, fold: Fold, finish: FinishReason) -> Body | None:
        """The first body that is wrong, of those that would be shown if the turn ended so."""
        bodies = fold.bodies_after(finish)
        if bodies and not self._is_compiled:
            # It is already, unless another replica accepted the response.
            await asyncio.to_thread(self._checker.compile)
            self._is_compiled = True
        for body in bodies:
            if body.kind != "refusal" and await self._is_faulty(body):
                return body
        return None

    async def _is_faulty(self, body: Body) -> bool:
        is_short = len(body.text) <= INLINE_CHECK_CHARS
        fault = self._fault(body) if is_short else await asyncio.to_thread(self._fault, body)
        return fault is not None

    def _fault(self, body: Body) -> str | None:
        if body.kind == "call":
            return self._checker.call_fault(body.name, body.text)
        return self._checker.answer_fault(body.text)
