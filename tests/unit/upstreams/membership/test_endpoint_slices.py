"""Slices of a service become the servers that are ready."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.upstreams.membership.endpoint_slices import Endpoint, endpoints
from tests.fakes.api_server import endpoint, slice_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from([
            "metadata", "name", "addressType", "endpoints", "ports", "port", "addresses",
            "conditions", "ready", "targetRef", "kind",
        ]),
        inner,
        max_size=5,
    ),
    max_leaves=12,
)  # fmt: skip


def test_ready_endpoints_are_named_by_their_pods() -> None:
    one = slice_of(
        "s-1", endpoint("10.0.0.2", pod="gpu-1"), endpoint("10.0.0.1", pod="gpu-0"), port=8000
    )
    assert endpoints([one], None) == [
        Endpoint("gpu-0", "10.0.0.1:8000"),
        Endpoint("gpu-1", "10.0.0.2:8000"),
    ]


def test_what_is_not_ready_or_ends_does_not_count() -> None:
    one = slice_of(
        "s-1",
        endpoint("10.0.0.1", ready=False),
        endpoint("10.0.0.2", ready=True, terminating=True),
        endpoint("10.0.0.3", ready=None),
    )
    assert endpoints([one], None) == [Endpoint("10.0.0.3:8000", "10.0.0.3:8000")]


def test_a_pod_with_addresses_of_both_families_is_one_server() -> None:
    four = slice_of("s-4", endpoint("10.0.0.1", pod="gpu-0"))
    six = slice_of("s-6", endpoint("fd00::1", pod="gpu-0"), family="IPv6")
    assert endpoints([six, four], None) == [Endpoint("gpu-0", "10.0.0.1:8000")]
    assert endpoints([six], None) == [Endpoint("gpu-0", "[fd00::1]:8000")]


def test_an_endpoint_that_moves_between_slices_is_one_server() -> None:
    both = [slice_of(name, endpoint("10.0.0.1", pod="gpu-0")) for name in ("s-1", "s-2")]
    assert endpoints(both, None) == [Endpoint("gpu-0", "10.0.0.1:8000")]


def test_of_several_ports_the_one_that_is_asked_for_counts() -> None:
    one = slice_of("s-1", endpoint("10.0.0.1"))
    one["ports"] = [{"name": "metrics", "port": 9000}, {"name": "http", "port": 8000}]
    assert [known.place for known in endpoints([one], 8000)] == ["10.0.0.1:8000"]
    assert [known.place for known in endpoints([one], None)] == ["10.0.0.1:9000"]
    assert endpoints([one], 1234) == []


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["metadata", "addressType", "endpoints", "ports"]),
            JSON | st.sampled_from(["IPv4", "IPv6"]),
        ),
        max_size=3,
    )
)
def test_whatever_a_slice_is_it_is_read(slices: list[dict[str, Any]]) -> None:
    for one in endpoints(slices, None):
        assert ":" in one.place
