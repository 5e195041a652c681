from __future__ import annotations

import pytest

from gateway.errors import RateLimited
from gateway.held_bytes import HeldBytes


def test_what_is_held_at_once_is_bounded_and_shared() -> None:
    held = HeldBytes(100, "Too many.")
    with held.one("a") as first, held.one("a") as second, held.one("b") as other:
        first(60)
        second(20)  # all that one tenant may have: four times what is left
        with pytest.raises(RateLimited, match="Too many"):
            second(1)
        with pytest.raises(RateLimited):
            first(1)
        other(20)
        with pytest.raises(RateLimited):
            other(1)
        assert held.of_tenants == {"a": 80, "b": 20}
    assert not held.of_tenants


def test_one_alone_may_have_any_size() -> None:
    held = HeldBytes(100, "Too many.")
    with held.one("a") as alone:
        alone(50)
        alone(1_000)
        with held.one("b") as other, pytest.raises(RateLimited):
            other(1)
