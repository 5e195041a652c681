"""Logs in the language of `toy_parser`, and their fold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hypothesis import strategies as st

from gateway.generation import FinishReason
from gateway.log import Alive, Entry, Finished, Hop, Queued, Tokens, TurnEnded, TurnStarted
from gateway.output.fold import Fold, Framing
from tests.fakes.response_heads import response_head
from tests.fakes.toy_parser import PIECES, RETURN, TEXT, ToyParser

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.protocol.events import Event

FRAMING: Final = Framing(opening=(1001, 1002), turn_end=RETURN, message_end=1003)
ENDINGS: Final = (
    Finished("completed", 1_795_000_009),
    Finished("incomplete", 1_795_000_009, reason="max_output_tokens"),
    Finished("failed", 1_795_000_009, code="server_error", message="The server broke off."),
    Finished("cancelled", 1_795_000_009),
)

_BREAK, _ALIVE, _HOP, _STOP, _LENGTH = range(TEXT + len(PIECES), TEXT + len(PIECES) + 5)


def logs(*, background: bool = False) -> st.SearchStrategy[list[Entry]]:
    """Whole logs: any number of turns, the last of which may be broken off, and an end.

    Drawn as flat lists of small numbers, which is many times faster than nested strategies.
    """
    code = st.integers(0, _LENGTH)
    # The average list is little longer than its minimum.
    codes = st.lists(code, min_size=20, max_size=60).map(lambda said: [_BREAK, *said])
    written = st.builds(_write_log, codes | st.lists(code, max_size=8), st.sampled_from(ENDINGS))
    return written.map(lambda log: [Queued(), *log]) if background else written


def _write_log(codes: list[int], ending: Finished) -> list[Entry]:
    """Outside of a turn ids are its prefill, and a break starts it; inside, it cuts entries."""
    log: list[Entry] = []
    ids: list[int] = []
    in_turn = False
    for code in codes:
        if code < _BREAK:
            ids.append(code)
        elif code == _ALIVE:
            log.append(Alive())
        elif code == _HOP and log:
            log.append(Hop("backend" if in_turn else "replica", 7))
        elif not in_turn:
            log.append(TurnStarted(4 * len(ids), tuple(ids)))
            ids, in_turn = [], True
        else:
            log.append(Tokens(tuple(ids)))
            ids = []
            if code != _BREAK:
                finish = FinishReason.STOP if code == _STOP else FinishReason.LENGTH
                log.append(TurnEnded(finish, cached_tokens=5))
                in_turn = False
    return [*log, ending]


def new_fold(*, background: bool = False) -> Fold:
    """A fold that has seen nothing."""
    return Fold(response_head(background=background), ToyParser, FRAMING)


def apply_all(fold: Fold, entries: Iterable[Entry]) -> list[Event]:
    """The events of all the entries."""
    return [event for entry in entries for event in fold.apply(entry)]
