"""Summaries of contexts: a generation that is nobody's response.

It goes on at another backend when one fails, like any other, but it is not shown while it grows,
and not kept: whoever asked for it waits for it, and when that one leaves it ends.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.engine import outcome
from gateway.engine.outcome import now
from gateway.engine.output_guard import OutputViolation
from gateway.engine.turn import TurnRunner
from gateway.errors import SummaryFailed, UpstreamError
from gateway.eventlog.journal import MemoryJournal
from gateway.eventlog.live_log import LiveLog

if TYPE_CHECKING:
    from gateway.engine.engine import Engine
    from gateway.engine.row_mapping import NewFoldFor
    from gateway.engine.run_spec import RunSpec
    from gateway.entries import Finished
    from gateway.eventlog.fold.fold import Fold
    from gateway.generation import TokenUsage


@dataclass(frozen=True, slots=True)
class Summary:
    """Text that the model wrote, never empty, and the tokens that it took.

    The end of `text` is missing where the model came to the longest that a summary may be.
    """

    spec: RunSpec
    text: str
    finished: Finished
    fold: Fold

    @property
    def usage(self) -> TokenUsage:
        return self.fold.usage


class Summarizer:
    """Generator of summaries. It books the tokens of a summary only if that fails."""

    def __init__(self, engine: Engine, new_fold_for: NewFoldFor) -> None:
        self._engine = engine
        self._new_fold_for = new_fold_for

    async def summarize(self, spec: RunSpec) -> Summary:
        """Generate the answer to a prompt that requests a summary.

        Raises `UpstreamError`, and `SummaryFailed` if the model writes no usable text or takes too
        long. In these cases, and when the caller is cancelled, the tokens used are booked.
        """
        live = LiveLog(self._new_fold_for(spec.head), reader_events_max=0)
        journal = MemoryJournal(live, None)
        turns = TurnRunner(spec, journal, self._engine, epoch=0, on_first_token=lambda: None)
        try:
            await self._complete(turns)
            finished = outcome.ended(live.fold.last_finish, now(), visible=live.fold.visible)
            live.fold.apply(finished)
            text = _text(live.fold)
        except (UpstreamError, SummaryFailed) as error:
            self._engine.observer.failed(spec, error)
            self._give_up(spec, live.fold, outcome.broken(error, now()))
            raise
        except asyncio.CancelledError:
            self._give_up(spec, live.fold, outcome.hung_up(now()))
            raise
        return Summary(spec, text, finished, live.fold)

    def book(self, summary: Summary) -> None:
        # For a summary that is part of no response.
        self._book(summary.spec, summary.fold, summary.finished)

    async def _complete(self, turns: TurnRunner) -> None:
        try:
            async with asyncio.timeout(self._engine.run_time_max_s):
                await turns.complete()
        except OutputViolation as error:
            raise SummaryFailed(f"the model did something else: {error.code}") from error
        except TimeoutError as error:
            raise SummaryFailed("it takes too long") from error

    def _give_up(self, spec: RunSpec, fold: Fold, finished: Finished) -> None:
        if not fold.is_finished:
            fold.apply(finished)
        self._book(spec, fold, finished)

    def _book(self, spec: RunSpec, fold: Fold, finished: Finished) -> None:
        if spec.charge is not None:
            spec.charge.settle(outcome.used(fold.usage, is_whole=False))
        self._engine.observer.finished(spec, finished, fold)
        self._engine.archive.meter(spec, finished, fold, "compact")


def _text(fold: Fold) -> str:
    parts = (
        part.get("text", "")
        for item in fold.response()["output"]
        if item["type"] == "message"
        for part in item["content"]
    )
    text = "\n\n".join(text for text in parts if text).strip()
    if not text:
        raise SummaryFailed("the model said nothing that could be a summary")
    return text
