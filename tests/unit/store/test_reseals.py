"""How far resealing has come, as it is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.store.resealing import KEYS, packed_place, unpacked_place

if TYPE_CHECKING:
    from gateway.store.resealing import Place

VALUES: Final = {
    "uuid": st.uuids(),
    "bytea": st.binary(max_size=9),
    "date": st.dates(),
    **dict.fromkeys(("integer", "smallint", "bigint"), st.integers(0, 2**31)),
}
places = st.sampled_from(sorted(KEYS)).flatmap(
    lambda table: st.tuples(
        st.just(table), st.tuples(*(VALUES[kind] for kind in KEYS[table].values()))
    )
)


@pytest.mark.slow
@given(places)
def test_a_place_is_read_as_it_was_kept(one: tuple[str, Place]) -> None:
    table, place = one
    assert unpacked_place(table, packed_place(place)) == place
    assert unpacked_place(table, packed_place(None)) is None
