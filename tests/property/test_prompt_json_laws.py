"""Laws of spelled prompts: whatever is kept, the JSON is that of the ids."""

from __future__ import annotations

import asyncio
from array import array

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.upstreams.request_writer import BLOCK_IDS, KEPT_FROM_IDS, STEP_BLOCKS, PromptEncoder
from tests.fakes.examples import examples
from tests.fakes.rounds import counted_rounds

PROMPT = array("I", range(199_000, 199_000 + KEPT_FROM_IDS))
_KEPT_BYTES_OF_A_BLOCK = 11 * BLOCK_IDS


def spelled(spell: PromptEncoder, ids: array[int], owner: str = "salt") -> array[int]:
    return array("I", orjson.loads(b"".join(spell(ids, owner=owner))))


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
def test_the_json_is_that_of_the_ids_whatever_was_spelled_before(
    prompts: list[tuple[int, list[int]]], blocks_max: int
) -> None:
    spell = PromptEncoder(kept_bytes_max=blocks_max * _KEPT_BYTES_OF_A_BLOCK)
    for shared, added in prompts:
        ids = PROMPT[:shared] + array("I", added)
        assert spelled(spell, ids) == ids
        assert spelled(spell, ids + PROMPT) == ids + PROMPT


@settings(max_examples=examples(20))
@given(st.integers(0, 5 * KEPT_FROM_IDS))
def test_a_prompt_that_is_spelled_in_steps_is_the_same(length: int) -> None:
    ids = array("I", range(length))
    assert asyncio.run(PromptEncoder().in_steps(ids, owner="salt")) == PromptEncoder()(
        ids, owner="salt"
    )


def test_a_prompt_is_spelled_in_steps_between_which_others_have_their_turn() -> None:
    async def spell() -> int:
        async with counted_rounds() as rounds:
            await PromptEncoder().in_steps(
                array("I", range(4 * STEP_BLOCKS * BLOCK_IDS)), owner="salt"
            )
            return rounds.count

    assert asyncio.run(spell()) == 4


def test_a_prompt_that_goes_on_is_spelled_from_what_is_kept() -> None:
    spell = PromptEncoder()
    first = spell(PROMPT, owner="salt")
    longer = spell(PROMPT + array("I", [1]), owner="salt")
    assert b"".join(longer) == b"".join(first)[:-1] + b",1]"
    assert len(spell) == len(PROMPT) // BLOCK_IDS


def test_what_is_kept_for_one_tenant_is_not_looked_up_for_another() -> None:
    spell = PromptEncoder()
    assert spelled(spell, PROMPT, "one") == spelled(spell, PROMPT, "other") == PROMPT
    assert len(spell) == 2 * len(PROMPT) // BLOCK_IDS


def test_no_more_is_kept_than_may_be_and_the_latest_stays() -> None:
    spell = PromptEncoder(kept_bytes_max=3 * _KEPT_BYTES_OF_A_BLOCK)
    assert spelled(spell, PROMPT) == PROMPT
    assert len(spell) == 3


def test_short_prompts_and_those_that_are_not_packed_are_not_kept() -> None:
    spell = PromptEncoder()
    assert spelled(spell, PROMPT[:100]) == PROMPT[:100]
    assert orjson.loads(b"".join(spell(list(PROMPT), owner="salt"))) == list(PROMPT)
    assert len(spell) == 0
