"""One attempt at a turn: what a backend says goes into the log, up to where the turn is to end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gateway.engine.stretches import STRETCH_IDS_MAX
from gateway.entries import Tokens
from gateway.generation import Where

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.engine.output_guard import OutputGuard, TurnEnding
    from gateway.eventlog.journal import JournalWriter
    from gateway.generation import FinishReason, TokenChunk

PIECES_MAX: Final = 32
"""So many pieces of a chunk are written in one turn of the event loop: each marker is one,
and each run of text, and takes up to a tenth of a millisecond."""


class TurnSink:
    """The token sink of one generation (`gateway.generation.TokenSink`): it writes the log.

    `on_first_chunk` is called with the first chunk, before any of it is written; from then on a
    turn is open in the log. `on_first_token` is called when the first id comes. What is written
    raises `ClaimLost` once the log is another's.
    """

    def __init__(
        self,
        pen: JournalWriter,
        guard: OutputGuard,
        *,
        on_first_chunk: Callable[[TokenChunk], None],
        on_first_token: Callable[[], None],
    ) -> None:
        self.ending: TurnEnding | None = None
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
        self._guard = guard
        self._passes = guard.passes
        self._text_ids = guard.text_ids
        self._on_first_chunk = on_first_chunk
        self._on_first_token = on_first_token
        self._has_chunk = False
        self._has_token = False
        self._in_body = False
        self._unwritten: TokenChunk | None = None
        self._written = 0

    def on_tokens(self, chunk: TokenChunk) -> bool:
        """Write what a chunk brings. False: nothing more before `room`."""
        ids = chunk.ids
        if (
            self._in_body
            and ids
            and chunk.finish is None
            and self._passes(ids, len(self._said) + len(ids))
        ):
            # Nearly every chunk is more text of a body.
            logprobs = chunk.logprobs
            self._pen.append(Tokens(tuple(ids), tuple(logprobs) if logprobs else ()))
        else:
            self._take(chunk)
        return self.ending is None and self._unwritten is None and not self._journal.is_full

    async def room(self) -> bool:
        """Wait until all that came is written, and the database has caught up. False: the gateway
        ends the turn. Raises `ClaimLost`.
        """
        while (chunk := self._unwritten) is not None:
            await asyncio.sleep(0)
            self._write(chunk)
        if self._journal.is_full:
            await self._journal.room()
        return self.ending is None

    def _take(self, chunk: TokenChunk) -> None:
        """The general case of a chunk."""
        if not self._has_token:
            self._begin(chunk)
        if chunk.cached_tokens:
            self.cached_tokens = chunk.cached_tokens
        self.finish = chunk.finish
        if chunk.ids:
            self._written = 0
            self._write(chunk)

    def _begin(self, chunk: TokenChunk) -> None:
        if not self._has_chunk:
            self._has_chunk = True
            self._on_first_chunk(chunk)
            turn = self._fold.open_turn
            assert turn is not None, "`on_first_chunk` has begun a turn"
            self._said = turn.said
        if chunk.ids:
            self._has_token = True
            self._on_first_token()

    def _write(self, chunk: TokenChunk) -> None:
        """Write the next pieces of a chunk. What is left then is kept, until there is room."""
        self._unwritten = None
        if len(chunk.ids) == 1:
            self._write_pieces(chunk)
            return
        with self._live.gathered():
            self._write_pieces(chunk)
        if self.ending is None and self._written < len(chunk.ids):
            self._unwritten = chunk

    def _write_pieces(self, chunk: TokenChunk) -> None:
        """Piece by piece, with a look at the turn after each, which may end it."""
        ids, fold, guard = chunk.ids, self._fold, self._guard
        begin = self._written
        for _ in range(PIECES_MAX):
            at = self._written
            if at == len(ids) or at - begin >= STRETCH_IDS_MAX:
                return
            count = guard.stretch(fold, ids, at)
            if not count:
                self.ending = guard.out_of_budget(fold)
                return
            logprobs = tuple(chunk.logprobs[at : at + count]) if chunk.logprobs else ()
            self._pen.append(Tokens(tuple(ids[at : at + count]), logprobs))
            self._written = at + count
            if (ending := self._look(ids[at])) is not None:
                self.ending = ending
                return

    def _look(self, token: int) -> TurnEnding | None:
        """After a marker, or text that begins with `token`: what is to be done, if anything."""
        at_header = not self._in_body or token not in self._text_ids
        header = self._fold.place if at_header else None
        if header is not None:
            self._in_body = header.where is Where.BODY
        return self._guard.look(self._fold, header)
