"""Entries that are kept come out as they went in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from gateway.entries import Entry, Tokens
from gateway.eventlog.entry_buffer import EntryBuffer
from gateway.generation import TokenLogprob
from tests.fakes.toy_logs import logs

if TYPE_CHECKING:
    from collections.abc import Sequence

plain = st.builds(Tokens, st.lists(st.integers(0, 2**32 - 1), max_size=5).map(tuple))
scored = st.integers(0, 9).map(lambda token: Tokens((token,), (TokenLogprob(-1.0),)))


@given(st.tuples(logs(), st.lists(plain | scored)), st.data())
def test_any_entries_are_kept_in_order(
    both: tuple[Sequence[Entry], Sequence[Entry]], data: st.DataObject
) -> None:
    entries = data.draw(st.permutations([*both[0], *both[1]]))
    kept = EntryBuffer(entries)
    assert list(kept) == entries
    assert list(reversed(kept)) == entries[::-1]
    assert len(kept) == len(entries)
    start = data.draw(st.integers(0, len(entries)))
    stop = data.draw(st.integers(start, len(entries)))
    assert list(kept.between(start, stop)) == entries[start:stop]
