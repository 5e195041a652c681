"""Laws of the look at a body before it is parsed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.protocol import json_body
from gateway.protocol.json_body import parse_object
from tests.fakes.create_bodies import LIMITS
from tests.fakes.examples import examples

_text = st.text(st.sampled_from('\\"[{}]a/\n') | st.characters(exclude_categories=["Cs"]))
_values = st.recursive(
    st.none() | st.integers(0, 9) | _text,
    lambda inner: st.lists(inner) | st.dictionaries(_text, inner),
    max_leaves=12,
)


def containers(value: Any) -> int:
    match value:
        case dict():
            return 1 + sum(map(containers, value.values()))
        case list():
            return 1 + sum(map(containers, value))
        case _:
            return 0


def values(value: Any) -> int:
    """Behind the first one of each container, and with what names cost."""
    match value:
        case dict():
            names = (json_body.MEMBER_VALUES - 1) * len(value)
            return names + max(0, len(value) - 1) + sum(map(values, value.values()))
        case list():
            return max(0, len(value) - 1) + sum(map(values, value))
        case _:
            return 0


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(st.dictionaries(_text, _values), st.integers(1, 7))
@example({"\\": "[" * 9, '"': ['\\"{', "\\\\"]}, 1)
def test_exactly_what_has_too_many_containers_is_refused(
    document: dict[str, Any], piece_bytes: int
) -> None:
    body, count = orjson.dumps(document), containers(document)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_body, "PIECE_BYTES", piece_bytes)
        assert parse_object(body, replace(LIMITS, json_containers_max=count)) == document
        with pytest.raises(InvalidRequest, match=f"at most {count - 1} objects and arrays"):
            parse_object(body, replace(LIMITS, json_containers_max=count - 1))


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(st.dictionaries(_text, _values, min_size=1), st.integers(1, 7))
@example({"\\": ":" * 9, '"': ['\\",', "\\\\"]}, 1)
def test_exactly_what_has_too_many_values_is_refused(
    document: dict[str, Any], piece_bytes: int
) -> None:
    body, count = orjson.dumps(document), values(document)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_body, "PIECE_BYTES", piece_bytes)
        patched.setattr(json_body, "VALUES_MAX", count)
        assert parse_object(body, LIMITS) == document
        patched.setattr(json_body, "VALUES_MAX", count - 1)
        with pytest.raises(InvalidRequest, match=f"at most {count - 1} values"):
            parse_object(body, LIMITS)


@pytest.mark.slow
@pytest.mark.parametrize("piece", [b"1,", b'"",', b'"":1,'])
def test_what_has_too_many_values_is_not_parsed(piece: bytes) -> None:
    with pytest.raises(InvalidRequest, match="too many parts"):
        parse_object(b'{"a": [' + piece * json_body.VALUES_MAX, LIMITS)


def test_signs_in_texts_are_neither_containers_nor_values() -> None:
    limits = replace(LIMITS, json_containers_max=1)
    text = '[{":,' * 500_000
    assert parse_object(orjson.dumps({"a": text}), limits) == {"a": text}


def test_what_has_too_many_containers_is_not_parsed() -> None:
    limits = replace(LIMITS, json_containers_max=9)
    with pytest.raises(InvalidRequest, match="too many parts"):
        parse_object(b'{"a": ' + b"[" * 100, limits)
