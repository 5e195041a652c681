"""Laws of encoded prompts: whatever is kept, the JSON is that of the ids."""

from __future__ import annotations

import asyncio
from array import array
from typing import TYPE_CHECKING

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.upstreams.request_writer import BLOCK_IDS, KEPT_FROM_IDS, STEP_BLOCKS, PromptEncoder
from tests.fakes.examples import examples
from tests.fakes.loop_rounds import counted_rounds

if TYPE_CHECKING:
    from collections.abc import Sequence

PROMPT = array("I", range(199_000, 199_000 + KEPT_FROM_IDS))
_KEPT_BYTES_OF_A_BLOCK = 11 * BLOCK_IDS


def encoded(encoder: PromptEncoder, ids: Sequence[int], owner: str = "salt") -> bytes:
    return b"".join(asyncio.run(encoder.encode(ids, owner=owner)))


def repeated(encoder: PromptEncoder, ids: array[int], owner: str = "salt") -> array[int]:
    """The ids that their JSON has."""
    return array("I", orjson.loads(encoded(encoder, ids, owner)))


@pytest.mark.slow
@settings(max_examples=examples(50))
@given(
    st.lists(
        st.tuples(
            st.integers(0, KEPT_FROM_IDS), st.lists(st.integers(0, 2**32 - 1), max_size=5000)
        ),
        max_size=6,
    ),
    st.integers(1, 40),
)
def test_the_json_is_that_of_the_ids_whatever_was_encoded_before(
    prompts: list[tuple[int, list[int]]], blocks_max: int
) -> None:
    encoder = PromptEncoder(kept_bytes_max=blocks_max * _KEPT_BYTES_OF_A_BLOCK)
    for shared, added in prompts:
        ids = PROMPT[:shared] + array("I", added)
        assert repeated(encoder, ids) == ids
        assert repeated(encoder, ids + PROMPT) == ids + PROMPT


@settings(max_examples=examples(20))
@given(st.integers(0, 5 * KEPT_FROM_IDS))
def test_a_prompt_of_any_length_is_encoded(length: int) -> None:
    ids = array("I", range(length))
    assert repeated(PromptEncoder(), ids) == ids


def test_a_prompt_is_encoded_in_steps_between_which_others_have_their_turn() -> None:
    async def spell() -> int:
        async with counted_rounds() as rounds:
            await PromptEncoder().encode(
                array("I", range(4 * STEP_BLOCKS * BLOCK_IDS)), owner="salt"
            )
            return rounds.count

    assert asyncio.run(spell()) == 4


def test_a_prompt_that_goes_on_is_encoded_from_what_is_kept() -> None:
    encoder = PromptEncoder()
    first = encoded(encoder, PROMPT)
    assert encoded(encoder, PROMPT + array("I", [1])) == first[:-1] + b",1]"
    assert len(encoder) == len(PROMPT) // BLOCK_IDS


def test_what_is_kept_for_one_tenant_is_not_looked_up_for_another() -> None:
    encoder = PromptEncoder()
    assert repeated(encoder, PROMPT, "one") == repeated(encoder, PROMPT, "other") == PROMPT
    assert len(encoder) == 2 * len(PROMPT) // BLOCK_IDS


def test_no_more_is_kept_than_may_be_and_the_latest_stays() -> None:
    encoder = PromptEncoder(kept_bytes_max=3 * _KEPT_BYTES_OF_A_BLOCK)
    assert repeated(encoder, PROMPT) == PROMPT
    assert len(encoder) == 3


def test_short_prompts_and_those_that_are_not_packed_are_not_kept() -> None:
    encoder = PromptEncoder()
    assert repeated(encoder, PROMPT[:100]) == PROMPT[:100]
    assert orjson.loads(encoded(encoder, list(PROMPT))) == list(PROMPT)
    assert len(encoder) == 0
