from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstreams.sse import FrameTooLarge, SseSplitter


def split(*reads: bytes, frame_bytes_max: int = 1000) -> list[bytes]:
    splitter = SseSplitter(frame_bytes_max)
    found: list[bytes] = []
    for read in reads:
        found += splitter.payloads(splitter.feed(read))
        if len(splitter.rest) > frame_bytes_max:
            raise FrameTooLarge(frame_bytes_max)
    return found


def test_all_events_of_a_read_come_at_once() -> None:
    assert split(b'data: {"a":1}\n\ndata: {"b":2}\n\ndata: [DO') == [b'{"a":1}', b'{"b":2}']


def test_an_event_may_take_many_reads() -> None:
    assert split(b"da", b"ta: x", b"yz\n", b"\n") == [b"xyz"]


def test_comments_and_other_fields_vanish() -> None:
    stream = b": keep-alive\n\nevent: x\nid: 7\ndata: 1\n\n:\n\nretry: 3\n\n"
    assert split(stream) == [b"1"]


def test_a_comment_inside_an_event_vanishes() -> None:
    assert split(b": ping\ndata: 1\n\n") == [b"1"]


def test_several_data_lines_are_joined_with_newlines() -> None:
    assert split(b"data: a\ndata:b\ndata\ndata:  c\n\n") == [b"a\nb\n\n c"]


def test_lines_may_end_in_crlf_or_cr() -> None:
    assert split(b"data: a\r\n\r\ndata: b\r\rdata: c\n\n") == [b"a", b"b", b"c"]


def test_a_crlf_cut_in_two_is_one_line_end() -> None:
    assert split(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == [b"a\nb"]


def test_extra_blank_lines_make_no_events() -> None:
    assert split(b"\n\n\n\ndata: a\n\n\n\n\ndata: b\n\n") == [b"a", b"b"]


def test_data_without_text_makes_no_event() -> None:
    assert split(b"data:\n\ndata: \n\ndata: a\n\n") == [b"a"]


def test_an_unfinished_event_is_never_handed_out() -> None:
    assert split(b"data: a\n") == []


def test_a_line_of_megabytes_passes() -> None:
    line = b"data: " + b"1," * 1_000_000
    reads = [line[i : i + 65_536] for i in range(0, len(line), 65_536)]
    assert split(*reads, b"\n\n", frame_bytes_max=4_000_000) == [line[6:]]


@pytest.mark.parametrize("reads", [[b"data: 123456\n\n"], [b"data: 12", b"3456", b"\n\n"]])
def test_an_event_beyond_the_bound_is_refused_however_it_arrives(reads: list[bytes]) -> None:
    with pytest.raises(FrameTooLarge, match="11 bytes"):
        split(*reads, frame_bytes_max=11)


def test_what_comes_before_an_event_beyond_the_bound_is_handed_out() -> None:
    splitter = SseSplitter(11)
    with pytest.raises(FrameTooLarge) as caught:
        splitter.payloads(splitter.feed(b"data: a\n\ndata: 123456\n\n"))
    assert caught.value.before == [b"a"]


@given(
    st.lists(st.sampled_from([b"data: ab", b"data:c", b": no", b"", b"id: 1"]), max_size=12),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.integers(0, 120), max_size=12),
)
def test_how_a_stream_is_cut_makes_no_difference(
    lines: list[bytes], newline: bytes, cuts: list[int]
) -> None:
    stream = newline.join([*lines, b"", b""])
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reads = [stream[a:b] for a, b in pairwise(edges)]
    assert split(*reads) == split(stream.replace(newline, b"\n"))
