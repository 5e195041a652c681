"""Where a turn stands, and which ids spell what it says."""

from __future__ import annotations

import pytest

from gateway.generation import (
    FinishReason,
    ParserPosition,
    SegmentKind,
    SegmentStarted,
    SegmentText,
    Where,
)
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.recovery import DOUBTS, Rule
from tests.fakes.harmony_script import TOOLS, script_ids, vocabulary

_THOUGHT = "<|channel|>analysis<|message|>t<|end|>"


def read(script: str, *, tools: frozenset[str] | None = TOOLS, header_ids_max: int = 256) -> Parser:
    parser = Parser(vocabulary(), tools, header_ids_max=header_ids_max)
    parser.feed(script_ids(script))
    return parser


@pytest.mark.parametrize(
    ("script", "place"),
    [
        ("", ParserPosition(Where.HEADER, 0)),
        ("<|channel|>final", ParserPosition(Where.HEADER, 0)),
        ("<|channel|>final<|message|>", ParserPosition(Where.BODY, 0, SegmentKind.FINAL)),
        ("<|channel|>final<|message|>x", ParserPosition(Where.BODY, 0, SegmentKind.FINAL)),
        (_THOUGHT, ParserPosition(Where.BETWEEN, 5)),
        (f"{_THOUGHT}<|end|>", ParserPosition(Where.BETWEEN, 6)),
        (f"{_THOUGHT}spoken", ParserPosition(Where.BETWEEN, 5)),
        (f"{_THOUGHT}<|start|>", ParserPosition(Where.HEADER, 5)),
        (
            f"{_THOUGHT}<|start|>assistant to=functions.f<|channel|>commentary<|message|>",
            ParserPosition(Where.BODY, 5, SegmentKind.FUNCTION_CALL, "f"),
        ),
        ("<|channel|>final<|message|>x<|endoftext|>", ParserPosition(Where.OVER, 5, answered=True)),
    ],
)
def test_a_place_says_where_the_next_id_falls(script: str, place: ParserPosition) -> None:
    assert read(script).place == place


@pytest.mark.parametrize(
    ("script", "rules", "kind"),
    [
        pytest.param("<|channel|>nonsense<|message|>", [], None, id="no channel"),
        pytest.param(
            "<|channel|>analysis to=nobody<|message|>",
            [Rule.UNKNOWN_RECIPIENT],
            SegmentKind.REASONING,
            id="for nobody",
        ),
        pytest.param(
            "<|channel|>commentary to=python<|message|>",
            [Rule.BUILTIN_NOT_ENABLED],
            SegmentKind.REASONING,
            id="a tool that is not there",
        ),
        pytest.param(
            "<|channel|>commentary to=f json<|message|>", [], SegmentKind.FUNCTION_CALL, id="known"
        ),
        pytest.param(
            "<|channel|>final<|message|>a<|message|>", [], SegmentKind.FINAL, id="a slip in a body"
        ),
    ],
)
def test_doubts_are_the_rules_that_cannot_read_a_message(
    script: str, rules: list[Rule], kind: SegmentKind | None
) -> None:
    place = read(script).place
    assert (place.kind, place.doubts) == (kind, tuple(rule.value for rule in rules))
    assert set(rules) <= DOUBTS


def test_a_call_that_is_not_allowed_is_doubtful() -> None:
    place = read("<|channel|>commentary to=functions.f<|message|>", tools=None).place
    assert place.doubts == (Rule.CALL_NOT_ALLOWED.value,)


def test_a_header_that_is_too_long_is_doubtful() -> None:
    place = read("<|channel|>analysis" + " so" * 9, header_ids_max=8).place
    assert place.where is Where.BODY
    assert place.doubts == (Rule.HEADER_TOO_LONG.value,)


def test_doubts_end_with_their_message() -> None:
    parser = read("<|channel|>analysis to=nobody<|message|>x<|end|>")
    assert parser.place.doubts == ()


def test_what_has_no_channel_is_no_answer_when_the_turn_was_cut_to_go_on() -> None:
    said = "<|message|>Hm.<|end|>"
    cut, stopped = read(said), read(said)
    assert cut.finish(FinishReason.CUT)[0] == SegmentStarted(SegmentKind.REASONING)
    assert stopped.finish(FinishReason.STOP)[0] == SegmentStarted(SegmentKind.FINAL)


def test_a_turn_that_was_cut_need_not_show_anything() -> None:
    parser = read(_THOUGHT)
    parser.finish(FinishReason.CUT)
    assert parser.recoveries == {}


def traced(*chunks: list[int]) -> list[SegmentText]:
    parser = Parser(vocabulary(), TOOLS, trace=True)
    parser.feed(script_ids("<|channel|>final<|message|>"))
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    events += parser.finish(FinishReason.STOP)
    return [event for event in events if isinstance(event, SegmentText)]


def test_traced_text_comes_with_the_positions_of_its_ids() -> None:
    assert traced(script_ids("One two")) == [SegmentText("One two", (3, 4))]


def test_traced_text_waits_for_the_id_that_ends_its_character() -> None:
    first, second = script_ids("💖")
    assert traced([first], [second]) == [SegmentText("💖", (3, 4))]
    assert traced([*script_ids("a"), first], [second]) == [
        SegmentText("a", (3,)),
        SegmentText("💖", (4, 5)),
    ]


def test_text_that_its_ids_do_not_spell_has_no_positions() -> None:
    broken, whole = script_ids("💖")[0], script_ids("a")[0]
    assert traced([broken, whole]) == [SegmentText("\ufffda")]
    assert traced([whole, broken]) == [SegmentText("a", (3,)), SegmentText("\ufffd")]


def test_a_marker_inside_of_a_body_parts_no_text_from_its_ids() -> None:
    assert traced(script_ids("a<|message|>b")) == [SegmentText("ab", (3, 5))]


def test_the_arguments_of_a_call_are_not_traced() -> None:
    parser = Parser(vocabulary(), TOOLS, trace=True)
    events = parser.feed(script_ids("<|channel|>commentary to=functions.f<|message|>{}"))
    assert events[1:] == [SegmentText("{}")]


def test_the_bytes_of_an_id_are_known() -> None:
    parser = read("")
    assert parser.piece(script_ids("One")[0]) == b"One"
    assert parser.piece(200008) == b""


def test_a_function_that_nobody_declared_is_in_doubt_behind_junk() -> None:
    parser = Parser(vocabulary(), frozenset())
    header = "<|channel|>commentary to=functions.to=functions json<|constrain|>json?!<|message|>"
    assert parser.feed(script_ids(header)) == []
    assert parser.place.doubts == ("undeclared_function",)
    assert parser.feed(script_ids("{}"))[0] == SegmentStarted(SegmentKind.FUNCTION_CALL, "to")


def test_a_function_that_nobody_declared_is_a_call_in_a_clean_header() -> None:
    parser = Parser(vocabulary(), frozenset())
    parser.feed(script_ids("<|channel|>commentary to=functions.f <|constrain|>json<|message|>"))
    assert (parser.place.kind, parser.place.doubts) == (SegmentKind.FUNCTION_CALL, ())
