"""The packed form of a log."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.entries import (
    HANDLE_BYTES_MAX,
    PACKING_VERSION,
    Alive,
    Compacted,
    Entry,
    Finished,
    Hold,
    Hop,
    Mark,
    Queued,
    Repair,
    Singles,
    Step,
    Text,
    Tokens,
    ToolEnded,
    ToolHandle,
    ToolOutcome,
    ToolsListed,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    pack,
    portions,
    unpack,
)
from gateway.generation import FinishReason, TextLogprob, TextToken, TokenLogprob
from gateway.text_ids import ANSWER, END, ids_of

laws = settings(deadline=None)
_counts = st.integers(0, 2**63 - 1)
_ids = st.lists(st.integers(0, 2**32 - 1), max_size=20).map(tuple)
_texts = st.text(alphabet="ab é\U0001f600\x00", max_size=5)
_bytes = st.binary(max_size=9)
_floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
_logprobs = st.builds(
    TokenLogprob,
    _floats,
    st.lists(st.tuples(st.integers(0, 2**32 - 1), _floats), max_size=3).map(tuple),
)
_told = st.lists(st.tuples(st.integers(0, 2**32 - 1), _logprobs), max_size=4).map(
    lambda said: Tokens(tuple(token for token, _ in said), tuple(told for _, told in said))
)
_text_tokens = st.builds(
    TextToken, _bytes, _floats, st.lists(st.tuples(_bytes, _floats), max_size=2).map(tuple)
)
_spelled = st.lists(
    st.tuples(
        st.sampled_from([ANSWER, END, *ids_of("a\u00e9\U0001f600")]),
        st.none() | st.lists(_text_tokens, max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=4,
).map(
    lambda said: Text(
        tuple(one for one, _ in said), tuple(TextLogprob(tokens) for _, tokens in said)
    )
)
_entries = st.one_of(
    _spelled,
    st.builds(TurnStarted, _counts, _ids),
    _ids.map(Tokens),
    _told,
    st.sampled_from([Alive(), Queued(), Hold()]),
    st.builds(Repair, _counts, _texts),
    st.builds(Mark, st.sampled_from(get_args(Step)), _counts, _texts),
    st.builds(Compacted, _ids, _texts, _counts, _counts, _counts, _counts),
    st.builds(Hop, st.sampled_from(["backend", "replica"]), _counts),
    st.builds(ToolStarted, _counts, st.booleans(), _bytes),
    st.builds(ToolHandle, _counts, st.binary(min_size=1, max_size=9)),
    st.builds(ToolsListed, _texts, _bytes, _bytes),
    st.builds(
        ToolEnded,
        _counts,
        _ids.filter(bool),
        st.sampled_from(get_args(ToolOutcome)),
        _bytes,
        _bytes,
    ),
    st.builds(TurnEnded, st.sampled_from(FinishReason), _counts),
    st.builds(
        Finished,
        st.sampled_from(["completed", "incomplete", "failed", "cancelled"]),
        _counts,
        reason=_texts,
        code=_texts,
        message=_texts,
    ),
)
_optional = st.none() | _texts
LOG: list[Entry] = [
    Queued(),
    TurnStarted(300, (200005, 17196)),
    Tokens((200008, 4)),
    Alive(),
    Hop("replica", 302),
    Tokens((4, 5), (TokenLogprob(-0.5, ((4, -0.5), (7, -2.0))), TokenLogprob(-9999.0))),
    Hold(),
    Repair(2, "not_json"),
    TurnEnded(FinishReason.LENGTH, 128),
    TurnEnded(FinishReason.CUT),
    Finished("incomplete", 1_795_000_009, reason="max_output_tokens"),
    Compacted((200006, 1428), "hgw1.A", 300, 128, 40, 9),
    ToolStarted(0, repeatable=True, shown=b"{}"),
    ToolHandle(0, b"run 7"),
    ToolEnded(0, (200006, 4), "timeout", b'{"a":1}', b"{}"),
    ToolsListed("srv", b"[]", b'"away"'),
]


@pytest.mark.slow
@laws
@given(st.lists(_entries, max_size=10))
def test_unpacking_gives_what_was_packed(entries: list[Entry]) -> None:
    assert unpack(pack(entries)) == entries


@pytest.mark.parametrize("skipped", range(7))
def test_some_of_the_ids_of_a_group_may_be_skipped(skipped: int) -> None:
    check_skipped([Alive(), *(Tokens((number,)) for number in range(4)), Hold()], skipped)


@pytest.mark.slow
@laws
@given(st.lists(_entries, max_size=10), st.integers(0, 12))
def test_what_is_skipped_is_all_that_is_missing(entries: list[Entry], skipped: int) -> None:
    check_skipped(entries, skipped)


def check_skipped(entries: list[Entry], skipped: int) -> None:
    """All others are found."""
    found: list[Entry] = []
    for portion in portions(pack(entries), skipped):
        found += (
            [Tokens((one,)) for one in portion.ids] if isinstance(portion, Singles) else [portion]
        )
    assert found == entries[skipped:]


@given(_optional, _optional, _optional)
def test_a_missing_text_is_not_an_empty_one(
    reason: str | None, code: str | None, message: str | None
) -> None:
    entry = Finished("cancelled", 1, reason, code, message)
    assert unpack(pack([entry])) == [entry]


def test_the_packed_form_never_changes() -> None:
    assert pack(LOG).hex() == (
        "01"
        "06"
        "a101ac02450d03002c430000"
        "8201480d030004000000"
        "03"
        "3701ae02"
        "b80402040000000500000000"
        "0000bf0204000000000000bf07000000000000c0003c1cc600"
        "09"
        "9a01026e6f745f6a736f6e"
        "34018001"
        "240200"
        "a50301c98df6d706126d61785f6f75747075745f746f6b656e730000"
        "db02ac028001280902460d030094050000686777312e41"
        "4c00017b7d"
        "6f0072756e2037"
        "ed020002460d03000400000003077b2261223a317d027b7d"
        "ee0103737276025b5d06226177617922"
    )


def test_every_value_of_a_choice_keeps_its_number_in_the_packed_form() -> None:
    """Logs are stored: a value that moves among the others would be read as another one."""
    finishes = [FinishReason(name) for name in ("stop", "length", "cut", "lost", "filtered")]
    assert [pack([TurnEnded(one)])[2] for one in finishes] == [0, 1, 2, 3, 4]
    ends = [
        Finished("completed", 0),
        Finished("incomplete", 0, "r"),
        Finished("failed", 0, None, "c", "m"),
        Finished("cancelled", 0),
    ]
    assert [pack([one])[2] for one in ends] == [0, 1, 2, 3]
    assert [pack([one])[2] for one in (Hop("backend", 0), Hop("replica", 0))] == [0, 1]
    outcomes: list[ToolOutcome] = [
        "ok", "tool_error", "transport_error", "timeout", "unknown", "refused", "cancelled",
        "over_budget",
    ]  # fmt: skip
    ended = [ToolEnded(0, (1,), one) for one in outcomes]
    assert [pack([one])[-3] for one in ended] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert (len(finishes), len(outcomes)) == (len(FinishReason), len(get_args(ToolOutcome)))


def test_a_single_id_takes_five_bytes_and_a_full_flush_little_more_than_four_each() -> None:
    assert len(pack([Tokens((199_999,))])) == 1 + 5
    assert len(pack([Tokens((199_999,) * 100)])) == 1 + 2 + 400


@laws
@given(st.binary(max_size=40))
def test_damaged_bytes_raise_value_error_or_are_a_log(damaged: bytes) -> None:
    try:
        entries = unpack(bytes([PACKING_VERSION]) + damaged)
    except ValueError:
        return
    assert unpack(pack(entries)) == entries


@laws
@given(st.data())
def test_flipped_bytes_raise_value_error_or_are_a_log(data: st.DataObject) -> None:
    packed = bytearray(pack(LOG))
    packed[data.draw(st.integers(1, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        entries = unpack(bytes(packed))
    except ValueError:
        return
    assert unpack(pack(entries)) == entries


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        pytest.param("", "version", id="empty"),
        pytest.param("02", "version", id="another version"),
        pytest.param("0142", "cut off", id="an entry that is cut off"),
        pytest.param("011200", "ids in a log entry are cut off", id="half an id"),
        pytest.param("0113ff", "does not exist", id="an unknown step"),
        pytest.param("011600", "longer", id="a mark that says something"),
        pytest.param("0110fd", "mark", id="an unknown mark"),
        pytest.param("0130ff0161", "cut off", id="a text without what is told of it"),
        pytest.param("0150ff01610100", "longer", id="a text with more than is told of it"),
        pytest.param("012c0002", "does not exist", id="a tool that may be run again perhaps"),
        pytest.param("015d0000000000", "needs ids", id="a result that tells the model nothing"),
        pytest.param("018d01000100000000ff0000", "does not exist", id="an unknown outcome"),
        pytest.param("017d000100000000000500", "cut off", id="less to show than announced"),
        pytest.param("012e0161", "cut off", id="a listing that is cut off"),
        pytest.param("014e01ff0000", "utf-8", id="a label that is not UTF-8"),
        pytest.param("011f00", "empty, or too long", id="a handle of nothing"),
        pytest.param("016b000000000200", "cut off", id="fewer ids of a summary than announced"),
        pytest.param("016b0000000000ff", "utf-8", id="a seal that is no text"),
        pytest.param("0118ff", "cut off", id="fewer ids than were announced"),
        pytest.param("0168010400000000", "cut off", id="an id without its logprob"),
        pytest.param(
            "01a801010400000000000000ff", "cut off", id="fewer alternatives than were announced"
        ),
        pytest.param("01a80101040000000000c07f00", "not a number", id="a logprob that is none"),
        pytest.param("011900", "longer", id="a hold that says something"),
        pytest.param("012a00ff", "utf-8", id="a rule that is not UTF-8"),
        pytest.param("0124ff00", "does not exist", id="an unknown finish reason"),
        pytest.param("01270200", "does not exist", id="an unknown reason to hop"),
        pytest.param("01ffffffffffffffffff01", "too large", id="a number that is too large"),
        pytest.param("0165000002ff0000", "utf-8", id="text that is not UTF-8"),
        pytest.param("0135010100", "cut off", id="an end without its texts"),
        pytest.param("01550101000000", "needs a reason", id="an incomplete end without its reason"),
    ],
)
def test_damage_is_a_value_error(damaged: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        unpack(bytes.fromhex(damaged))


@pytest.mark.parametrize(
    "entry",
    [
        Tokens((-1,)),
        Tokens((2**32,)),
        Tokens((1, 2**32)),
        TurnStarted(-1),
        TurnEnded(FinishReason.STOP, 2**63),
        Hop("backend", -1),
        Finished("cancelled", 1, reason="\ud800"),
        Repair(-1, "rule"),
        Repair(1, "\ud800"),
        Tokens((1,), (TokenLogprob(float("nan")),)),
        Tokens((1,), (TokenLogprob(0.0, ((1, float("-inf")),)),)),
        Tokens((1,), (TokenLogprob(1e300),)),
        Tokens((1,), (TokenLogprob(0.0, ((-1, 0.0),)),)),
        Tokens((1,), (TokenLogprob(0.0, ((1, 0.0),) * 256),)),
        *(
            Text((ANSWER,), (TextLogprob((token,)),))
            for token in (
                TextToken(b"a", float("nan")),
                TextToken(b"a", 0.0, ((b"b", float("inf")),)),
                TextToken(b"a", 1e300),
                TextToken(b"a", 0.0, ((b"b", 0.0),) * 256),
            )
        ),
    ],
)
def test_what_has_no_packed_form_is_refused(entry: Entry) -> None:
    with pytest.raises(ValueError, match=r".+"):
        pack([entry])


def test_every_id_has_its_logprob() -> None:
    with pytest.raises(ValueError, match="one logprob for each id"):
        pack([Tokens((1, 2), (TokenLogprob(0.0),))])
    with pytest.raises(ValueError, match="one logprob for each id"):
        pack([Text((ANSWER, END), (TextLogprob(),))])


def test_the_packed_form_of_a_spelled_text_never_changes() -> None:
    token = TextToken(b"ab", -0.5, ((b"c", -2.0),))
    told = (TextLogprob(), TextLogprob((token,)), TextLogprob(), TextLogprob(None))
    text = Text((ANSWER, *ids_of("ab!")), told)
    packed = pack([text])
    assert packed.hex() == "018003ff04f96162210102026162000000bf010163000000c00100"
    assert unpack(packed) == [text]


def test_a_handle_is_short() -> None:
    longest = ToolHandle(0, b"x" * HANDLE_BYTES_MAX)
    assert unpack(pack([longest])) == [longest]
    with pytest.raises(ValueError, match="too long"):
        ToolHandle(0, b"x" * (HANDLE_BYTES_MAX + 1))


def test_an_end_says_why() -> None:
    with pytest.raises(ValueError, match="needs a reason"):
        Finished("incomplete", 1)
    with pytest.raises(ValueError, match="needs a code and a message"):
        Finished("failed", 1, code="server_error")
