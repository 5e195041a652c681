"""JSON on one line: what it holds, and that no reader cuts it."""

from __future__ import annotations

import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.json_output import one_line

LINE_ENDS = "\u2028\u2029\x85"
# Neighbours of the three, whose bytes are nearly theirs.
_texts = st.text() | st.text(alphabet=LINE_ENDS + "\u2027\u202a\u0084\u0086“—\\\n\r\x0b\x1c\x7f💖")


@example(LINE_ENDS)
@example(f"\\{LINE_ENDS[0]}")
@given(_texts)
def test_json_of_any_text_is_one_line_with_the_same_content(text: str) -> None:
    encoded = one_line(orjson.dumps({text: text}))
    assert len(encoded.decode().splitlines()) == 1
    assert orjson.loads(encoded) == {text: text}


def test_nothing_else_is_escaped() -> None:
    encoded = orjson.dumps("“quoted” — naïve 💖")
    assert one_line(encoded) == encoded
