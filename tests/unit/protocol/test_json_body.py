from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.errors import InvalidRequest
from gateway.protocol.json_body import VALUES_MAX, InputLimits, parse_object
from tests.fakes.cases import each
from tests.fakes.create_bodies import LIMITS


@each(
    "body",
    [
        b"",
        b"{",
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": "\\ud83d"}',
        b'{"a": "\xff"}',
        b'{"a": 1,}',
        b"\x00",
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b"[" * 100_000,
    ],
)
def test_what_is_no_json_is_refused_without_a_code(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="could not parse the JSON body") as caught:
        parse_object(body, LIMITS)
    assert caught.value.code is None
    assert caught.value.param is None


@pytest.mark.parametrize("body", [b"[]", b"1", b"null", b'"x"', b"true"])
def test_json_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="it is not a JSON object") as caught:
        parse_object(body, LIMITS)
    assert caught.value.code is None


def test_of_duplicate_keys_the_last_wins() -> None:
    assert parse_object(b'{"a": 1, "a": 2}', LIMITS) == {"a": 2}


def test_nul_and_paired_surrogates_are_text() -> None:
    assert parse_object(b'{"a": "\\u0000 \\ud83d\\ude00"}', LIMITS) == {"a": "\0 \U0001f600"}


def _nested(depth: int) -> bytes:
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def test_nesting_is_allowed_up_to_the_bound() -> None:
    limits = replace(LIMITS, json_depth_max=10)
    assert parse_object(_nested(10), limits)
    with pytest.raises(InvalidRequest, match="Expected at most 10 levels"):
        parse_object(_nested(11), limits)


def test_nesting_is_bounded_wherever_in_a_wide_body_it_is() -> None:
    limits = replace(LIMITS, json_depth_max=3)
    wide: list[Any] = [[] for _ in range(3 * 1_000)]
    assert parse_object(orjson.dumps({"a": wide}), limits) == {"a": wide}
    wide[-1] = [[]]
    with pytest.raises(InvalidRequest, match="Expected at most 3 levels"):
        parse_object(orjson.dumps({"a": wide}), limits)


def test_what_is_read_can_be_written_again() -> None:
    depth = InputLimits().json_depth_max
    assert orjson.dumps(parse_object(_nested(depth), InputLimits())) == _nested(depth)


def test_containers_are_allowed_up_to_the_bound() -> None:
    limits = replace(LIMITS, json_containers_max=4)
    assert parse_object(b'{"a": [{}, {}]}', limits)
    with pytest.raises(InvalidRequest, match="at most 4 objects and arrays"):
        parse_object(b'{"a": [{}, {}, {}]}', limits)


def test_a_body_of_too_many_values_is_refused_before_it_is_parsed() -> None:
    body = b'{"a":[' + b"0," * VALUES_MAX + b"0]}"
    with pytest.raises(InvalidRequest, match="too many parts"):
        parse_object(body, LIMITS)


def test_signs_within_text_are_no_values() -> None:
    text = "," * (VALUES_MAX + 1)
    assert parse_object(orjson.dumps({"a": text}), LIMITS) == {"a": text}
