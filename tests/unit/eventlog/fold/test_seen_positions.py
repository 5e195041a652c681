"""How much of a turn can no longer be taken back, and the quicker question for one place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.entries import Tokens, TurnStarted
from tests.fakes.harmony_script import script_ids
from tests.fakes.response_heads import response_head
from tests.fakes.staged_run import NO_RULES, folds

PIECES = [
    script_ids("<|channel|>final<|message|>"),
    script_ids("<|channel|>analysis<|message|>"),
    script_ids("<|channel|>"),
    script_ids("<|end|><|start|>assistant"),
    script_ids(" the sea"),
    script_ids("é\N{GRINNING FACE} "),
    script_ids("<|message|>"),
]


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(PIECES), max_size=10),
    st.lists(st.integers(1, 9), min_size=1),
    st.sampled_from([(), tuple(PIECES[0])]),
)
def test_a_place_is_seen_behind_exactly_where_more_than_it_was_seen(
    pieces: list[list[int]], sizes: list[int], prefill: tuple[int, ...]
) -> None:
    fold = folds(response_head(), NO_RULES)()
    assert not fold.is_seen_behind(0)
    fold.apply(TurnStarted(7, prefill))
    ids = [token for piece in pieces for token in piece]
    at = 0
    while at < len(ids):
        size = sizes[at % len(sizes)]
        fold.apply(Tokens(tuple(ids[at : at + size])))
        at += size
        places = range(len(prefill) + len(ids) + 2)
        assert [fold.is_seen_behind(one) for one in places] == [fold.seen > one for one in places]
