"""Whether what a turn would show when it ends is what was asked for."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.constraints.validation import Checker
    from gateway.eventlog.fold.fold import Body, Fold
    from gateway.generation import FinishReason

INLINE_CHECK_CHARS: Final = 4096
"""So much text is checked at once, more in a thread."""


T = TypeVar("T")


class Executor(Protocol):
    """Where the work of runs is done that would hold up the event loop."""

    async def run_accepted(self, work: Callable[[], T]) -> T: ...


class OutputValidation:
    """Checks the bodies of one response."""

    def __init__(self, checker: Checker, threads: Executor) -> None:
        self._checker = checker
        self._threads = threads

    async def faulty(self, fold: Fold, finish: FinishReason) -> Body | None:
        """The first body that is wrong, of those that would be shown if the turn ended so."""
        bodies = fold.bodies_after(finish)
        if bodies and not self._checker.is_compiled:
            # It is already, unless another replica accepted the response.
            await self._threads.run_accepted(self._checker.compile)
        for body in bodies:
            if body.kind != "refusal" and await self._is_faulty(body):
                return body
        return None

    async def _is_faulty(self, body: Body) -> bool:
        if len(body.text) <= INLINE_CHECK_CHARS:
            return self._fault(body) is not None
        return await self._threads.run_accepted(partial(self._fault, body)) is not None

    def _fault(self, body: Body) -> str | None:
        if body.kind == "call":
            return self._checker.call_fault(body.name, body.text)
        return self._checker.answer_fault(body.text)
