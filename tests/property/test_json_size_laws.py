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


def test_brackets_in_texts_are_no_containers() -> None:
    limits = replace(LIMITS, json_containers_max=1)
    body = orjson.dumps({"a": '[{"' * 100_000})
    assert parse_object(body, limits) == {"a": '[{"' * 100_000}


def test_what_has_too_many_containers_is_not_parsed() -> None:
    limits = replace(LIMITS, json_containers_max=9)
    with pytest.raises(InvalidRequest, match="too many parts"):
        parse_object(b'{"a": ' + b"[" * 100, limits)
