"""Values of JSON are counted as it arrives, however it is cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.egress.transport import ValueCount

TEXT = st.text(st.sampled_from([*'ab,[]{}":\\\n\té']), max_size=8)
JSON = st.recursive(
    st.none() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)
CUTS = st.lists(st.integers(1, 7), max_size=60)


def counted(value: object) -> int:
    """Openers, and a comma between each two."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return 1 + max(0, len(value) - 1) + sum(map(counted, inner))
    return 0


def parts(content: bytes, cuts: list[int]) -> list[bytes]:
    made, at = [], 0
    for size in cuts:
        made.append(content[at : at + size])
        at += size
    return [*made, content[at:]]


@pytest.mark.slow
@given(JSON, CUTS, st.booleans(), st.sampled_from([None, 1]))
def test_a_body_has_as_many_as_it_has(
    value: object, cuts: list[int], is_stream: bool, indent: int | None
) -> None:
    content = json.dumps(value, ensure_ascii=False, indent=indent).encode()
    count = ValueCount(is_stream=is_stream)
    most = max(count.add(part) for part in parts(content, cuts))
    assert most == counted(value) == count.count


@pytest.mark.slow
@given(st.lists(JSON, min_size=1, max_size=4), CUTS)
def test_each_event_of_a_stream_counts_for_itself(values: list[object], cuts: list[int]) -> None:
    content = b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)
    count = ValueCount(is_stream=True)
    most = max(count.add(part) for part in parts(content, cuts))
    assert most == max(map(counted, values))


@pytest.mark.slow
@given(st.binary(max_size=60), CUTS)
def test_anything_is_counted(content: bytes, cuts: list[int]) -> None:
    count = ValueCount(is_stream=False)
    for part in parts(content, cuts):
        count.add(part)
    assert 0 <= count.count <= len(content)
