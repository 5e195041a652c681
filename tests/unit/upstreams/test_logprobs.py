from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.generation import LOGPROB_MIN, TokenLogprob
from gateway.upstreams.logprobs import Misaligned, aligned_logprobs


def told(**fields: Any) -> dict[str, Any]:
    """What a backend tells of the ids 5 and 6."""
    return {
        "tokens": ["token_id:5", "token_id:6"],
        "token_logprobs": [-0.1, -2.0],
        "top_logprobs": [
            {"token_id:5": -0.1, "token_id:9": -3.0},
            {"token_id:6": -2.0, "token_id:7": -0.2, "token_id:8": -1.0},
        ],
        **fields,
    }


def test_each_id_has_its_own_and_the_likeliest_in_its_place() -> None:
    assert aligned_logprobs(told(), [5, 6], 2) == [
        TokenLogprob(-0.1, ((5, -0.1), (9, -3.0))),
        TokenLogprob(-2.0, ((7, -0.2), (8, -1.0))),
    ]


def test_without_alternatives_only_its_own_are_told() -> None:
    assert aligned_logprobs(told(top_logprobs=None), [5, 6], 0) == [
        TokenLogprob(-0.1),
        TokenLogprob(-2.0),
    ]


def test_an_id_may_have_no_alternatives() -> None:
    (_, second) = aligned_logprobs(told(top_logprobs=[None, None]), [5, 6], 3)
    assert second == TokenLogprob(-2.0)


@pytest.mark.parametrize(
    ("value", "means"),
    [
        (None, LOGPROB_MIN),
        (-math.inf, LOGPROB_MIN),
        (math.nan, LOGPROB_MIN),
        (-1e300, LOGPROB_MIN),
        ("-inf", LOGPROB_MIN),
        (-(10**30), LOGPROB_MIN),
        (-1, -1.0),
        (0, 0.0),
        (1e-7, 0.0),
        (math.inf, 0.0),
    ],
)
def test_what_is_told_is_a_finite_logarithm_of_a_probability(value: object, means: float) -> None:
    said = {
        "tokens": ["token_id:5"],
        "token_logprobs": [value],
        "top_logprobs": [{"token_id:5": value}],
    }
    (one,) = aligned_logprobs(said, [5], 1)
    assert one == TokenLogprob(means, ((5, means),))
    assert type(one.logprob) is float


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        {},
        told(tokens=["token_id:5"]),
        told(tokens=["token_id:6", "token_id:5"]),
        told(tokens=["hello", "token_id:6"]),
        told(token_logprobs=None),
        told(token_logprobs=[-0.1]),
        told(token_logprobs={"0": 1, "1": 2}),
        told(top_logprobs=None),
        told(top_logprobs=[{}]),
        told(top_logprobs=[{}, [1]]),
        told(top_logprobs=[{}, {"hello": -1.0}]),
        told(top_logprobs=[{}, {"token_id:": -1.0}]),
        told(top_logprobs=[{}, {"token_id:-1": -1.0}]),
        told(top_logprobs=[{}, {"token_id:٣": -1.0}]),
        told(top_logprobs=[{}, {"token_id:4294967296": -1.0}]),
        told(top_logprobs=[{}, {"token_id:" + "9" * 5000: -1.0}]),
    ],
)
def test_what_does_not_fit_the_ids_is_not_guessed_at(said: object) -> None:
    with pytest.raises(Misaligned):
        aligned_logprobs(said, [5, 6], 2)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner),
    max_leaves=8,
)


@given(told=st.dictionaries(st.sampled_from(list(told())), JSON) | JSON, count=st.integers(0, 2))
def test_nothing_told_makes_it_raise_anything_else(told: object, count: int) -> None:
    ids = list(range(count))
    try:
        found = aligned_logprobs(told, ids, 1)
    except Misaligned:
        return
    assert len(found) == count
