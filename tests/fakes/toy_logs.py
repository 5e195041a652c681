"""Logs in the language of `toy_parser`, and their fold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hypothesis import strategies as st

from gateway.generation import FinishReason
from gateway.log import Alive, Entry, Finished, Tokens, TurnEnded, TurnStarted
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

token_ids = st.integers(0, TEXT + len(PIECES) - 1)
_tokens = st.lists(token_ids, max_size=6).map(lambda ids: Tokens(tuple(ids)))


@st.composite
def turns(draw: st.DrawFn) -> list[Entry]:
    """A model call that ended."""
    prefill = draw(st.lists(token_ids, max_size=3))
    said = draw(st.lists(_tokens | st.just(Alive()), max_size=8))
    end = TurnEnded(draw(st.sampled_from(FinishReason)), draw(st.integers(0, 30)))
    return [TurnStarted(draw(st.integers(0, 20)), tuple(prefill)), *said, end]


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    """A whole log: any number of turns, the last of which may be broken off, and an end."""
    waiting: list[Entry] = draw(st.lists(st.just(Alive()), max_size=2))
    calls = draw(st.lists(turns(), max_size=3))
    entries = waiting + [entry for call in calls for entry in call]
    is_broken_off: bool = draw(st.booleans())
    if calls and is_broken_off:
        entries.pop()
    return [*entries, draw(st.sampled_from(ENDINGS))]


def new_fold(*, background: bool = False) -> Fold:
    """A fold that has seen nothing."""
    return Fold(response_head(background=background), ToyParser, FRAMING)


def apply_all(fold: Fold, entries: Iterable[Entry]) -> list[Event]:
    """The events of all the entries."""
    return [event for entry in entries for event in fold.apply(entry)]
