from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.store.packing import pack_ids, pack_text, unpack_ids, unpack_text

ANY_TEXT = st.text(st.characters(exclude_categories=()))


@pytest.mark.slow
@given(ANY_TEXT)
def test_any_text_survives(text: str) -> None:
    assert unpack_text(pack_text(text)) == text


@pytest.mark.slow
@given(st.lists(st.integers(0, 2**32 - 1)))
def test_any_ids_survive_in_four_bytes_each(ids: list[int]) -> None:
    packed = pack_ids(array("I", ids))
    assert len(packed) == 4 * len(ids)
    assert unpack_ids(packed).tolist() == ids


def test_ids_are_little_endian_on_every_machine() -> None:
    assert pack_ids(array("I", [1, 200012])) == b"\x01\x00\x00\x00\x4c\x0d\x03\x00"
