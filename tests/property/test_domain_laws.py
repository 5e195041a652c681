"""Which domains tools may reach, for all lists of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.grants import EVERY_DOMAIN, DomainRules, is_within

LABELS = st.sampled_from(["a", "b", "www", "example", "xn--bcher-kva"])
HOSTS = st.lists(LABELS, min_size=1, max_size=4).map(".".join)
LISTS = st.lists(HOSTS, max_size=3).map(tuple)


@given(HOSTS, HOSTS)
def test_a_host_is_within_itself_and_what_is_above_it(host: str, above: str) -> None:
    assert is_within(host, [host])
    assert is_within(f"{host}.{above}", [above])
    assert is_within(f"{host.upper()}.", [host])
    assert not is_within(f"evil{host}", [host])
    assert is_within(host, [])


@pytest.mark.slow
@given(HOSTS, LISTS, LISTS)
def test_what_is_denied_is_denied_whatever_is_allowed(
    host: str, allowed: tuple[str, ...], denied: tuple[str, ...]
) -> None:
    rules = DomainRules(allowed, denied)
    expected = is_within(host, allowed) and not any(is_within(host, [one]) for one in denied)
    assert rules.permits(host) == expected
    assert EVERY_DOMAIN.permits(host)
    assert not DomainRules((), (host,)).permits(f"below.{host}")
    assert DomainRules.from_policy(" ".join(allowed), " ".join(denied)) == rules
