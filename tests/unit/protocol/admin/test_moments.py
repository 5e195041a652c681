"""Seconds of the admin API as moments, and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.admin_bodies import SECOND_MAX, moment_of, seconds_of


@given(st.integers(0, 1 << 63))
def test_seconds_come_back_up_to_the_last_that_there_is(second: int) -> None:
    assert seconds_of(moment_of(second)) == min(second, SECOND_MAX)


def test_no_moment_is_null() -> None:
    assert seconds_of(None) is None
