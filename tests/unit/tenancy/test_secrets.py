from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.tenancy.secrets import (
    PREFIXES,
    RANDOM_BYTES,
    Pepper,
    SecretKind,
    hint_of,
    is_mistyped,
    kind_of,
    redacted,
    secret_of,
)

KINDS = st.sampled_from(sorted(PREFIXES))
RANDOM = st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES)


@given(kind=KINDS, random=RANDOM)
def test_a_secret_tells_its_kind_and_that_it_is_whole(kind: SecretKind, random: bytes) -> None:
    secret = secret_of(kind, random)
    assert kind_of(secret) == kind
    assert not is_mistyped(secret)
    assert redacted(kind, hint_of(secret)) == f"{PREFIXES[kind]}***{secret[-4:]}"
    assert secret.isascii()


@given(kind=KINDS, random=RANDOM, place=st.integers(9, 56), other=st.characters())
def test_a_secret_with_one_other_character_is_mistyped(
    kind: SecretKind, random: bytes, place: int, other: str
) -> None:
    secret = secret_of(kind, random)
    changed = secret[:place] + other + secret[place + 1 :]
    assume(changed != secret)
    assert is_mistyped(changed)


@pytest.mark.parametrize("secret", ["sk-" + "A" * 43, "", "anything", "\ud800"])
def test_a_secret_of_before_has_no_checksum(secret: str) -> None:
    assert kind_of(secret) is None
    assert not is_mistyped(secret)


@pytest.mark.slow
@given(first=st.binary(min_size=1), second=st.binary(min_size=1), secret=st.text())
def test_peppers_make_hashes_of_their_own(first: bytes, second: bytes, secret: str) -> None:
    assume(first != second)
    assert Pepper(first).hash(secret) == Pepper(first).hash(secret)
    assert Pepper(first).hash(secret) != Pepper(second).hash(secret)
    assert 0 <= Pepper(first).id < 2**15
