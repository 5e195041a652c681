"""The frames of a run are those of its events, byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.api import sse, sse_runs
from gateway.protocol.deltas import Deltas
from gateway.protocol.showing import DeltaPattern

if TYPE_CHECKING:
    from gateway.api.sse import Encode

PATTERN = DeltaPattern(
    "response.output_text.delta",
    b'{"type":"response.output_text.delta","sequence_number":',
    b',"item_id":"msg_100%d%b","delta":',
    b',"logprobs":[]}',
)
LONGER_THAN_THE_POOL = ["x" * (number % 19 + 1) for number in range(9_000)]

_texts = st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=20)
_numbers = st.integers(0, 20_000) | st.integers(990, 1_010) | st.integers(8_160, 8_180)


@pytest.mark.parametrize("encode", [sse.plain, sse.obfuscated])
@example(LONGER_THAN_THE_POOL, 5)
@example(LONGER_THAN_THE_POOL, 8_170)
@example(['a",', "\\x7f", ",", '"', "\\", "\\"], 998)
@example([",\x7f", "b"], 9_999)
@given(_texts, _numbers)
def test_a_run_is_written_as_its_events_are(encode: Encode, texts: list[str], number: int) -> None:
    deltas = Deltas(PATTERN, number, texts)
    assert sse_runs.ENCODERS[encode](deltas) == b"".join(map(encode, deltas))
