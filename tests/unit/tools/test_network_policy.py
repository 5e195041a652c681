"""Which addresses and URLs a tool may reach."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.egress.network_policy import EgressRefused, NetworkPolicy, is_public
from tests.fakes.cases import each

PUBLIC = NetworkPolicy()
OURS = NetworkPolicy(
    networks=(ip_network("127.0.0.1/32"), ip_network("10.1.0.0/16")),
    network_ports=frozenset({8080}),
)
INSIDE = [
    "127.0.0.1", "127.8.9.10", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1",
    "255.255.255.255",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::7f00:1", "fe80::1", "fe80::1%eth0",
    "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1", "64:ff9b::7f00:1",
    "64:ff9b:1::1", "2002:7f00:1::", "2002:101:101::1", "2001:0:7f00:1::", "not an address",
    "168.63.129.16", "::ffff:168.63.129.16", "::ffff:0:7f00:1", "1234::1", "4000::1", "5f00::1",
]  # fmt: skip
OUTSIDE = ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "64:ff9b::101:101"]


@each("address", INSIDE)
def test_address_inside_is_refused(address: str) -> None:
    assert not PUBLIC.allows(address, 443)


@pytest.mark.parametrize("address", OUTSIDE)
def test_public_address_is_allowed(address: str) -> None:
    assert PUBLIC.allows(address, 443)
    assert not PUBLIC.allows(address, 22)


@given(st.integers(0, 2**32 - 1).map(IPv4Address))
def test_no_embedding_makes_an_address_public(inner: IPv4Address) -> None:
    number = int(inner)
    spellings = [
        IPv6Address((0xFFFF << 32) + number),
        IPv6Address((0x64FF9B << 96) + number),
        IPv6Address((0x2002 << 112) + (number << 80)),
    ]
    for spelling in spellings:
        assert not is_public(spelling) or is_public(inner)


def test_mixed_addresses_are_refused_as_a_whole() -> None:
    with pytest.raises(EgressRefused) as raised:
        PUBLIC.checked("a.example", ("1.1.1.1", "10.0.0.1"), 443)
    assert raised.value.reason == "address"
    assert "10.0.0.1" not in str(raised.value)
    with pytest.raises(EgressRefused):
        PUBLIC.checked("a.example", (), 443)


def test_network_of_the_operator_is_reachable_at_its_ports() -> None:
    assert OURS.allows("10.1.2.3", 8080)
    assert OURS.allows("::ffff:127.0.0.1", 8080)
    assert not OURS.allows("10.1.2.3", 443)
    assert not OURS.allows("10.2.0.1", 8080)
    assert OURS.origin("http://tools.internal:8080/").port == 8080
    assert NetworkPolicy(networks=OURS.networks).allows("10.1.2.3", 22)


def test_host_of_the_operator_is_reachable_wherever_it_leads() -> None:
    policy = NetworkPolicy(hosts=frozenset({("search.internal", 8080)}))
    assert policy.origin("http://Search.Internal:8080/q").host == "search.internal"
    assert policy.checked("search.internal", ("10.0.0.1",), 8080) == ("10.0.0.1",)
    for host, port in (("search.internal", 443), ("other.internal", 8080)):
        with pytest.raises(EgressRefused):
            policy.checked(host, ("10.0.0.1",), port)
    with pytest.raises(EgressRefused):
        policy.origin("http://other.internal:8080/")


@each(
    ("url", "reason"),
    [
        ("ftp://example.com/", "scheme"),
        ("file:///etc/passwd", "scheme"),
        ("data:text/plain,x", "scheme"),
        ("example.com", "scheme"),
        ("http://user@example.com/", "userinfo"),
        ("http://user:secret@example.com/", "userinfo"),
        ("http://@example.com/", "userinfo"),
        ("http:///path", "host"),
        ("http://[::1", "host"),
        ("http://example.com:99999/", "host"),
        (f"http://{'a' * 254}/", "host"),
        (f"http://example.com/{'a' * 2048}", "host"),
        ("http://example.com:22/", "port"),
        ("https://example.com:0/", "port"),
    ],
)
def test_url_is_refused(url: str, reason: str) -> None:
    with pytest.raises(EgressRefused) as raised:
        PUBLIC.origin(url)
    assert raised.value.reason == reason


def test_redirect_keeps_tls() -> None:
    origin = PUBLIC.origin("https://Example.com/a")
    assert (origin.scheme, origin.host, origin.port) == ("https", "example.com", 443)
    assert PUBLIC.redirected(origin, "https://other.example/").host == "other.example"
    with pytest.raises(EgressRefused) as raised:
        PUBLIC.redirected(origin, "http://example.com/")
    assert raised.value.reason == "redirect"
    with pytest.raises(EgressRefused):
        NetworkPolicy(plain_http=False).origin("http://example.com/")
