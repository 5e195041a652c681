"""One attempt at a turn: what a backend says goes into the log, up to where the turn is to end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gateway.generation import Where
from gateway.log import Tokens
from gateway.runs.stretches import STRETCH_IDS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.generation import FinishReason, HearText, TokenChunk
    from gateway.runs.journal import Pen
    from gateway.runs.steering import Course, Ending

PIECES_MAX: Final = 32
"""So many pieces of what was heard are written in one turn of the event loop: each marker is one,
and each run of text, and takes up to a tenth of a millisecond."""
FLOW_IDS_MAX: Final = 256
"""So many ids are folded together at most, in about a tenth of a millisecond."""


class Hearing:
    """The listener of one generation (`gateway.generation.Listener`).

    `meet` is called with the first chunk, before any of it is written; from then on a turn is open
    in the log. `first_token` is called when the first id comes. What is written raises `ClaimLost`
    once the log is another's.
    """

    def __init__(
        self,
        pen: Pen,
        course: Course,
        *,
        meet: Callable[[TokenChunk], None],
        first_token: Callable[[], None],
    ) -> None:
        self.ending: Ending | None = None
        """How the gateway ends the turn; None while it lets the backend speak."""
        self.finish: FinishReason | None = None
        """How the backend ended it."""
        self.cached_tokens = 0
        """How many ids of the prompt the backend had read before."""
        self._pen = pen
        self._journal = pen.journal
        self._said: Sequence[int] = ()
        self._live = pen.live
        # Nobody folds the log again while its run still writes.
        self._fold = pen.live.fold
        self._course = course
        self._passes = course.passes
        self._text_ids = course.text_ids
        self._meet = meet
        self._first_token = first_token
        self._is_met = False
        self._heard_none = True
        self._in_body = False
        self._flows = False
        self._chunk: TokenChunk | None = None
        self._written = 0

    @property
    def is_full(self) -> bool:
        """Something heard is not written, or the log is too far ahead of the database."""
        return self._chunk is not None or self._journal.is_full

    async def room(self) -> bool:
        """Wait until all heard is written, and the database has caught up. False: the gateway ends
        the turn. Raises `ClaimLost`.
        """
        while (chunk := self._chunk) is not None:
            await asyncio.sleep(0)
            self._write(chunk)
        if self._journal.is_full:
            await self._journal.room()
        return self.ending is None

    def hear(self, chunk: TokenChunk) -> bool:
        """Write what a chunk brings; False once the gateway ends the turn."""
        if self._flows:
            self._flows = False
            self._live.land()
        ids = chunk.ids
        if not self._in_body or chunk.finish is not None or not ids:
            return self._hear_any(chunk)
        if not self._passes(ids, len(self._said) + len(ids)):
            return self._hear_any(chunk)
        self._pen.append(Tokens(tuple(ids), tuple(chunk.logprobs) if chunk.logprobs else ()))
        return True

    def flow(self) -> HearText | None:
        """A shorter way for text that need not be looked at."""
        if not self._in_body:
            return None
        self._live.land()
        ids_max = min(FLOW_IDS_MAX, self._course.unlooked(len(self._said)))
        flow = self._pen.flow(ids_max) if ids_max else None
        self._flows = flow is not None
        return flow

    def _hear_any(self, chunk: TokenChunk) -> bool:
        if self._heard_none:
            self._begin(chunk)
        if chunk.cached_tokens:
            self.cached_tokens = chunk.cached_tokens
        self.finish = chunk.finish
        ids = chunk.ids
        if not ids:
            return True
        self._written = 0
        self._write(chunk)
        return self.ending is None

    def _begin(self, chunk: TokenChunk) -> None:
        if not self._is_met:
            self._is_met = True
            self._meet(chunk)
            turn = self._fold.open_turn
            assert turn is not None, "whom the first chunk met has begun a turn"
            self._said = turn.said
        if chunk.ids:
            self._heard_none = False
            self._first_token()

    def _write(self, chunk: TokenChunk) -> None:
        """Write the next pieces of a chunk. What is left then is kept, until there is room."""
        self._chunk = None
        if len(chunk.ids) == 1:
            self._write_pieces(chunk)
            return
        self._live.gather()
        try:
            self._write_pieces(chunk)
        finally:
            self._live.tell_gathered()
        if self.ending is None and self._written < len(chunk.ids):
            self._chunk = chunk

    def _write_pieces(self, chunk: TokenChunk) -> None:
        """Piece by piece, with a look at the turn after each, which may end it."""
        ids, fold, course = chunk.ids, self._fold, self._course
        begin = self._written
        for _ in range(PIECES_MAX):
            at = self._written
            if at == len(ids) or at - begin >= STRETCH_IDS_MAX:
                return
            count = course.stretch(fold, ids, at)
            if not count:
                self.ending = course.out_of_budget(fold)
                return
            logprobs = tuple(chunk.logprobs[at : at + count]) if chunk.logprobs else ()
            self._pen.append(Tokens(tuple(ids[at : at + count]), logprobs))
            self._written = at + count
            if (ending := self._look(ids[at])) is not None:
                self.ending = ending
                return

    def _look(self, token: int) -> Ending | None:
        """After a marker, or text that begins with `token`: what is to be done, if anything."""
        at_header = not self._in_body or token not in self._text_ids
        header = self._fold.place if at_header else None
        if header is not None:
            self._in_body = header.where is Where.BODY
        return self._course.look(self._fold, header)
