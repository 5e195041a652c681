"""Frames: their bytes, their padding, and that none is ever split."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.api import sse
from gateway.json_output import one_line
from gateway.protocol.stream_events import DeltaPattern, Deltas, Event

if TYPE_CHECKING:
    from gateway.api.sse import Encoder

PATTERN = DeltaPattern(
    "response.output_text.delta",
    b'{"type":"response.output_text.delta","sequence_number":',
    b',"item_id":"msg_100%d%b","delta":',
    b',"logprobs":[]}',
)
LONGER_THAN_THE_POOL = ["x" * (number % 19 + 1) for number in range(9_000)]

LINE_ENDS = "\u2028\u2029\x85"
_text = st.text(min_size=1, max_size=40) | st.text(LINE_ENDS + "a\\“", min_size=1, max_size=9)
_texts = st.lists(_text, min_size=1, max_size=20)
_numbers = st.integers(0, 20_000) | st.integers(990, 1_010) | st.integers(8_160, 8_180)


def delta(number: int, text: str = "hi") -> Event:
    body = {"type": "response.output_text.delta", "sequence_number": number, "delta": text}
    return Event("response.output_text.delta", number, orjson.dumps(body), delta_length=len(text))


@pytest.mark.requirement("stream.frames")
def test_a_frame_is_two_lines_and_a_blank_one() -> None:
    event = Event("response.created", 0, b'{"type":"response.created"}')
    expected = b'event: response.created\ndata: {"type":"response.created"}\n\n'
    assert sse.obfuscated(event) == expected


@pytest.mark.requirement("padding.size")
@given(st.text(max_size=80))
def test_padding_evens_out_the_size_of_deltas(text: str) -> None:
    framed = sse.obfuscated(delta(1, text))
    data = orjson.loads(framed.split(b"data: ", 1)[1])
    if text:
        assert (len(text) + len(data["obfuscation"])) % sse.PADDING_STEP == 0
        assert data["obfuscation"]
    assert data["delta"] == text


@given(st.text(max_size=80), st.integers(0, 10**6))
def test_a_frame_holds_what_is_padded_anywhere_else(text: str, number: int) -> None:
    event = delta(number, text)
    data = one_line(sse.padded(event.data, event))
    assert sse.obfuscated(event).split(b"data: ", 1)[1] == data + b"\n\n"


@pytest.mark.requirement("padding.off")
def test_padding_can_be_switched_off() -> None:
    assert b"obfuscation" not in sse.plain(delta(1))


def test_padding_follows_from_the_event_alone() -> None:
    event = delta(41, "a")
    assert sse.obfuscated(event) == sse.obfuscated(event)
    framed = sse.obfuscated(event)
    assert orjson.loads(framed.split(b"data: ", 1)[1])["obfuscation"] == "jcYRNgCq8j_qLGx"


@given(st.integers(0, 10**6))
def test_neighbours_have_different_padding(number: int) -> None:
    """Or compression on the way would take it out again."""
    paddings = {
        orjson.loads(sse.obfuscated(delta(near, "a")).split(b"data: ", 1)[1])["obfuscation"]
        for near in range(number, number + 64)
    }
    assert len(paddings) == 64


@pytest.mark.slow
@pytest.mark.requirement("stream.one-write")
@pytest.mark.requirement("traps.whole-events")
@given(st.lists(st.integers(0, 400), max_size=30), st.integers(1, 2000))
def test_writes_hold_whole_frames_in_order(sizes: list[int], bytes_max: int) -> None:
    events = [delta(number, "x" * size) for number, size in enumerate(sizes)]
    chunks = list(sse.writes(events, sse.plain, bytes_max=bytes_max))
    frames = [sse.plain(event) for event in events]
    assert b"".join(chunks) == b"".join(frames)
    for chunk in chunks:
        assert chunk.endswith(b"\n\n")
        assert len(chunk) <= bytes_max or chunk in frames


@pytest.mark.requirement("stream.end")
def test_the_end_mark_follows_the_terminal_event_in_the_same_write() -> None:
    terminal = Event("response.completed", 3, b"{}")
    (chunk,) = sse.writes([delta(2), terminal], sse.plain, bytes_max=10_000)
    assert chunk.endswith(sse.DONE)
    assert chunk.count(sse.DONE) == 1


def test_no_header_belongs_to_one_connection_only() -> None:
    names = {name for name, _ in sse.HEADERS}
    assert not names & {b"connection", b"keep-alive", b"transfer-encoding"}  # RFC 9113 8.2.2


@pytest.mark.slow
@pytest.mark.parametrize("encoder", [sse.PLAIN, sse.OBFUSCATED])
@example(LONGER_THAN_THE_POOL, 5)
@example(LONGER_THAN_THE_POOL, 8_170)
@example(['a",', "\\x7f", ",", '"', "\\", "\\"], 998)
@example([",\x7f", "b"], 9_999)
@example([*LINE_ENDS, "\x7f"], 9_999)
@given(_texts, _numbers)
def test_a_run_is_written_as_its_events_are(
    encoder: Encoder, texts: list[str], number: int
) -> None:
    deltas = Deltas(PATTERN, number, texts)
    assert encoder.run(deltas) == b"".join(map(encoder.event, deltas))


@pytest.mark.slow
@pytest.mark.parametrize("encoder", [sse.PLAIN, sse.OBFUSCATED])
@example([LINE_ENDS, "a"], 1)
@example([LINE_ENDS, "\x7f"], 1)
@given(_texts, _numbers)
def test_every_reader_of_lines_sees_the_same_ones(
    encoder: Encoder, texts: list[str], number: int
) -> None:
    """`str.splitlines` and readers made of it end a line where SSE does not."""
    whole = Event("response.created", 0, orjson.dumps({"instructions": "".join(texts)}))
    frames = [
        encoder.event(whole),
        encoder.run(Deltas(PATTERN, number, texts)),
        *(encoder.event(delta(number, text)) for text in texts),
        sse.unnamed([orjson.dumps(text) for text in texts]),
    ]
    stream = b"".join(frames).decode()
    assert stream.splitlines() == stream.split("\n")[:-1]
