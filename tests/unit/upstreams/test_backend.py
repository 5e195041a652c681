from __future__ import annotations

import pytest

from gateway.upstreams.backend import DP_RANK, Backend
from gateway.upstreams.http.client import HEADERS_ALLOWED


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("http://gpu-1:8000", "http://gpu-1:8000/v1/models"),
        ("http://gpu-1:8000/", "http://gpu-1:8000/v1/models"),
        ("http://gpu-1:8000/v1", "http://gpu-1:8000/v1/models"),
        ("http://gpu-1:8000/v1/", "http://gpu-1:8000/v1/models"),
        ("https://host/vllm/v1", "https://host/vllm/v1/models"),
    ],
)
def test_a_base_url_may_end_in_v1(base: str, url: str) -> None:
    assert str(Backend("a", base).url("/v1/models")) == url


def test_the_key_is_sent_as_a_bearer_token_and_not_shown() -> None:
    backend = Backend("a", "http://h", api_key="hush")
    assert backend.headers() == {"authorization": "Bearer hush"}
    assert "hush" not in repr(backend)


def test_without_a_key_nothing_is_sent() -> None:
    assert Backend("a", "http://h").headers() == {}


def test_a_rank_is_named_in_a_header_that_may_leave() -> None:
    backend = Backend("a", "http://h", api_key="k", dp_rank=0)
    assert backend.headers() == {"authorization": "Bearer k", DP_RANK: "0"}
    assert set(backend.headers()) <= HEADERS_ALLOWED
