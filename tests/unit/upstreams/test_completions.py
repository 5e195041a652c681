from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ContextOverflow, UpstreamFailed, UpstreamRejected, UpstreamUnavailable
from gateway.generation import LOGPROB_MIN, FinishReason, Sampling, TokenLogprob
from gateway.upstreams.chat_endpoint import ChatReader
from gateway.upstreams.http.connection import ResponseReader
from gateway.upstreams.problems import BackendBusy, BrokeDown, NoTokenIds, PathNotFound
from gateway.upstreams.token_readers import (
    SLICE_BYTES,
    CompletionReader,
    GenerateReader,
    Misaligned,
    SseSplitter,
    aligned_logprobs,
)
from tests.fakes.backend_captures import capture, names
from tests.fakes.cases import each
from tests.fakes.chunks import chunk_of

if TYPE_CHECKING:
    from gateway.errors import UpstreamError

STOP_IDS = (200002, 200012, 199999)


def reader_of(
    max_tokens: int = 1000, *, logprobs: int | None = None, constrained: bool = False
) -> CompletionReader:
    return CompletionReader(
        "gpu-1",
        Sampling(max_tokens=max_tokens, logprobs=logprobs),
        stop_ids=STOP_IDS,
        frame_bytes_max=10**6,
        constrained=constrained,
    )


def event(ids: object = (), finish: object = None, **fields: object) -> bytes:
    choice = {"index": 0, "text": "?", "finish_reason": finish, "token_ids": ids}
    return b"data: " + orjson.dumps({"choices": [choice], **fields}) + b"\n\n"


def told(ids: list[int], **fields: object) -> dict[str, object]:
    """The logprobs of an event: every id is the likeliest, and the next one impossible."""
    return {
        "tokens": [f"token_id:{i}" for i in ids],
        "token_logprobs": [-0.5] * len(ids),
        "top_logprobs": [{f"token_id:{i}": -0.5, f"token_id:{i + 1}": None} for i in ids],
        **fields,
    }


def told_event(ids: list[int], finish: object = None, **fields: object) -> bytes:
    choice = {"finish_reason": finish, "token_ids": ids, "logprobs": told(ids, **fields)}
    return b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n"


def usage(cached: object = None) -> bytes:
    details = {"prompt_tokens_details": {"cached_tokens": cached}}
    return b"data: " + orjson.dumps({"choices": [], "usage": details}) + b"\n\n"


def failure(code: object = 500, message: str = "oops") -> bytes:
    return b"data: " + orjson.dumps({"error": {"message": message, "code": code}}) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def fault_after(*reads: bytes) -> UpstreamError | None:
    reader = reader_of()
    for read in reads:
        reader.feed(read)
        while reader.has_more:
            reader.go_on()
    return reader.fault


def test_all_ids_of_a_read_come_in_one_chunk() -> None:
    assert reader_of().feed(event([1]) + event([2, 3]) + event([]) + event([4])) == chunk_of(
        [1, 2, 3, 4]
    )


def test_a_read_without_ids_is_no_chunk() -> None:
    assert reader_of().feed(b": keep-alive\n\n" + event([])) is None


def test_ids_do_not_wait_for_the_token_counts_but_the_finish_does() -> None:
    reader = reader_of()
    assert reader.feed(event([1, 200002], "stop")) == chunk_of([1, 200002])
    assert reader.finish is not None
    assert not reader.finished
    assert reader.feed(usage(cached=16)) == chunk_of([], FinishReason.STOP, 16)
    assert reader.finished


def test_a_turn_that_comes_in_one_read_is_one_chunk() -> None:
    read = event([1]) + event([2], "length") + usage(3) + DONE
    assert reader_of().feed(read) == chunk_of([1, 2], FinishReason.LENGTH, 3)


def test_without_token_counts_the_finish_comes_with_done() -> None:
    reader = reader_of()
    reader.feed(event([1], "stop"))
    assert reader.feed(DONE) == chunk_of([], FinishReason.STOP)


def test_without_anything_more_the_finish_comes_with_the_end() -> None:
    reader = reader_of()
    reader.feed(event([1], "stop"))
    assert reader.end("gone") == chunk_of([], FinishReason.STOP)


def test_counts_in_every_event_do_not_end_the_turn() -> None:
    reader = reader_of()
    details = {"prompt_tokens_details": {"cached_tokens": 5}}
    assert reader.feed(event([1], usage=details)) == chunk_of([1])
    assert reader.feed(event([2], "stop", usage=None)) == chunk_of([2])
    assert reader.feed(DONE) == chunk_of([], FinishReason.STOP, 5)


@pytest.mark.parametrize("more", [event([2]), event([2], "length"), event([200002], "stop")])
def test_ids_after_the_finish_are_not_part_of_the_turn_and_end_it(more: bytes) -> None:
    reader = reader_of()
    assert reader.feed(event([1], "stop") + more + usage(5)) == chunk_of([1], FinishReason.STOP)
    assert (reader.finished, reader.overran) == (True, True)


def test_a_second_finish_reason_is_none() -> None:
    reader = reader_of()
    read = event([1], "stop") + event([], "length") + usage(5)
    assert reader.feed(read) == chunk_of([1], FinishReason.STOP, 5)
    assert not reader.overran


@pytest.mark.parametrize(
    ("reads", "kept"),
    [
        ([event([1, 2, 3, 4])], [1, 2, 3]),
        ([event([1, 2]), event([3, 4], "stop")], [1, 2, 3]),
        ([event([1]), event([2]), event([3]), event([4])], [1, 2, 3]),
        ([event([1]) + event([2]) + event([3]) + event([4]) + event([5])], [1, 2, 3]),
        ([event([1, 2, 3]), event([]), event([4])], [1, 2, 3]),
    ],
)
def test_ids_beyond_those_asked_for_are_cut_off_and_end_the_turn(
    reads: list[bytes], kept: list[int]
) -> None:
    reader = reader_of(3)
    chunks = [chunk for read in reads if (chunk := reader.feed(read)) is not None]
    assert [i for chunk in chunks for i in chunk.ids] == kept
    assert chunks[-1].finish is FinishReason.LENGTH
    assert (reader.finished, reader.overran, reader.ids_left) == (True, True, 0)


def test_a_stop_id_that_came_last_is_the_end_though_more_follows() -> None:
    assert reader_of(2).feed(event([1, 200002, 9])) == chunk_of([1, 200002], FinishReason.STOP)


def test_logprobs_are_cut_off_with_their_ids() -> None:
    chunk = reader_of(2, logprobs=0).feed(told_event([1, 2, 3]))
    assert chunk is not None
    assert chunk.logprobs is not None
    assert (chunk.ids, len(chunk.logprobs)) == ([1, 2], 2)


def knowing_reader() -> CompletionReader:
    return CompletionReader(
        "gpu-1", Sampling(max_tokens=9), stop_ids=STOP_IDS, frame_bytes_max=10**6, id_end=100
    )


@pytest.mark.parametrize("unknown", [[100], [2**31 - 1], [3, 100, 4], [3, 2**20]])
def test_an_id_that_no_vocabulary_has_is_a_failure_after_those_before_it(
    unknown: list[int],
) -> None:
    for reads in ([event([1]), event([2]), event(unknown)], [event([1]) + event([2, *unknown])]):
        reader = knowing_reader()
        chunks = [chunk for read in reads if (chunk := reader.feed(read)) is not None]
        known = [1, 2, *(i for i in unknown[:1] if i < 100)]
        assert [i for chunk in chunks for i in chunk.ids] == known
        assert isinstance(reader.fault, UpstreamFailed)
        assert "not in the vocabulary" in str(reader.fault)


@pytest.mark.parametrize("unknown", [[100], [-1], [2**40], ["7"], [True], [1.0]])
def test_a_backend_whose_first_id_is_none_was_not_there(unknown: list[object]) -> None:
    reader = knowing_reader()
    assert reader.feed(event(unknown)) is None
    assert isinstance(reader.fault, UpstreamUnavailable)


@pytest.mark.slow
@pytest.mark.parametrize("nothing", [b": ping\n\n", b"\n", event([])])
def test_a_backend_that_sends_bytes_and_no_ids_has_failed(nothing: bytes) -> None:
    reader = reader_of()
    reader.feed(event([1]) + event([2]))
    read = nothing * (10**5 // len(nothing))
    reads = 0
    while reader.fault is None:
        reader.feed(read)
        while reader.has_more:
            reader.go_on()
        reads += 1
    assert "without an id" in str(reader.fault)
    assert 19 <= reads <= 42


@pytest.mark.slow
def test_comments_between_ids_are_no_silence() -> None:
    reader = reader_of(10**6)
    pings = b": ping\n\n" * (10**6 // 8)
    for token in range(4):
        reader.feed(pings)
        while reader.has_more:
            reader.go_on()
        reader.feed(event([token]))
    assert reader.fault is None


@pytest.mark.parametrize("one", [event([7]), b": ping\n\n", event([8, 9])])
def test_a_long_read_is_looked_at_slice_by_slice(one: bytes) -> None:
    reader, whole = reader_of(10**6), reader_of(10**6)
    read = one * (5 * SLICE_BYTES // len(one))
    slices = [reader.feed(read)]
    while reader.has_more:
        slices.append(reader.go_on())
    ids = [len(chunk.ids) if chunk else 0 for chunk in slices]
    assert len(slices) >= 5
    assert max(ids) <= SLICE_BYTES // 8
    expected = [whole.feed(one * count) for count in (1,) * (len(read) // len(one))]
    assert sum(ids) == sum(len(chunk.ids) for chunk in expected if chunk)


def test_repetition_found_by_the_engine_cuts_the_turn_short() -> None:
    assert reader_of().feed(event([1], "repetition") + DONE) == chunk_of([1], FinishReason.LENGTH)


@pytest.mark.parametrize("reason", ["abort", "error", "content_filter", 3, {"type": "stop"}])
def test_any_other_reason_is_a_failure_after_its_ids(reason: object) -> None:
    reader = reader_of()
    assert reader.feed(event([1, 2], reason) + usage() + DONE) == chunk_of([1, 2])
    assert isinstance(reader.fault, UpstreamFailed)
    assert not reader.finished


@pytest.mark.parametrize("end", [DONE, b""])
def test_a_stream_without_a_finish_reason_is_a_failure(end: bytes) -> None:
    reader = reader_of()
    reader.feed(event([1]) + end)
    reader.end("connection closed")
    assert isinstance(reader.fault, UpstreamFailed)


@each("last", [200002, 200012, 199999])
@each("broken", [b"", DONE, failure(), event([], "abort")])
def test_after_a_stop_id_no_failure_can_take_the_turn_back(last: int, broken: bytes) -> None:
    reader = reader_of()
    reader.feed(event([1, last]))
    chunk = reader.feed(broken) or reader.end("connection reset")
    assert chunk == chunk_of([], FinishReason.STOP)
    assert reader.fault is None


def test_when_all_tokens_asked_for_are_there_nothing_is_missing() -> None:
    reader = reader_of(max_tokens=2)
    reader.feed(event([1, 2]))
    assert reader.end("connection reset") == chunk_of([], FinishReason.LENGTH)


@each(
    ("code", "kind"),
    [
        (503, BackendBusy),
        (500, BrokeDown),
        (429, BackendBusy),
        (400, UpstreamRejected),
        ("400", UpstreamRejected),
        (404, PathNotFound),
        (422, UpstreamRejected),
        (None, BrokeDown),
        (True, BrokeDown),
        (99999, BrokeDown),
    ],
)
def test_an_error_as_first_event_is_what_its_code_says(code: object, kind: type) -> None:
    assert type(fault_after(failure(code))) is kind


def test_an_error_in_the_words_of_sglang_is_an_error() -> None:
    read = b'data: {"object":"error","message":"queue is full","code":503}\n\n'
    fault = fault_after(read)
    assert isinstance(fault, UpstreamUnavailable)
    assert "queue is full" in str(fault)


@pytest.mark.parametrize("code", [400, 503])
def test_an_error_after_the_first_id_is_a_failure_whatever_its_code(code: int) -> None:
    assert isinstance(fault_after(event([1]) + failure(code)), UpstreamFailed)


def test_a_prompt_that_is_too_long_is_told_apart() -> None:
    message = "The decoder prompt (length 9) is longer than the maximum model length of 8."
    assert isinstance(fault_after(failure(400, message)), ContextOverflow)


@pytest.mark.parametrize("ids", [None, ...])
def test_an_answer_without_ids_comes_from_a_backend_that_is_too_old(ids: object) -> None:
    read = event(None) if ids is None else b'data: {"choices":[{"text":"hi"}]}\n\n'
    fault = fault_after(read)
    assert isinstance(fault, NoTokenIds)
    assert "needs vLLM >= 0.10.2" in str(fault)


@each(
    "read",
    [
        b"data: {nonsense\n\n",
        b"data: []\n\n",
        b"data: {}\n\n",
        b'data: {"choices":{}}\n\n',
        event([-1]),
        event([1.0]),
        event([True]),
        event(["1"]),
        event([2**31]),
        event("12"),
        event({"1": 2}),
        b"data: " + b"x" * 10**6 + b"\n\n",
        b'data: {"choices":[{"token_ids":[1],"text":' + b"[" * 10**5 + b"\n\n",
        b'data: {"choices":[{"token_ids":[1],"finish_reason":"\xff"}]}\n\n',
        b'data: {"choices":[{"token_ids":[1.0]}]}\n\n',
        b'data: {"choices":[{"token_ids":[' + b"9" * 30 + b"]}]}\n\n",
        event([1], error={}),
        event([1])[:-2] + b"}\n\n",
    ],
)
def test_what_makes_no_sense_is_an_upstream_error(read: bytes) -> None:
    assert isinstance(fault_after(read), UpstreamUnavailable)
    assert isinstance(fault_after(event([1]), read), UpstreamFailed)


@pytest.mark.parametrize("odd", [None, 5, "x", [], {"prompt_tokens_details": 5}, {"a": {"b": []}}])
def test_what_is_of_no_use_in_an_event_does_no_harm(odd: object) -> None:
    reader = reader_of()
    fields = dict.fromkeys(("usage", "id", "model", "kv_transfer_params"), odd)
    assert reader.feed(event([1], error=None, **fields)) == chunk_of([1])
    choice = {"text": odd, "logprobs": odd, "token_ids": [2], "stop_reason": odd}
    assert reader.feed(b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n") == chunk_of([2])
    assert reader.fault is None


@pytest.mark.parametrize("choice", ["null", "{}", '"x"'])
def test_a_later_event_without_ids_is_a_failure(choice: str) -> None:
    assert isinstance(
        fault_after(event([1]), f'data: {{"choices":[{choice}]}}\n\n'.encode()), UpstreamFailed
    )


@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_make_it_raise(noise: bytes, framed: bool) -> None:
    reader = reader_of()
    reader.feed(b"data: " + noise + b"\n\n" if framed else noise)
    reader.end("over")
    assert (reader.fault is None) == reader.finished


def test_logprobs_come_with_their_ids() -> None:
    reader = reader_of(logprobs=2)
    chunk = reader.feed(told_event([1, 2]) + told_event([3]))
    assert chunk is not None
    assert chunk.ids == [1, 2, 3]
    assert chunk.logprobs == [
        TokenLogprob(-0.5, ((i, -0.5), (i + 1, LOGPROB_MIN))) for i in (1, 2, 3)
    ]
    end = reader.feed(told_event([4], "stop") + DONE)
    assert end is not None
    assert (end.ids, end.finish) == ([4], FinishReason.STOP)
    assert end.logprobs is not None
    assert len(end.logprobs) == 1


def test_a_finish_without_ids_has_no_logprobs_left() -> None:
    reader = reader_of(logprobs=0)
    reader.feed(told_event([1], "stop"))
    assert reader.feed(DONE) == chunk_of([], FinishReason.STOP, logprobs=[])


def test_logprobs_that_nobody_asked_for_are_not_looked_at() -> None:
    assert reader_of().feed(told_event([1], tokens=["nonsense"])) == chunk_of([1])


def test_an_event_without_ids_needs_no_logprobs() -> None:
    reader = reader_of(logprobs=1)
    reader.feed(told_event([1]))
    assert reader.feed(event([], "length") + DONE) == chunk_of([], FinishReason.LENGTH, logprobs=[])


@pytest.mark.parametrize("broken", [event([2]), told_event([2], tokens=["token_id:3"])])
def test_ids_without_their_logprobs_break_the_stream(broken: bytes) -> None:
    reader = reader_of(logprobs=1)
    assert reader.feed(broken) is None
    assert isinstance(reader.fault, UpstreamUnavailable)
    reader = reader_of(logprobs=1)
    chunk = reader.feed(told_event([1]) + broken)
    assert chunk is not None
    assert (chunk.ids, len(chunk.logprobs or [])) == ([1], 1)
    assert isinstance(reader.fault, UpstreamFailed)


def test_every_chunk_says_whether_the_model_is_bound() -> None:
    reader = reader_of(constrained=True)
    chunks = [reader.feed(event([1])), reader.feed(event([2], "stop")), reader.feed(DONE)]
    assert [chunk.constrained for chunk in chunks if chunk is not None] == [True] * 3


CUTTABLE = [
    "cmpl_stream_token_ids", "cmpl_stream_all", "cmpl_stream_cont_usage", "d_eos_return_stream",
    "d_eos_call_stream", "a_cached_2", "si5_stream", "k_term_stream", "k_api9_stream",
]  # fmt: skip


def outcome_of(reads: list[bytes]) -> tuple[list[int], FinishReason | None, int | None, object]:
    """Ids, finish, cached tokens and kind of fault of one answer."""
    response, completion = ResponseReader(10_000), reader_of()
    chunks = []
    for read in reads:
        response.feed(read)
        if response.buffered and completion.fault is None and not completion.finished:
            chunks.append(completion.feed(response.take()))
    if completion.fault is None and not completion.finished:
        chunks.append(completion.end("over"))
    present = [chunk for chunk in chunks if chunk is not None]
    last = present[-1] if present else chunk_of([])
    ids = [i for chunk in present for i in chunk.ids]
    assert all(chunk.finish is None for chunk in present[:-1])
    return ids, last.finish, last.cached_tokens, type(completion.fault)


@pytest.mark.slow
@given(st.sampled_from(CUTTABLE), st.lists(st.integers(0, 12_000), max_size=30))
def test_how_an_answer_is_cut_into_reads_makes_no_difference(name: str, cuts: list[int]) -> None:
    recorded = capture(name)
    whole = recorded.response
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    reads = [whole[a:b] for a, b in pairwise(edges)]
    assert outcome_of(reads) == outcome_of(list(recorded.reads))


def test_an_answer_may_come_byte_by_byte() -> None:
    recorded = capture("cmpl_stream_all")
    single = [recorded.response[i : i + 1] for i in range(len(recorded.response))]
    assert outcome_of(single) == outcome_of([recorded.response])


def test_there_are_recordings() -> None:
    assert set(CUTTABLE) <= set(names("*"))


def split(*reads: bytes) -> list[bytes]:
    splitter = SseSplitter()
    return [payload for read in reads for payload in splitter.feed(read)]


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


def test_a_byte_order_mark_in_front_of_a_stream_is_no_part_of_its_first_line() -> None:
    stream = b"\xef\xbb\xbfdata: a\n\ndata: \xef\xbb\xbfb\n\n"
    assert split(stream) == split(*(bytes([byte]) for byte in stream)) == [b"a", b"\xef\xbb\xbfb"]


def test_extra_blank_lines_make_no_events() -> None:
    assert split(b"\n\n\n\ndata: a\n\n\n\n\ndata: b\n\n") == [b"a", b"b"]


def test_data_without_text_makes_no_event() -> None:
    assert split(b"data:\n\ndata: \n\ndata: a\n\n") == [b"a"]
    assert split(b"data:\n\n", b"data: \n\n", b"data: a\n\n") == [b"a"]


def test_an_unfinished_event_is_never_handed_out() -> None:
    assert split(b"data: a\n") == []


def test_a_line_of_megabytes_passes() -> None:
    line = b"data: " + b"1," * 1_000_000
    reads = [line[i : i + 65_536] for i in range(0, len(line), 65_536)]
    assert split(*reads, b"\n\n") == [line[6:]]


def bounded_reader(frame_bytes_max: int) -> CompletionReader:
    return CompletionReader(
        "gpu-1", Sampling(max_tokens=9), stop_ids=STOP_IDS, frame_bytes_max=frame_bytes_max
    )


@pytest.mark.parametrize("cut", [0, 3, 40, 100])
def test_an_event_beyond_the_bound_is_refused_however_it_arrives(cut: int) -> None:
    read = event([1, 2, 3])
    size = len(read) - len(b"data: \n\n")
    reader = bounded_reader(size - 1)
    assert [reader.feed(read[:cut]), reader.feed(read[cut:])] == [None, None]
    assert f"longer than {size - 1} bytes" in str(reader.fault)
    reader = bounded_reader(size)
    assert chunk_of([1, 2, 3]) in [reader.feed(read[:cut]), reader.feed(read[cut:])]


@pytest.mark.parametrize("line", [b"x" * 50, b"data: 12345\n" * 6])
def test_an_event_beyond_the_bound_is_not_waited_for(line: bytes) -> None:
    reader = bounded_reader(30)
    reader.feed(line)
    assert "longer than 30 bytes" in str(reader.fault)


def test_what_comes_before_an_event_beyond_the_bound_is_handed_out() -> None:
    read = event([1])
    reader = bounded_reader(len(read))
    assert reader.feed(read + event([2] * 40)) == chunk_of([1])
    assert isinstance(reader.fault, UpstreamFailed)


@pytest.mark.slow
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


def two_told(**fields: Any) -> dict[str, Any]:
    """What a backend tells of the ids 5 and 6."""
    return {
        "tokens": ["token_id:5", "token_id:6"],
        "token_logprobs": [-0.1, -2.0],
        "top_logprobs": [
            {"token_id:5": -0.1, "token_id:9": -3.0},
            {"token_id:6": -2.0, "token_id:7": -0.2, "token_id:8": -1.0},
        ],
        **fields,
    }


def test_each_id_has_its_own_and_the_likeliest_in_its_place() -> None:
    assert aligned_logprobs(two_told(), [5, 6], 2) == [
        TokenLogprob(-0.1, ((5, -0.1), (9, -3.0))),
        TokenLogprob(-2.0, ((7, -0.2), (8, -1.0))),
    ]


def test_without_alternatives_only_its_own_are_two_told() -> None:
    assert aligned_logprobs(two_told(top_logprobs=None), [5, 6], 0) == [
        TokenLogprob(-0.1),
        TokenLogprob(-2.0),
    ]


def test_an_id_may_have_no_alternatives() -> None:
    (_, second) = aligned_logprobs(two_told(top_logprobs=[None, None]), [5, 6], 3)
    assert second == TokenLogprob(-2.0)


@each(
    ("value", "means"),
    [
        (None, LOGPROB_MIN),
        (-math.inf, LOGPROB_MIN),
        (math.nan, LOGPROB_MIN),
        (-1e300, LOGPROB_MIN),
        ("-inf", LOGPROB_MIN),
        (-(10**30), LOGPROB_MIN),
        (-1, -1.0),
        (0, 0.0),
        (1e-7, 0.0),
        (math.inf, 0.0),
    ],
)
def test_what_is_told_is_a_finite_logarithm_of_a_probability(value: object, means: float) -> None:
    said = {
        "tokens": ["token_id:5"],
        "token_logprobs": [value],
        "top_logprobs": [{"token_id:5": value}],
    }
    (one,) = aligned_logprobs(said, [5], 1)
    assert one == TokenLogprob(means, ((5, means),))
    assert type(one.logprob) is float


@each(
    "said",
    [
        None,
        [],
        {},
        two_told(tokens=["token_id:5"]),
        two_told(tokens=["token_id:6", "token_id:5"]),
        two_told(tokens=["hello", "token_id:6"]),
        two_told(token_logprobs=None),
        two_told(token_logprobs=[-0.1]),
        two_told(token_logprobs={"0": 1, "1": 2}),
        two_told(top_logprobs=None),
        two_told(top_logprobs=[{}]),
        two_told(top_logprobs=[{}, [1]]),
        two_told(top_logprobs=[{}, {"hello": -1.0}]),
        two_told(top_logprobs=[{}, {"token_id:": -1.0}]),
        two_told(top_logprobs=[{}, {"token_id:-1": -1.0}]),
        two_told(top_logprobs=[{}, {"token_id:٣": -1.0}]),
        two_told(top_logprobs=[{}, {"token_id:4294967296": -1.0}]),
        two_told(top_logprobs=[{}, {"token_id:" + "9" * 5000: -1.0}]),
    ],
)
def test_what_does_not_fit_the_ids_is_not_guessed_at(said: object) -> None:
    with pytest.raises(Misaligned):
        aligned_logprobs(said, [5, 6], 2)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner),
    max_leaves=8,
)


@pytest.mark.slow
@given(
    told=st.dictionaries(st.sampled_from(list(two_told())), JSON) | JSON, count=st.integers(0, 2)
)
def test_nothing_told_makes_it_raise_anything_else(told: object, count: int) -> None:
    ids = list(range(count))
    try:
        found = aligned_logprobs(told, ids, 1)
    except Misaligned:
        return
    assert len(found) == count


@pytest.mark.parametrize("ids", [[1, 2, 200002], [200002]])
def test_a_number_that_broke_is_a_failure_though_sglang_calls_it_a_stop(ids: list[int]) -> None:
    choice = {"token_ids": ids, "finish_reason": "stop", "matched_stop": "NaN happened"}
    read = b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n"
    reader = reader_of()
    chunk = reader.feed(read + DONE)
    assert (chunk.ids if chunk else []) == ids[:-1]
    assert isinstance(reader.fault, UpstreamFailed if ids[1:] else UpstreamUnavailable)


@pytest.mark.slow
@pytest.mark.parametrize("reader", [CompletionReader, ChatReader, GenerateReader])
@pytest.mark.parametrize(("piece", "is_read"), [(b"[],", False), (b"[-0.25,100,null],", True)])
def test_a_long_event_has_no_more_parts_than_logprobs_have(
    reader: type[CompletionReader], piece: bytes, is_read: bool
) -> None:
    many = piece * 700_000 + b"0"
    read = reader("gpu-1", Sampling(10), stop_ids=(), frame_bytes_max=1 << 24)
    ids = b'"output_ids":[7],"meta_info":{}'
    choice = b'{"token_ids":[7],"delta":{"content":"a"},"x":[%b]}' % many
    read.keep(b'data: {"choices":[%b],%b}\n\n' % (choice, ids))
    while read.has_more:
        read.go_on()
    assert (read.fault is None) == is_read
    assert is_read or "too many parts" in str(read.fault)
