"""What the rules of a request let out of a turn, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.constraints.output_rules import AnswerFormat, OutputRules
from gateway.eventlog.fold.screen import Beginning, Body, Screen, Stops, Verdict
from gateway.generation import SegmentEnded, SegmentEvent, SegmentKind, SegmentStarted, SegmentText
from gateway.models.grammar_parts import REFUSALS
from tests.fakes.response_heads import NO_RULES
from tests.fakes.toy_logs import ALLOWED, ANSWER, TOOL_RULES

CALL, FINAL = SegmentKind.FUNCTION_CALL, SegmentKind.FINAL
RULES = OutputRules(TOOL_RULES, ALLOWED)
END = SegmentEnded(3, 9)
CUT = SegmentEnded(3, 9, complete=False)
STOPPED = SegmentEnded(3, 9, verbatim=False)


def screen(
    rules: OutputRules = RULES, *, called: bool = False, awaits_client: bool = False
) -> Screen:
    return Screen(rules, lambda _: b"", called=called, awaits_client=awaits_client)


def segment(
    kind: SegmentKind, *texts: str, name: str = "", end: SegmentEnded = END
) -> list[SegmentEvent]:
    return [SegmentStarted(kind, name), *map(SegmentText, texts), end]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (NO_RULES, False),
        (OutputRules({"f": TOOL_RULES["f"]}, frozenset({"f"}), summary="detailed"), False),
        (OutputRules({"f": TOOL_RULES["f"]}, frozenset()), True),
        (OutputRules({"custom": TOOL_RULES["custom"]}, frozenset({"custom"})), True),
        (OutputRules({"shell": TOOL_RULES["shell"]}, frozenset({"shell"})), True),
        (OutputRules({"strict": TOOL_RULES["strict"]}, frozenset({"strict"})), True),
        (replace(NO_RULES, calls="required"), True),
        (replace(NO_RULES, open_calls=False), True),
        (replace(NO_RULES, one_call=True), True),
        (replace(NO_RULES, answer=ANSWER), True),
        (replace(NO_RULES, stop=("x",)), True),
    ],
)
def test_a_screen_is_needed_where_there_is_a_demand(rules: OutputRules, expected: bool) -> None:
    assert rules.is_screened is expected


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        (SegmentKind.COMMENTARY, "", "hm"),
        (CALL, "f", "{}"),
        (CALL, "strict", "{}"),
        (CALL, "custom", '{"input":"a"}'),
        (CALL, "shell", "{}"),
        (FINAL, "", "{}"),
        (FINAL, "", "I'm sorry."),
    ],
)
def test_a_segment_keeps_its_form(
    kind: SegmentKind, name: str, text: str, *, is_held: bool
) -> None:
    reader = screen(replace(RULES, answer=ANSWER))
    if is_held:
        reader.hold()
    shown = reader.feed([SegmentStarted(kind, name, 3), SegmentText(text), END]) + reader.release()
    assert [one.form for one in shown if isinstance(one, SegmentStarted)] == [3]


def test_what_nobody_forbids_passes() -> None:
    said = [
        *segment(SegmentKind.REASONING, "hm"),
        *segment(CALL, "{}", name="f"),
        *segment(CALL, "{}", name="unknown"),
        *segment(FINAL, "4"),
    ]
    assert screen().feed(said) == said


@pytest.mark.parametrize(
    ("rules", "name", "fault"),
    [
        (RULES, "barred", "call_not_allowed"),
        (replace(RULES, open_calls=False), "unknown", "call_not_allowed"),
        (replace(RULES, calls="none"), "f", "call_not_allowed"),
        (replace(RULES, one_call=True), "f", "second_call"),
    ],
)
def test_a_forbidden_call_is_never_shown(rules: OutputRules, name: str, fault: str) -> None:
    reader = screen(rules, called=True, awaits_client=True)
    assert reader.feed(segment(CALL, "{}", name=name)) == []
    assert (reader.fault, reader.fault_start) == (fault, 3)
    assert reader.release() == []


def test_prose_is_forbidden_until_a_required_call_was_made() -> None:
    reader = screen(replace(RULES, calls="required"))
    assert reader.feed(segment(SegmentKind.COMMENTARY, "I look."))
    assert reader.feed([SegmentStarted(FINAL), SegmentText("4")]) == []
    assert (reader.fault, reader.fault_start) == ("prose_for_call", None)
    assert reader.feed([END]) == []
    assert reader.fault_start == 3


@pytest.mark.parametrize("kind", [FINAL, SegmentKind.COMMENTARY])
def test_prose_behind_the_call_that_was_required_is_dropped(kind: SegmentKind) -> None:
    reader = screen(replace(RULES, calls="required"), called=True)
    assert reader.feed(segment(kind, "4")) == []
    assert (reader.fault, reader.release()) == (None, [])


def test_whatever_follows_a_fault_waits_and_the_first_fault_counts() -> None:
    reader = screen()
    later = segment(FINAL, "4", end=SegmentEnded(12, 15))
    barred = SegmentStarted(CALL, "barred")
    assert reader.feed([barred, END, *later, barred, SegmentEnded(15, 18)]) == []
    assert (reader.fault, reader.fault_start) == ("call_not_allowed", 3)
    assert reader.release() == later
    assert reader.release() == []


def test_the_end_of_a_checked_call_waits_for_the_end_of_the_turn() -> None:
    reader = screen()
    started, text, end = segment(CALL, "{}", name="strict")
    assert reader.feed([started, text, end]) == [started, text]
    assert reader.bodies == [Body("call", "strict", "{}", 3, seen=True)]
    assert reader.release() == [end]


@pytest.mark.parametrize("name", ["local_shell", "shell", "apply_patch"])
def test_a_call_without_a_text_that_could_stream_waits_as_a_whole(name: str) -> None:
    reader = screen()
    assert reader.feed(segment(CALL, "{}", name=name)) == []
    assert reader.bodies == [Body("call", name, "{}", 3, seen=False)]
    assert reader.called
    kind = TOOL_RULES[name].kind
    assert reader.release() == segment(kind, "{}", name=name)


def test_under_a_hold_nothing_of_a_checked_body_is_shown() -> None:
    reader = screen()
    reader.hold()
    free = segment(CALL, "{}", name="f")
    assert reader.feed(free) == free
    assert reader.feed(segment(CALL, "{}", name="strict")) == []
    assert reader.bodies == [Body("call", "strict", "{}", 3, seen=False)]


def test_a_hold_inside_of_a_checked_body_stops_what_flows() -> None:
    reader = screen()
    assert reader.feed([SegmentStarted(CALL, "strict"), SegmentText("{")])
    reader.hold()
    assert reader.feed([SegmentText("}"), END]) == []
    assert reader.bodies == [Body("call", "strict", "{}", 3, seen=True)]
    assert reader.release() == [SegmentText("}"), END]


def test_a_hold_inside_of_another_body_changes_nothing_there() -> None:
    reader = screen()
    reader.feed([SegmentStarted(SegmentKind.REASONING)])
    reader.hold()
    assert reader.feed([SegmentText("hm")]) == [SegmentText("hm")]


def test_the_input_of_a_custom_tool_is_unwrapped() -> None:
    reader = screen()
    said = segment(CALL, '{"input":"a', "é", '"}', name="custom")
    kind = SegmentKind.CUSTOM_CALL
    assert reader.feed(said) == [SegmentStarted(kind, "custom"), SegmentText("a"), SegmentText("é")]
    assert reader.bodies == [Body("call", "custom", '{"input":"aé"}', 3, seen=True)]
    assert reader.release() == [END]


def test_a_custom_input_that_is_no_json_is_checked_as_what_it_is() -> None:
    reader = screen()
    reader.feed(segment(CALL, '{"inp', name="custom"))
    assert reader.bodies[0].text == '{"input":"{\\"inp"}'


def test_json_for_an_answer_streams_from_its_first_character_on() -> None:
    reader = screen(replace(RULES, answer=ANSWER))
    assert reader.feed([SegmentStarted(FINAL), SegmentText(" ")]) == []
    shown = [SegmentStarted(FINAL), SegmentText(" "), SegmentText("{")]
    assert reader.feed([SegmentText("{")]) == shown
    assert reader.feed([SegmentText("}"), END]) == [SegmentText("}")]
    assert reader.bodies == [Body("answer", "", " {}", 3, seen=True)]


def test_a_refusal_is_a_segment_of_its_own_kind() -> None:
    reader = screen(replace(RULES, answer=ANSWER))
    assert reader.feed(segment(FINAL, "I'm", " sorry.")) == [
        SegmentStarted(SegmentKind.REFUSAL),
        SegmentText("I'm"),
        SegmentText(" sorry."),
    ]
    assert reader.bodies == [Body("refusal", "", "I'm sorry.", 3, seen=True)]


@pytest.mark.parametrize("texts", [["Sure: {"], ["I'm"], ["  "]])
def test_prose_for_an_answer_in_json_is_never_shown(texts: list[str]) -> None:
    reader = screen(replace(RULES, answer=ANSWER))
    assert reader.feed(segment(FINAL, *texts)) == []
    assert (reader.fault, reader.fault_start) == ("not_json", 3)
    assert reader.release() == []


SAID = SegmentKind.REASONING
UNMARKED = replace(RULES, answer=ANSWER)


def unmarked(rules: OutputRules = UNMARKED) -> Screen:
    return Screen(rules, lambda _: b"", called=False, marks_answers=False)


@pytest.mark.parametrize("is_held", [False, True])
def test_prose_before_a_call_is_reasoning_where_nothing_marks_an_answer(is_held: bool) -> None:
    reader = unmarked()
    if is_held:
        reader.hold()
    assert reader.feed(segment(FINAL, "Let", " me.")) == []
    assert (reader.fault, reader.preamble_start) == (None, 3)
    call = segment(CALL, "{}", name="f")
    shown = reader.feed(call)
    assert [*shown, *reader.release()] == [*segment(SAID, "Let", " me."), *call]
    assert bool(shown) is not is_held
    assert (reader.fault, reader.preamble_start, reader.bodies) == (None, None, [])


def test_prose_that_no_call_follows_is_none_even_there() -> None:
    for rules in (replace(UNMARKED, calls="none"), replace(UNMARKED, allowed=frozenset())):
        reader = unmarked(rules)
        reader.feed([SegmentStarted(FINAL), SegmentText("Sure: {")])
        assert reader.fault == "not_json"
    reader = unmarked()
    assert reader.feed([*segment(FINAL, "Sure: {"), *segment(FINAL, "{}")]) == []
    assert (reader.fault, reader.fault_start) == ("not_json", 3)
    reader = unmarked()
    assert reader.feed([*segment(FINAL, "Sure."), *segment(CALL, "{}", name="barred")]) == []
    assert (reader.fault, reader.fault_start) == ("call_not_allowed", 3)


def test_an_answer_that_was_cut_off_before_it_said_what_it_is_leaves_nothing() -> None:
    reader = screen(replace(RULES, answer=ANSWER))
    assert reader.feed(segment(FINAL, "I'm", end=CUT)) == []
    assert reader.fault is None


def test_a_checked_body_that_was_cut_off_is_none_to_check() -> None:
    reader = screen()
    reader.feed(segment(CALL, "{", name="strict", end=CUT))
    assert reader.bodies == []
    assert reader.release() == [CUT]


def test_nothing_is_shown_after_a_stop_string() -> None:
    reader = screen(replace(RULES, stop=("stop",)))
    started = SegmentStarted(FINAL)
    assert reader.feed([started, SegmentText("a st")]) == [started, SegmentText("a ")]
    assert reader.feed([SegmentText("op b"), SegmentText("c"), END]) == [STOPPED]
    assert reader.stopped
    assert reader.feed(segment(CALL, "{}", name="barred")) == []
    assert reader.fault is None


def test_the_front_of_a_stop_string_is_shown_when_the_answer_ends_with_it() -> None:
    reader = screen(replace(RULES, stop=("stop",)))
    shown = reader.feed([SegmentStarted(FINAL), SegmentText("a st"), END])
    assert shown[1:] == [SegmentText("a "), SegmentText("st"), END]
    assert not reader.stopped


def test_an_answer_that_came_to_its_stop_string_is_not_checked() -> None:
    reader = screen(replace(RULES, answer=ANSWER, stop=("stop",)))
    assert reader.feed(segment(FINAL, '{"stop')) == [
        SegmentStarted(FINAL),
        SegmentText('{"'),
        STOPPED,
    ]
    assert reader.bodies == []


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("first", ['{"n": 1}', "I'm sorry, no."])
@pytest.mark.parametrize("second", ['{"n": 2}', "Sorry, no.", "prose"])
def test_what_follows_an_answer_in_a_format_is_dropped(
    first: str, second: str, *, is_held: bool
) -> None:
    reader = screen(replace(RULES, answer=ANSWER))
    if is_held:
        reader.hold()
    shown = reader.feed(segment(FINAL, first))
    later = segment(FINAL, second, end=SegmentEnded(9, 15))
    shown += reader.feed(later) + reader.release()
    assert reader.fault is None
    texts = [one.text for one in shown if isinstance(one, SegmentText)]
    assert ("".join(texts), len(reader.bodies)) == (first, 1)


OBJECT = AnswerFormat("json_object", {"type": "object"})


def verdict(text: str, answer: AnswerFormat = OBJECT) -> Verdict:
    whole = Beginning(answer).read(text)
    beginning = Beginning(answer)
    decided = (one for one in map(beginning.read, text) if one is not Verdict.UNKNOWN)
    assert next(decided, Verdict.UNKNOWN) is whole
    return whole


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Verdict.UNKNOWN),
        ("\n ", Verdict.UNKNOWN),
        ("\n {", Verdict.JSON),
        ("I", Verdict.UNKNOWN),
        ("I'm sor", Verdict.UNKNOWN),
        ("I'm sorry, but", Verdict.REFUSAL),
        ("I\u2019m sorry", Verdict.REFUSAL),
        ("I can see", Verdict.PROSE),
        ("Sure! {", Verdict.PROSE),
        ("```json", Verdict.PROSE),
        ("[", Verdict.PROSE),
    ],
)
def test_the_first_words_decide(text: str, expected: Verdict) -> None:
    assert verdict(text) is expected


@pytest.mark.parametrize("words", REFUSALS)
def test_what_the_grammar_lets_the_model_say_is_a_refusal(words: str) -> None:
    assert verdict(words) is Verdict.REFUSAL


@pytest.mark.parametrize(
    ("schema", "first"),
    [
        ({"type": "array"}, "["),
        ({"type": "string"}, '"'),
        ({"type": "integer"}, "-9"),
        ({"type": ["boolean", "null"]}, "tfn"),
        ({"type": ["object", "unheard-of"]}, '{["-9tfn'),
        ({"anyOf": [{"type": "object"}]}, '{["-9tfn'),
    ],
)
def test_json_begins_as_its_schema_says(schema: dict[str, Any], first: str) -> None:
    answer = AnswerFormat("json_schema", schema)
    for character in '{["-9tfn':
        expected = Verdict.JSON if character in first else Verdict.PROSE
        assert verdict(character, answer) is expected


laws = settings(deadline=None)


def shown(stops: list[str], texts: list[str]) -> tuple[str, bool]:
    matcher = Stops(stops, lambda _: b"")
    parts = [part for text in texts for part in matcher.feed(SegmentText(text))]
    parts += matcher.finish()
    return "".join(part.text for part in parts), matcher.is_reached


@pytest.mark.parametrize(
    ("stops", "texts", "expected"),
    [
        pytest.param(["stop"], ["a st", "op b"], ("a ", True), id="across texts"),
        pytest.param(["stop"], ["a st", "ar"], ("a star", False), id="a front that was none"),
        pytest.param(["stop"], ["a st"], ("a st", False), id="a front at the end"),
        pytest.param(["abcd", "bc"], ["abcd"], ("a", True), id="the first to be complete"),
        pytest.param(["bc", "abc"], ["abc"], ("", True), id="the longer of two"),
        pytest.param(["x"], ["x", "y"], ("", True), id="nothing after it"),
    ],
)
def test_text_ends_before_the_stop_string(
    stops: list[str], texts: list[str], expected: tuple[str, bool]
) -> None:
    assert shown(stops, texts) == expected


def test_only_what_may_be_the_front_of_a_stop_string_waits() -> None:
    matcher = Stops(["stop"], lambda _: b"")
    assert matcher.feed(SegmentText("a st")) == [SegmentText("a ")]
    assert matcher.feed(SegmentText("y")) == [SegmentText("sty")]
    assert matcher.finish() == []


_text = st.lists(st.sampled_from("abé"), max_size=12).map("".join)
_stops = st.lists(
    st.lists(st.sampled_from("abé"), min_size=1, max_size=3).map("".join), min_size=1, max_size=3
)


@pytest.mark.slow
@laws
@given(_text, _stops)
def test_the_cut_of_the_text_changes_nothing(text: str, stops: list[str]) -> None:
    whole = shown(stops, [text])
    assert shown(stops, list(text)) == whole
    assert whole == ((text, False) if not any(stop in text for stop in stops) else whole)
    assert not any(stop in whole[0] for stop in stops)


_pieces = st.sampled_from([b"a", b"b", b"ab", "é".encode(), b"\xc3", b"\xa9", b"a\xc3", b"\xa9b"])


@pytest.mark.slow
@laws
@given(st.lists(_pieces, max_size=8), _stops, st.data())
def test_shown_text_comes_with_the_ids_that_spell_it(
    pieces: list[bytes], stops: list[str], data: st.DataObject
) -> None:
    texts = _traced(pieces, data)
    matcher = Stops(stops, lambda at: pieces[at])
    parts = [part for text in texts for part in matcher.feed(text)] + matcher.finish()
    for number, part in enumerate(parts, 1):
        spelled = b"".join(pieces[at] for at in part.tokens)
        is_last = number == len(parts) and matcher.is_reached
        assert spelled.startswith(part.text.encode())
        assert is_last or spelled == part.text.encode()
    positions = [at for part in parts for at in part.tokens]
    assert positions == list(range(len(positions)))


def test_text_without_ids_stays_without() -> None:
    matcher = Stops(["stop"], lambda _: b"s")
    assert matcher.feed(SegmentText("s", (0,))) == []
    assert matcher.feed(SegmentText("x")) == [SegmentText("sx")]
    assert matcher.feed(SegmentText("s", (2,))) == []
    assert matcher.finish() == [SegmentText("s")]


def _traced(pieces: list[bytes], data: st.DataObject) -> list[SegmentText]:
    """The texts of these pieces, cut anywhere that an id and a character end together."""
    texts: list[SegmentText] = []
    spelled, tokens = b"", []
    for at, piece in enumerate(pieces):
        spelled += piece
        tokens.append(at)
        try:
            text = spelled.decode()
        except UnicodeDecodeError:
            continue
        if data.draw(st.booleans()):
            texts.append(SegmentText(text, tuple(tokens)))
            spelled, tokens = b"", []
    return texts
