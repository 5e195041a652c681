from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.access.client_address import client_address, is_from_proxy, is_in
from tests.fakes.cases import each

PROXIES = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]


def scope(client: str | None, *forwarded: str) -> dict[str, Any]:
    headers = [(b"x-forwarded-for", line.encode("latin-1")) for line in forwarded]
    return {"client": None if client is None else (client, 1), "headers": headers}


@each(
    ("client", "forwarded", "found"),
    [
        ("203.0.113.9", (), "203.0.113.9"),
        ("203.0.113.9", ("198.51.100.7",), "203.0.113.9"),
        ("10.0.0.1", ("198.51.100.7",), "198.51.100.7"),
        ("10.0.0.1", ("192.0.2.1, 198.51.100.7",), "198.51.100.7"),
        ("10.0.0.1", ("192.0.2.1, 198.51.100.7, 10.9.9.9",), "198.51.100.7"),
        ("10.0.0.1", ("192.0.2.1", "198.51.100.7"), "198.51.100.7"),
        ("10.0.0.1", ("198.51.100.7:4711",), "198.51.100.7"),
        ("10.0.0.1", ("[2001:db8::1]:4711",), "2001:db8::1"),
        ("10.0.0.1", ("192.0.2.1, unknown",), None),
        ("10.0.0.1", (), "10.0.0.1"),
        ("10.0.0.1", ("10.0.0.2",), "10.0.0.2"),
        ("fd00::1", ("::ffff:198.51.100.7",), "198.51.100.7"),
        ("/run/socket", ("198.51.100.7",), None),
        (None, ("198.51.100.7",), None),
    ],
)
def test_the_client_is_the_last_that_no_trusted_proxy_is(
    client: str | None, forwarded: tuple[str, ...], found: str | None
) -> None:
    told = client_address(scope(client, *forwarded), PROXIES)
    assert told == (None if found is None else ip_address(found))


@pytest.mark.parametrize(
    ("client", "is_trusted"), [("10.0.0.1", True), ("203.0.113.9", False), (None, False)]
)
def test_who_connects_is_a_proxy_whatever_it_forwards(client: str | None, is_trusted: bool) -> None:
    assert is_from_proxy(scope(client, "10.0.0.2"), PROXIES) is is_trusted
    assert not is_from_proxy(scope(client, "10.0.0.2"), ())


@pytest.mark.slow
@given(st.lists(st.text(st.characters(max_codepoint=255)), max_size=4))
def test_whatever_is_forwarded_is_an_address_or_nothing(forwarded: list[str]) -> None:
    told = client_address(scope("10.0.0.1", *forwarded), PROXIES)
    assert told is None or ip_address(str(told)) == told


def test_an_address_is_in_a_network_of_its_own_version() -> None:
    assert is_in(ip_address("10.1.2.3"), PROXIES)
    assert not is_in(ip_address("2001:db8::1"), PROXIES)
