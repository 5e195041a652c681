"""Events of `/generate` → chunks: lists that grow, lists that do not, and what is neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ContextOverflow, UpstreamFailed, UpstreamRejected, UpstreamUnavailable
from gateway.generation import LOGPROB_MIN, FinishReason, Sampling, TokenChunk, TokenLogprob
from gateway.upstreams.problems import BackendBusy, BrokeDown, GrammarFailed
from gateway.upstreams.token_readers import GenerateReader, RepeatedList
from tests.fakes.cases import each
from tests.fakes.chunks import chunk_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.errors import UpstreamError

STOP_IDS = (200002, 200012)
DONE = b"data: [DONE]\n\n"
STOP = {"type": "stop", "matched": 200002}
LENGTH = {"type": "length", "length": 6}
ASKED = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
FULL = {"type": "abort", "status_code": 503, "message": "The request queue is full."}
EVICTED = FULL | {"message": "The request is aborted by a higher priority request."}
BAD = {"type": "abort", "message": "Failed to compile ebnf grammar: …", "status_code": 400}
NAN = {"type": "stop", "matched": "NaN happened"}


def reader_of(
    max_tokens: int = 1000, *, logprobs: int | None = None, constrained: bool = False
) -> GenerateReader:
    return GenerateReader(
        "gpu-1",
        Sampling(max_tokens=max_tokens, logprobs=logprobs),
        stop_ids=STOP_IDS,
        frame_bytes_max=10**6,
        id_end=201088,
        constrained=constrained,
    )


def event(ids: object, finish: object = None, total: object = ..., **meta: object) -> bytes:
    """`total` is how many ids there are so far: all of these, if it is left out."""
    if total is ...:
        total = len(ids) if isinstance(ids, list) else 0
    told = {"finish_reason": finish, "completion_tokens": total, "cached_tokens": 8, **meta}
    return b"data: " + orjson.dumps({"text": "?", "output_ids": ids, "meta_info": told}) + b"\n\n"


def likely(ids: Sequence[int]) -> dict[str, object]:
    """The logprobs of these: each is the likeliest, and the next one impossible."""
    return {
        "output_token_logprobs": [[-0.5, i, None] for i in ids],
        "output_top_logprobs": [[[None, i + 1, None], [-0.5, i, None]] for i in ids],
    }


def stream(ids: list[int], cuts: list[int], *, repeats: bool, told: bool = False) -> list[bytes]:
    """A whole turn in events that end at these places."""
    reads, before = [], 0
    for end in [*cuts, len(ids)]:
        shown = ids[:end] if repeats else ids[before:end]
        finish = LENGTH if end == len(ids) else None
        reads.append(event(shown, finish, end, **(likely(shown) if told else {})))
        before = end
    return [*reads, DONE]


def outcome(reader: GenerateReader, reads: Sequence[bytes]) -> list[TokenChunk]:
    chunks = []
    for read in reads:
        chunks.append(reader.feed(read))
        while reader.has_more:
            chunks.append(reader.go_on())
    return [chunk for chunk in chunks if chunk is not None]


def fault_after(*reads: bytes) -> UpstreamError | None:
    reader = reader_of()
    outcome(reader, reads)
    return reader.fault


IDS = st.lists(st.integers(0, 201087), min_size=1, max_size=40)


@pytest.mark.slow
@given(st.data(), IDS, st.booleans(), st.booleans())
def test_a_turn_is_the_same_however_its_events_tell_it(
    data: st.DataObject, ids: list[int], repeats: bool, told: bool
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ids))) if len(ids) > 1 else st.just({1})))
    cuts = [cut for cut in cuts if cut < len(ids)]
    whole = b"".join(stream(ids, cuts, repeats=repeats, told=told))
    places = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=8)))
    reads = [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]
    reader = reader_of(len(ids), logprobs=1 if told else None)
    chunks = outcome(reader, reads)
    assert reader.fault is None
    assert reader.finished
    assert [i for chunk in chunks for i in chunk.ids] == ids
    assert chunks[-1].cached_tokens == 8
    if told:
        every = [one for chunk in chunks for one in chunk.logprobs or ()]
        assert every == [TokenLogprob(-0.5, ((i, -0.5),)) for i in ids]


def test_ids_come_at_once_and_the_finish_with_the_last() -> None:
    reader = reader_of()
    assert reader.feed(event([7])) == chunk_of([7])
    assert reader.feed(event([7, 8, 9])) == chunk_of([8, 9])
    end = reader.feed(event([7, 8, 9, 200002], STOP))
    assert end == chunk_of([200002], FinishReason.STOP, 8)
    assert reader.finished


def test_only_what_is_new_of_a_list_is_decoded() -> None:
    """Of what is not new nothing is read at all: here it would be no list of numbers."""
    growing = RepeatedList()
    assert growing.rest(b"[1,2]") == b"[1,2]"
    assert growing.rest(b'[x,y,3,"4"]') == b'[3,"4"]'
    assert growing.rest(b'[x,y,3,"4"]') == b"[]"
    for other in (b"[1]", b"[1,2,3,4444,5]", b"null", b""):
        with pytest.raises(ValueError, match="not the one before"):
            growing.rest(other)


@pytest.mark.parametrize("repeats", [True, False])
def test_logprobs_of_older_releases_grow_where_ids_do_not(repeats: bool) -> None:
    reader = reader_of(logprobs=1)
    reads = [event([1], None, 1, **likely([1])), event([2, 3], LENGTH, 3, **likely([1, 2, 3]))]
    if repeats:
        reads[1] = event([1, 2, 3], LENGTH, 3, **likely([1, 2, 3]))
    chunks = outcome(reader, reads)
    assert [len(chunk.logprobs or ()) for chunk in chunks] == [1, 2]
    assert reader.fault is None


def test_the_likeliest_ids_come_first_and_the_impossible_has_a_number() -> None:
    (chunk,) = outcome(reader_of(logprobs=2), [event([4], **likely([4]))])
    assert chunk.logprobs == [TokenLogprob(-0.5, ((4, -0.5), (5, LOGPROB_MIN)))]


def test_without_alternatives_none_are_read() -> None:
    reader = reader_of(logprobs=0)
    meta = likely([4]) | {"output_top_logprobs": []}
    (chunk,) = outcome(reader, [event([4], **meta)])
    assert chunk.logprobs == [TokenLogprob(-0.5)]


@pytest.mark.parametrize(
    "told",
    [
        {},
        likely([5]),
        likely([]),
        likely([4]) | {"output_top_logprobs": []},
        likely([4]) | {"output_token_logprobs": [["x", 4]]},
        likely([4]) | {"output_top_logprobs": [[[1]]]},
    ],
)
def test_ids_without_their_logprobs_break_the_stream(told: dict[str, object]) -> None:
    reader = reader_of(logprobs=1)
    assert outcome(reader, [event([4], **told)]) == []
    assert isinstance(reader.fault, UpstreamUnavailable)


def test_what_was_asked_to_stop_keeps_its_ids_and_is_a_failure() -> None:
    for last in (event([1, 2], ASKED), event([2], ASKED, 2)):
        reader = reader_of()
        chunks = outcome(reader, [event([1]), last, DONE])
        assert [i for chunk in chunks for i in chunk.ids] == [1, 2]
        assert isinstance(reader.fault, UpstreamFailed)


def test_an_id_that_the_last_event_has_once_more_is_not_taken_twice() -> None:
    reader = reader_of()
    chunks = outcome(reader, [event([1], None, 1), event([2], None, 2), event([2], ASKED, 2), DONE])
    assert [i for chunk in chunks for i in chunk.ids] == [1, 2]
    assert isinstance(reader.fault, UpstreamFailed)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (FULL, BackendBusy),
        (EVICTED, BackendBusy),
        (BAD, UpstreamRejected),
        (BAD | {"status_code": 500}, BrokeDown),
        (BAD | {"message": "longer than the model's context length"}, ContextOverflow),
    ],
)
def test_an_abort_with_a_status_is_a_refusal_and_its_ids_are_none(
    reason: dict[str, Any], kind: type
) -> None:
    reader = reader_of()
    assert outcome(reader, [event([2043], reason, 1), DONE]) == []
    assert type(reader.fault) is kind
    assert isinstance(fault_after(event([1]), event([1, 2], reason)), UpstreamFailed)


def test_a_grammar_that_fails_is_told_apart_from_a_backend_that_does() -> None:
    failed = BAD | {"message": "Grammar accept_token failed: id 5", "status_code": 500}
    reader = reader_of(constrained=True)
    outcome(reader, [event([1]), event([1, 2], failed)])
    assert isinstance(reader.fault, GrammarFailed)


def test_a_number_that_broke_is_a_failure_though_it_is_called_a_stop() -> None:
    for reads in ([event([1]), event([1, 3, 200002], NAN)], [event([1, 3, 200002], NAN)]):
        reader = reader_of()
        chunks = outcome(reader, [*reads, DONE])
        assert [i for chunk in chunks for i in chunk.ids] == [1, 3]
        assert isinstance(reader.fault, UpstreamFailed)
        assert "NaN" in str(reader.fault)


def test_an_error_event_of_either_frontend_is_what_its_code_says() -> None:
    longer = "The input (5000 tokens) is longer than the model's context length (4096 tokens)."
    rust = orjson.dumps({"error": {"message": f"validation failed: {longer}", "code": 400}})
    assert isinstance(fault_after(b"data: " + rust + b"\n\n"), ContextOverflow)
    python = {"message": longer, "type": "invalid_request_error", "code": 400, "retryable": False}
    assert isinstance(
        fault_after(b"data: " + orjson.dumps({"error": python}) + b"\n\n"), ContextOverflow
    )


@each(
    "read",
    [
        DONE,
        b"data: {nonsense\n\n",
        b"data: []\n\n",
        b"data: {}\n\n",
        b'data: {"choices":[{"token_ids":[1]}]}\n\n',
        b'data: {"output_ids":[1]}\n\n',
        event(None),
        event("12"),
        event({"1": 2}),
        event([1.5]),
        event([-1]),
        event(["1", 2]),
        event([True]),
        event([2**31]),
        event([3, 201088]),
        event([5], "stop"),
        event([5], ["stop"]),
        event([5], {"type": []}),
        b"data: " + b"x" * 10**6 + b"\n\n",
        b'data: {"output_ids":[1],"meta_info":{"a":' + b"[" * 10**5 + b"\n\n",
    ],
)
def test_what_makes_no_sense_is_an_upstream_error(read: bytes) -> None:
    assert fault_after(read) is not None
    assert isinstance(fault_after(event([3], None, None), read), UpstreamFailed)


@pytest.mark.parametrize(
    "later", [event([1, 2, 3], None, 5), event([1, 2], None, 4), event([9, 2], None, 9)]
)
def test_lists_that_are_neither_whole_nor_new_break_the_stream(later: bytes) -> None:
    assert isinstance(fault_after(event([1]), later), UpstreamFailed)


def test_a_list_that_shrinks_breaks_the_stream() -> None:
    shrunk = event([1], None, 3)
    assert isinstance(fault_after(event([1]), event([1, 2, 3]), shrunk), UpstreamFailed)


def test_without_counts_events_bring_new_ids() -> None:
    """LMDeploy counts them by another name."""
    reader = reader_of()
    chunks = outcome(
        reader, [event([1], None, None), event([1], None, None), event([2], STOP, None)]
    )
    assert [chunk.ids for chunk in chunks] == [[1], [1], [2]]


def test_no_more_is_taken_than_was_asked_for() -> None:
    reader = reader_of(2)
    assert outcome(reader, [event([1, 2, 3])]) == [chunk_of([1, 2], FinishReason.LENGTH, 8)]
    assert (reader.finished, reader.overran) == (True, True)


@pytest.mark.parametrize("broken", [DONE, b"data: {\n\n", event([1, 200002], ASKED)])
def test_after_a_stop_id_no_failure_can_take_the_turn_back(broken: bytes) -> None:
    reader = reader_of()
    outcome(reader, [event([1, 200002])])
    assert reader.feed(broken) == chunk_of([], FinishReason.STOP, 8)
    assert reader.fault is None


def test_no_count_of_cached_tokens_is_made_up() -> None:
    (chunk,) = outcome(reader_of(), [event([1], LENGTH, cached_tokens="8")])
    assert chunk.cached_tokens is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "status_code", "matched", "message", "a"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@pytest.mark.slow
@given(st.lists(st.tuples(VALUES, VALUES, VALUES, VALUES), max_size=4), st.booleans())
def test_no_event_makes_it_raise(shapes: list[tuple[Any, ...]], told: bool) -> None:
    reader = reader_of(5, logprobs=1 if told else None)
    for ids, finish, total, logprobs in shapes:
        read = event(ids, finish, total, output_token_logprobs=logprobs)
        reader.feed(read)
    reader.end("over")
    assert (reader.fault is None) == reader.finished


@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_make_it_raise(noise: bytes, framed: bool) -> None:
    reader = reader_of()
    reader.feed(b"data: " + noise + b"\n\n" if framed else noise)
    reader.end("over")
    assert (reader.fault is None) == reader.finished
