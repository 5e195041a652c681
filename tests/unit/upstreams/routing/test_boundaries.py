from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from gateway.upstreams.routing.prefix_index import (
    IDS_MAX,
    STEP,
    WIDE_FROM,
    WIDE_STEP,
    HashedPrefix,
    PrefixKeys,
    boundary,
    count_of,
)

KEY = PrefixKeys(b"secret" * 6).of("salt", "m")
ids = st.builds(
    lambda length, seed: array("I", ((seed * 7919 + n * n) % 200_000 for n in range(length))),
    st.integers(0, 3 * STEP + 40),
    st.integers(0, 50),
)


@given(st.integers(0, 2 * WIDE_FROM))
def test_a_prompt_has_the_boundaries_that_are_not_longer_than_it(length: int) -> None:
    count = count_of(length)
    assert not count or boundary(count - 1) <= length
    assert boundary(count) > length


def test_boundaries_lie_close_at_first_and_then_twice_as_far_apart() -> None:
    places = [boundary(place) for place in range(count_of(WIDE_FROM + 2 * WIDE_STEP))]
    assert places[:2] == [STEP, 2 * STEP]
    assert places[-3:] == [WIDE_FROM, WIDE_FROM + WIDE_STEP, WIDE_FROM + 2 * WIDE_STEP]


def test_of_a_very_long_prompt_no_more_is_hashed_than_the_bound() -> None:
    assert count_of(10 * IDS_MAX) == count_of(IDS_MAX)


@given(ids, ids, st.integers(0, 2 * STEP))
def test_digests_agree_exactly_as_far_as_the_ids(
    first: array[int], second: array[int], common: int
) -> None:
    shared = first[:common]
    one, other = HashedPrefix(shared + first, KEY), HashedPrefix(shared + second, KEY)
    for place, (mine, its) in enumerate(zip(one.digests, other.digests, strict=False)):
        end = boundary(place)
        assert (mine == its) == (one.ids[:end] == other.ids[:end])


@given(ids, ids)
def test_a_longer_prompt_has_the_digests_that_it_would_have_had_at_once(
    prompt: array[int], said: array[int]
) -> None:
    grown = HashedPrefix(prompt, KEY).longer(said)
    whole = HashedPrefix(prompt + said, KEY)
    assert (grown.digests, grown.length) == (whole.digests, whole.length)


@given(ids, ids, st.integers(0, 3 * STEP))
def test_any_length_has_a_digest_that_tells_nothing_of_what_comes_behind(
    prompt: array[int], said: array[int], length: int
) -> None:
    one, more = HashedPrefix(prompt, KEY), HashedPrefix(prompt + said, KEY)
    if length < len(prompt):
        assert one.at(length) == more.at(length)
    assert one.digests == [one.at(boundary(place)) for place in range(len(one.digests))]
    assert len({one.at(end) for end in range(0, one.length, 97)}) == len(range(0, one.length, 97))


@given(ids)
def test_a_list_of_ids_is_hashed_as_packed_ones_are(prompt: array[int]) -> None:
    assert HashedPrefix(list(prompt), KEY).digests == HashedPrefix(prompt, KEY).digests


def test_another_tenant_model_or_installation_shares_no_digest() -> None:
    prompt = array("I", range(3 * STEP))
    keys = PrefixKeys(b"secret" * 6)
    others = [
        keys.of("other", "m"),
        keys.of("salt", "n"),
        # Not the same text, cut in another place.
        keys.of("sal", "tm"),
        PrefixKeys(b"another" * 6).of("salt", "m"),
    ]
    known = HashedPrefix(prompt, KEY)
    for key in others:
        other = HashedPrefix(prompt, key)
        assert not set(known.digests) & set(other.digests)
        assert known.at(700) != other.at(700)
        assert known.named("session") != other.named("session")
    assert keys.of("salt", "m") == KEY


def test_a_name_stands_for_the_same_whatever_the_prompt() -> None:
    one, other = HashedPrefix([1, 2], KEY), HashedPrefix([3], KEY)
    assert one.named("a") == other.named("a") != other.named("b")
