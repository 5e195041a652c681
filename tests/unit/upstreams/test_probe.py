from __future__ import annotations

import orjson
import pytest

from gateway.upstreams.backend import Listed
from gateway.upstreams.probe import NAME_CHARS_MAX, served_models
from tests.fakes.backend_captures import capture


def test_a_server_tells_its_context_length() -> None:
    assert served_models(capture("get_models").body) == {"gpt-oss-tiny": Listed(8192)}


def test_an_adapter_has_its_parents_context_length() -> None:
    assert served_models(capture("l_models").body) == {
        "gpt-oss-tiny": Listed(8192),
        "my-adapter": Listed(8192, parent="gpt-oss-tiny", root="MODEL_DIR"),
    }


def test_a_length_that_is_not_told_is_unknown() -> None:
    orphan = b'{"id":"b","max_model_len":null,"parent":"x"}'
    body = b'{"data":[{"id":"a"},' + orphan + b',{"id":"c","parent":"a"}]}'
    assert served_models(body) == {"a": Listed(), "b": Listed(None, "x"), "c": Listed(None, "a")}


def test_a_model_that_is_its_own_parent_is_no_adapter() -> None:
    body = b'{"data":[{"id":"a","parent":"a","max_model_len":9}]}'
    assert served_models(body) == {"a": Listed(9)}


@pytest.mark.parametrize(
    "body", [b"", b"nonsense", b"[]", b"{}", b'{"data":{}}', b'{"data":[1,{"id":2},{}]}']
)
def test_what_lists_no_models_lists_none(body: bytes) -> None:
    assert served_models(body) == {}


@pytest.mark.parametrize("length", [b"true", b"0", b"-5", b'"8"', b"1.5"])
def test_only_a_positive_number_is_a_length(length: bytes) -> None:
    body = b'{"data":[{"id":"a","max_model_len":' + length + b"}]}"
    assert served_models(body) == {"a": Listed()}


def test_names_that_no_log_line_can_hold_are_left_out() -> None:
    name, longer = "n" * NAME_CHARS_MAX, "n" * (NAME_CHARS_MAX + 1)
    rows = [
        {"id": name},
        {"id": longer},
        {"id": "a", "parent": name, "root": longer},
        {"id": "b", "parent": longer},
    ]
    listed = {name: Listed(), "a": Listed(None, name), "b": Listed()}
    assert served_models(orjson.dumps({"data": rows})) == listed
