"""Taking ids without parsing must not be told from parsing, whatever a backend sends."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typing_extensions import override

from gateway.generation import Sampling
from gateway.upstreams.completions import CompletionReader
from gateway.upstreams.frame_shape import FrameShape

if TYPE_CHECKING:
    from gateway.generation import TokenChunk

STOP_IDS = (200002, 200012)
BEHIND_TEXT = b'","logprobs":null,"finish_reason":null,"prompt_token_ids":null,"token_ids":['


class PlainReader(CompletionReader):
    """The same, but it parses everything."""

    @override
    def _learn(self, payload: bytes, event: dict[str, object]) -> None:
        return


def frame(text: bytes, ids: bytes, behind_text: bytes = BEHIND_TEXT, end: bytes = b"]}]}") -> bytes:
    """An event as vLLM writes it; `text` and `ids` as they stand in JSON."""
    before = b'data: {"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"'
    return before + text + behind_text + ids + end + b"\n\n"


def learned(sample: bytes) -> FrameShape | None:
    payload = sample.removeprefix(b"data: ").removesuffix(b"\n\n")
    return FrameShape.learn(payload, orjson.loads(payload))


SHAPE = learned(frame(b"a", b"1"))
assert SHAPE is not None

FINISH = frame(b"a", b"5", b'","finish_reason":"stop","token_ids":[')
HOSTILE = [
    b"", b" a", b"\\n", b'\\"', b"\\\\", b"\\", b'"', b"\\u00e9", b"\\ud83d", b"\\x", b"\t",
    b"\xff", "東京 é".encode(), "\N{GRINNING FACE}".encode(), b"\xed\xa0\x80", b"\x7f", b"\x00",
    b"\n", b"\n\n",
    b'x","token_ids":[5]}]}', b'x\\",\\"token_ids\\":[5]}]}', BEHIND_TEXT,
    BEHIND_TEXT + b"7]}]}\n\ndata: ", frame(b"b", b"9"), b"\r", b"\r\n", b"data: ", b"[DONE]",
]  # fmt: skip
ODD_IDS = [
    b"", b",", b"1,", b",1", b"01", b"-1", b"1.0", b"1e3", b"true", b"null", b"[1]", b'"1"', b" 1",
    b"1, 2", b"2147483647", b"2147483648", b"9" * 25, b"1]", b"200002", b"1,200012",
]  # fmt: skip
TEXTS = st.sampled_from(HOSTILE) | st.text(max_size=6).map(lambda text: orjson.dumps(text)[1:-1])
GOOD_IDS = st.lists(st.integers(0, 300_000), min_size=1, max_size=4)
IDS = st.sampled_from(ODD_IDS) | GOOD_IDS.map(lambda ids: orjson.dumps(ids)[1:-1])
OTHERS = st.sampled_from([
    b": keep-alive\n\n", b"\n", b"\n\n", b"data: [DONE]\n\n", b"data: {}\n\n", b"data: x\n\n",
    b'data: {"error":{"message":"oops","code":500}}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens_details":{"cached_tokens":3}}}\n\n',
    FINISH,
    frame(b"a", b"5", b'","finish_reason":"abort","token_ids":['),
    frame(b"a", b"6", b'","finish_reason":null,"token_ids":['),
    frame(b"a", b"6", b'","text":"b","token_ids":['),
    frame(b"a", b"6", b'","token_ids":[4],"token_ids":['),
    frame(b"a", b"6", end=b'],"token_ids":[4]}]}'),
    frame(b"a", b"6", end=b']}],"usage":{"prompt_tokens_details":{"cached_tokens":2}}}'),
    frame(b"a", b"6", end=b']},{"index":1,"text":"b","token_ids":[8]}]}'),
    frame(b"a", b"6", end=b']}],"error":"x"}'),
    frame(b"a", b"6", end=b"]}]} "),
    frame(b"a", b"6").replace(b"data: ", b"data:"),
    frame(b"a", b"6").replace(b"data: ", b": ping\ndata: "),
    frame(b"a", b"6").replace(b",", b", ").replace(b":", b": "),
])  # fmt: skip
FRAMES = st.lists(st.builds(frame, TEXTS, IDS) | st.builds(frame, TEXTS, st.just(b"7")) | OTHERS)
CUTS = st.lists(st.integers(0, 4000), max_size=8)


def outcome(
    kind: type[CompletionReader], reads: list[bytes], sampling: Sampling
) -> tuple[list[TokenChunk | None], object]:
    reader = kind("gpu-1", sampling, stop_ids=STOP_IDS, frame_bytes_max=1500)
    chunks = []
    for read in reads:
        chunks.append(reader.feed(read))
        if reader.fault is not None or reader.finished:
            break
    else:
        chunks.append(reader.end("over"))
    return chunks, (type(reader.fault), str(reader.fault), reader.started, reader.finished)


@given(FRAMES, CUTS | st.none(), st.sampled_from([None, 0, 1]), st.booleans())
@example([frame(b"a", b"2"), frame(b"\xff", b"3")], None, None, True)
@example([frame(b"a", b"2147483648")], None, None, True)
@example([frame(b"a" * 2000, b"2")], None, None, True)
@example([FINISH, frame(b"a", b"2")], None, None, True)
@example([b": x\r\n\r", b"\n" + frame(b"a", b"2")], None, None, True)
@example([frame(b"\\", b"2")], [], None, True)
@example([frame(b"\xff", b"2")], [], None, True)
@example([frame(b"a", b"2147483648")], [], None, True)
@example([frame(b"a" * 2000, b"2")], [], None, True)
@example([FINISH, frame(b"a", b"2"), b"data: [DONE]\n\n"], [], None, True)
@example([frame(b"a", b"2", BEHIND_TEXT.replace(b"logprobs", b"logprops"))], [], None, True)
def test_ids_taken_without_parsing_are_those_that_parsing_finds(
    frames: list[bytes], cuts: list[int] | None, logprobs: int | None, opened: bool
) -> None:
    """Whatever comes in one read: so many bytes, or (without cuts) one event."""
    reads = [*[frame(b"a", b"1")] * (2 * opened), *frames]
    if cuts is not None:
        whole = b"".join(reads)
        edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
        reads = [whole[a:b] for a, b in pairwise(edges)]
    sampling = Sampling(max_tokens=50, logprobs=logprobs)
    assert outcome(CompletionReader, reads, sampling) == outcome(PlainReader, reads, sampling)


@given(TEXTS, IDS, st.sampled_from([b"", b"\n", frame(b"a", b"1")]))
@example(b"a", b"2147483647", b"")
@example("é".encode(), b"12", b"")
def test_the_id_of_one_event_is_the_one_that_its_list_has(
    text: bytes, ids: bytes, more: bytes
) -> None:
    assert SHAPE is not None
    event = frame(text, ids) + more
    token = SHAPE.only_id(event)
    assert token is None or SHAPE.runs(event) == [[token]]
    is_plain = text.isalnum() and ids.isdigit() and not ids.startswith(b"0") and not more
    assert token is not None or not is_plain or int(ids) >= 1 << 31


@given(st.lists(st.tuples(TEXTS, IDS), min_size=1))
def test_no_event_is_taken_for_one_that_it_is_not(events: list[tuple[bytes, bytes]]) -> None:
    assert SHAPE is not None
    block = b"".join(frame(text, ids) for text, ids in events)
    pieces = []
    for run in SHAPE.runs(block):
        if isinstance(run, list):
            pieces += run
        else:
            for piece in run.split(b"\n\n"):
                pieces += ids_in(piece)
    assert pieces == [i for piece in block.split(b"\n\n") for i in ids_in(piece)]


def ids_in(piece: bytes) -> list[int]:
    """What an event says in the plainest way of reading it; nothing if that is no list of ids."""
    try:
        ids = orjson.loads(piece.removeprefix(b"data: "))["choices"][0]["token_ids"]
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return []
    good = isinstance(ids, list) and all(type(i) is int and 0 <= i < 2**31 for i in ids)
    return ids if good else []


def test_events_of_one_shape_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = CompletionReader("g", Sampling(max_tokens=500), stop_ids=(), frame_bytes_max=10**5)
    reader.feed(frame(b"", b"1") + frame(b"", b"2"))
    parsed: list[bytes] = []
    monkeypatch.setattr(reader.__class__, "_event", lambda _, payload: parsed.append(payload))
    chunk = reader.feed(b"".join(frame(b"\\n\xc3\xa9", b"%d" % i) for i in range(100)))
    assert chunk is not None
    assert (chunk.ids, parsed) == (list(range(100)), [])


def test_what_stands_between_two_runs_keeps_its_place() -> None:
    assert SHAPE is not None
    ping = b": ping\n\n"
    block = frame(b"a", b"1") + frame(b"", b"2,3") + ping + frame(b"b", b"4") + ping
    assert SHAPE.runs(block) == [[1, 2, 3], ping, [4], ping]
    assert SHAPE.runs(ping) == [ping]


@pytest.mark.parametrize(
    "sample",
    [
        frame(b"a", b""),
        frame(b"a", b"6", end=b']},{"text":"b","token_ids":[4]}]}'),
        frame(b"a", b"6", end=b'],"text":"b"}]}'),
        frame(b"a", b"6", end=b"]}]," + b'"x":"' + b"y" * 3000 + b'"}'),
        frame(b"\\u0041", b"6"),
        b'data: {"text":"","choices":[{"token_ids":[1]}]}\n\n',
        b'data: {"choices":[{"token_ids":[1],"text":""}]}\n\n',
        b'data: {"text":"","token_ids":[1],"choices":[3]}\n\n',
        b'data: {"text":"","token_ids":[1]}\n\n',
    ],
)
def test_an_event_that_is_no_sure_model_of_others_is_none(sample: bytes) -> None:
    assert learned(sample) is None
