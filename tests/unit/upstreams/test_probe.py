from __future__ import annotations

import pytest

from gateway.upstreams.probe import served_models
from tests.fakes.backend_captures import capture


def test_a_server_tells_its_context_length() -> None:
    assert served_models(capture("get_models").body) == {"gpt-oss-tiny": 8192}


def test_an_adapter_has_its_parents_context_length() -> None:
    assert served_models(capture("l_models").body) == {"gpt-oss-tiny": 8192, "my-adapter": 8192}


def test_a_length_that_is_not_told_is_unknown() -> None:
    orphan = b'{"id":"b","max_model_len":null,"parent":"x"}'
    body = b'{"data":[{"id":"a"},' + orphan + b',{"id":"c","parent":"a"}]}'
    assert served_models(body) == {"a": None, "b": None, "c": None}


@pytest.mark.parametrize(
    "body", [b"", b"nonsense", b"[]", b"{}", b'{"data":{}}', b'{"data":[1,{"id":2},{}]}']
)
def test_what_lists_no_models_lists_none(body: bytes) -> None:
    assert served_models(body) == {}


@pytest.mark.parametrize("length", [b"true", b"0", b"-5", b'"8"', b"1.5"])
def test_only_a_positive_number_is_a_length(length: bytes) -> None:
    assert served_models(b'{"data":[{"id":"a","max_model_len":' + length + b"}]}") == {"a": None}
