"""The header that makes it safe to send a request again."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.protocol.responses.create_request import (
    RequestKey,
    refuse_key,
    request_key,
    reused_key,
)
from tests.fakes.cases import each

BODY = b'{"model": "m", "input": "x"}'


def refusal(*values: bytes, store: bool = True) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        request_key(values, BODY, store=store)
    assert caught.value.param == "Idempotency-Key"
    return caught.value


@pytest.mark.parametrize("store", [True, False])
def test_without_the_header_there_is_no_key(store: bool) -> None:
    assert request_key((), BODY, store=store) is None


def test_a_key_and_its_body_are_kept_as_digests() -> None:
    expected = RequestKey(sha256(b"k-1").digest(), sha256(BODY).digest())
    assert request_key([b"k-1"], BODY, store=True) == expected


@pytest.mark.slow
@given(st.lists(st.integers(0x21, 0x7E), min_size=1, max_size=255).map(bytes))
def test_visible_ascii_is_a_key_and_is_kept_as_a_digest(key: bytes) -> None:
    expected = RequestKey(sha256(key).digest(), sha256(BODY).digest())
    assert request_key([key], BODY, store=True) == expected


@each("key", [b"", b" ", b"a b", b"a\t", "schlüssel".encode(), b"\x7f", b"k" * 256, b"a\n"])
def test_anything_else_is_none(key: bytes) -> None:
    assert refusal(key).code == "invalid_value"


def test_two_keys_are_none() -> None:
    assert refusal(b"a", b"a").code == "invalid_value"


def test_what_is_not_kept_cannot_be_returned_again() -> None:
    refused = refusal(b"a", store=False)
    assert refused.code == "unsupported_parameter"
    assert "store" in refused.message


def test_a_key_of_another_request_is_refused_by_a_code_of_its_own() -> None:
    assert reused_key().code == "idempotency_key_reused"


def test_a_key_is_refused_where_it_would_not_be_kept() -> None:
    refuse_key([(b"content-type", b"application/json")])
    with pytest.raises(InvalidRequest) as refusal:
        refuse_key([(b"idempotency-key", b"k")])
    assert (refusal.value.code, refusal.value.param) == ("unsupported_parameter", "Idempotency-Key")
