"""What stands behind the prompt of a response: its turns that are over, told again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.engine.engine import Executor
    from gateway.eventlog.fold.fold import Turn
    from gateway.generation import TokenParser
    from gateway.models.format import ModelFormat

INLINE_IDS: Final = 512
"""So many ids are told again at once, more in a thread: they take a few milliseconds."""


class Retold:
    """The turns of one response that are over, told again behind its prompt.

    A tool's result stands behind the turn that ended with its call. It is input: neither read as
    what the model said, nor told in other words.
    """

    __slots__ = ("_format", "_generated", "_new_parser", "_results", "_threads", "_turns", "ids")

    def __init__(
        self, format_: ModelFormat, new_parser: Callable[[], TokenParser], threads: Executor
    ) -> None:
        """`new_parser` makes the parsers of the turns."""
        self._format = format_
        self._new_parser = new_parser
        self._threads = threads
        self.ids: list[int] = []
        """What stands behind the prompt of the turns that are over."""
        self._turns = 0
        self._generated = 0
        self._results = 0

    async def keep_up(self, over: Sequence[Turn]) -> None:
        """Tell these turns again, which are all that are over. Those that were told before have not
        changed: what is over stays as it is.
        """
        new = over[self._turns :]
        if not new:
            return
        work = partial(self._tell, new)
        is_short = sum(len(turn.said) for turn in new) <= INLINE_IDS
        ids, generated = work() if is_short else await self._threads.run_accepted(work)
        self.ids += ids
        self._generated += generated
        self._results += sum(len(turn.result) for turn in new)
        self._turns += len(new)

    def _tell(self, over: Sequence[Turn]) -> tuple[list[int], int]:
        ids: list[int] = []
        for turn in over:
            told = self._format.retold(
                [([*turn.prefill, *turn.said], turn.finish)], self._new_parser
            )
            ids += self._format.answered(told, turn.result) if turn.result else told
        behind = [*((turn.prefill, turn.said) for turn in over), ((), ())]
        return ids, len(self._format.said_ids(behind))

    def before(self, last: Turn) -> list[int]:
        """What the model is shown of what it said: earlier turns told again, the last as it is."""
        return [*self.ids, *last.prefill, *last.said]

    def generated(self, last: Turn) -> int:
        """How many ids the turns put behind the prompt, as they were said or as they are told; the
        results of tools are not among them.
        """
        over = max(self._generated, len(self.ids) - self._results)
        return over + len(last.prefill) + len(last.said)

    def behind(self, last: Turn) -> int:
        """The same with the results of tools."""
        return self.generated(last) + self._results
