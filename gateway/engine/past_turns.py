"""The finished turns of a response, as they stand behind its prompt in the next request."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.engine.engine import Executor
    from gateway.eventlog.fold.turn_reader import Turn
    from gateway.generation import TokenParser
    from gateway.models.format import ModelFormat

INLINE_IDS: Final = 512
"""More ids than this are rendered in a thread: they take a few milliseconds."""


class PastTurns:
    """The finished turns of one response, rendered once each.

    A tool's result stands behind the turn that ended with its call. It is input: it is not parsed
    as output of the model, and stays id for id as it is.
    """

    __slots__ = ("_format", "_generated", "_new_parser", "_results", "_threads", "_turns", "ids")

    def __init__(
        self, format_: ModelFormat, new_parser: Callable[[], TokenParser], threads: Executor
    ) -> None:
        # `new_parser` makes the parsers of the turns.
        self._format = format_
        self._new_parser = new_parser
        self._threads = threads
        self.ids: list[int] = []
        """All finished turns, as a backend is sent them behind the prompt."""
        self._turns = 0
        self._generated = 0
        self._results = 0

    async def update(self, finished: Sequence[Turn]) -> None:
        """Render the finished turns that are new since the last call.

        Finished turns do not change.
        """
        new = finished[self._turns :]
        if not new:
            return
        work = partial(self._render, new)
        is_short = sum(len(turn.said) for turn in new) <= INLINE_IDS
        ids, generated = work() if is_short else await self._threads.run_accepted(work)
        self.ids += ids
        self._generated += generated
        self._results += sum(len(turn.result) for turn in new)
        self._turns += len(new)

    def _render(self, turns: Sequence[Turn]) -> tuple[list[int], int]:
        # Returns the ids as they are sent to a backend, and how many of them the model generated.
        ids: list[int] = []
        for turn in turns:
            rendered = self._format.rerender(
                [([*turn.prefill, *turn.said], turn.finish)], self._new_parser
            )
            ids += self._format.with_result(rendered, turn.result) if turn.result else rendered
        said = [*((turn.prefill, turn.said) for turn in turns), ((), ())]
        return ids, len(self._format.said_ids(said))

    def ids_with(self, last: Turn) -> list[int]:
        # As sent to a backend: finished turns rendered, `last` id for id.
        return [*self.ids, *last.prefill, *last.said]

    def generated_with(self, last: Turn) -> int:
        """Count the ids that all turns add behind the prompt, without the results of tools.

        Finished turns count as generated or as rendered, whichever is more.
        """
        finished = max(self._generated, len(self.ids) - self._results)
        return finished + len(last.prefill) + len(last.said)

    def size_with(self, last: Turn) -> int:
        # Counts ids behind the prompt, results of tools included.
        return self.generated_with(last) + self._results
