from __future__ import annotations

import pytest

from gateway.generation import (
    FinishReason,
    SegmentEnded,
    SegmentKind,
    SegmentStarted,
    SegmentText,
    TokenParser,
)
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.recovery import Rule
from gateway.models.harmony.tokenizer import VOCABULARY_SIZE
from tests.fakes.cases import each
from tests.fakes.harmony_script import TOOLS, parse, parse_chunks, script_ids, vocabulary

REASONING = SegmentKind.REASONING
COMMENTARY = SegmentKind.COMMENTARY
FINAL = SegmentKind.FINAL
CALL = SegmentKind.FUNCTION_CALL

_THOUGHT = "<|channel|>analysis<|message|>t<|end|>"
_ANSWER = "<|start|>assistant<|channel|>final<|message|>x<|return|>"
_CALL_F = "<|channel|>commentary to=functions.f<|message|>"


def _parser() -> Parser:
    return Parser(vocabulary(), TOOLS)


def test_a_parser_is_what_the_runs_expect() -> None:
    parser: TokenParser = _parser()

    assert parser.feed([]) == []
    assert parser.recoveries == {}
    assert parser.reasoning_tokens == 0


@pytest.mark.requirement("stream.kind-is-known-first")
def test_text_streams_as_soon_as_the_header_is_complete() -> None:
    parser = _parser()
    header, body = script_ids("<|channel|>final<|message|>"), script_ids("One two")

    assert parser.feed(header) == []
    assert parser.feed(body[:1]) == [SegmentStarted(FINAL), SegmentText("One")]
    assert parser.feed(body[1:]) == [SegmentText(" two")]
    assert parser.feed(script_ids("<|return|>")) == [SegmentEnded(0, 6)]
    assert parser.finish(FinishReason.STOP) == []
    assert parser.recoveries == {}


def test_text_streams_id_by_id() -> None:
    header, body = script_ids("<|channel|>final<|message|>"), script_ids("One two three")
    parser = _parser()
    assert parser.feed_each(header) == []
    parser.feed([*header, *body[:1]])
    assert parser.feed_each([*body[1:], *script_ids("<|return|>")]) == [" two", " three"]
    traced = Parser(vocabulary(), TOOLS, trace=True)
    traced.feed([*header, *body[:1]])
    assert traced.feed_each(body[1:]) == []


@pytest.mark.requirement("stream.kind-is-known-first")
def test_a_call_is_announced_before_its_first_argument() -> None:
    parser = _parser()

    assert parser.feed(script_ids(_CALL_F)) == [SegmentStarted(CALL, "f", form=6)]
    assert parser.feed(script_ids('{"a"')) == [SegmentText('{"a"')]


def test_one_feed_yields_one_text_for_a_segment_whatever_stands_between() -> None:
    parser = _parser()

    events = parser.feed(script_ids("<|channel|>final<|message|>a<|message|>b<|constrain|>c"))

    assert events == [SegmentStarted(FINAL), SegmentText("abc")]


def test_segments_without_text_are_left_out_but_calls_are_not() -> None:
    turn = parse(
        "<|channel|>analysis<|message|><|end|><|start|>assistant<|channel|>commentary<|message|>"
        "<|end|><|start|>assistant to=functions.f<|channel|>commentary<|message|><|call|>"
    )

    assert turn.said() == [(CALL, "f", "{}")]


@each("text", ["💖", "⌈m/2⌉", "👩‍👩‍👧", "नमस्ते"])
@each(
    ("before", "after", "kind"),
    [
        ("<|channel|>analysis<|message|>", "<|end|>", REASONING),
        ("<|channel|>final<|message|>", "<|return|>", FINAL),
        ("<|channel|>final ", "<|return|>", FINAL),
        ("<|message|>", "<|return|>", FINAL),
        (_CALL_F, "<|call|>", CALL),
    ],
)
def test_characters_that_tokens_split_come_whole(
    text: str, before: str, after: str, kind: SegmentKind
) -> None:
    turn = parse_chunks([[token] for token in script_ids(before + text + after)])

    assert [(segment.kind, segment.text) for segment in turn.segments] == [(kind, text)]


def test_half_a_character_at_the_end_of_a_message_becomes_one_replacement() -> None:
    half = script_ids("💖")[:1]
    turn = parse_chunks(
        [script_ids("<|channel|>analysis<|message|>a"), half, script_ids("<|end|>" + _ANSWER)]
    )

    assert turn.said() == [(REASONING, "", "a\N{REPLACEMENT CHARACTER}"), (FINAL, "", "x")]
    assert turn.segments[0].verbatim


@each(
    ("script", "verbatim"),
    [
        ("<|channel|>final<|message|>x<|return|>", True),
        ("<|channel|>final<|message|>x<|end|>", True),
        ("<|channel|>final <|constrain|>json<|message|>x<|return|>", True),
        ("<|channel|>final<|message|>x<|call|>", False),
        ("<|channel|>final<|message|>x<|endoftext|>", False),
        ("<|channel|>final<|message|>x", False),
        ("<|channel|>analysis<|message|>x<|end|>", True),
        ("<|channel|>analysis<|message|>x<|return|>", False),
        ("<|channel|>commentary<|message|>x<|end|>", True),
        (_CALL_F + "{}<|call|>", True),
        (_CALL_F + "{}<|return|>", False),
        (_CALL_F + "{}<|end|>", False),
        (_CALL_F + "<|call|>", False),
        (_CALL_F + "{} <|call|>", False),
        ("<|channel|>analysis to=functions.f<|message|>{}<|call|>", False),
        ("<|start|>assistant<|channel|>final<|message|>x<|return|>", False),
        ("<|channel|>final x<|return|>", False),
    ],
)
def test_only_what_is_as_trained_may_be_repeated_verbatim(script: str, verbatim: bool) -> None:
    (segment,) = parse(script).segments

    assert segment.verbatim is verbatim
    assert segment.complete
    assert (segment.start, segment.end) == (0, len(script_ids(script)))


@each("where", ["<|channel|>{}final<|message|>x", "<|channel|>final<|message|>{}x"])
@each("token", [199998, 200013, VOCABULARY_SIZE, 10**12, -1])
def test_ids_without_meaning_vanish_and_are_not_repeated(where: str, token: int) -> None:
    before, after = where.split("{}")
    turn = parse_chunks([[*script_ids(before), token, *script_ids(after + "<|return|>")]])

    assert turn.said() == [(FINAL, "", "x")]
    assert turn.recoveries == {Rule.RESERVED_ID: 1}
    assert not turn.segments[0].verbatim


@each(
    ("script", "finish", "complete"),
    [
        ("<|channel|>final<|message|>x", FinishReason.STOP, True),
        ("<|channel|>final<|message|>x", FinishReason.LENGTH, False),
        ("<|channel|>final<|message|>x", None, False),
        ("<|channel|>final<|message|>x<|end|>", None, True),
        ("<|channel|>final x", FinishReason.LENGTH, False),
        ("<|message|>x", FinishReason.LENGTH, False),
        (_THOUGHT + "x", FinishReason.LENGTH, False),
        (_CALL_F + "{}", FinishReason.LENGTH, True),
        (_CALL_F + '{"a', FinishReason.LENGTH, False),
        (_CALL_F + '{"a', FinishReason.STOP, True),
        (_CALL_F + "ls", None, False),
    ],
)
def test_what_is_cut_off_is_incomplete_unless_it_is_whole_arguments(
    script: str, finish: FinishReason | None, complete: bool
) -> None:
    assert parse(script, finish).segments[-1].complete is complete


@each(
    "script",
    [
        "<|channel|>",
        "<|channel|>comment",
        "<|channel|>commentary to",
        "<|channel|>commentary to=",
        "<|channel|>commentary to=functions.get",
        " to",
        "<|start|>",
        "<|start|>assistant",
    ],
)
def test_a_header_that_is_cut_off_says_nothing(script: str) -> None:
    turn = parse(script, FinishReason.LENGTH)

    assert turn.segments == []
    assert turn.recoveries.keys() <= {Rule.NO_VISIBLE_OUTPUT, Rule.DOUBLED_START}


@each(
    ("script", "said"),
    [
        ("hello", [(FINAL, "", "hello")]),
        ('{"a": 1}<|return|>', [(FINAL, "", '{"a": 1}')]),
        ("<|message|>hello<|end|>" + _ANSWER, [(REASONING, "", "hello"), (FINAL, "", "x")]),
        ("<|channel|>foo<|message|>hello<|return|>", [(FINAL, "", "hello")]),
        (
            "a<|end|>b<|end|>c<|return|>",
            [(REASONING, "", "a"), (REASONING, "", "b"), (FINAL, "", "c")],
        ),
        ("a<|end|><|start|>assistant", [(FINAL, "", "a")]),
        ("a<|end|><|start|>user<|message|>b<|end|>", [(FINAL, "", "a")]),
        (_THOUGHT + '{"country": 1}', [(REASONING, "", "t"), (FINAL, "", '{"country": 1}')]),
        (_THOUGHT + "42", [(REASONING, "", "t"), (FINAL, "", "42")]),
        (_THOUGHT + "42<|end|>" + _ANSWER, [(REASONING, "", "t"), (FINAL, "", "x")]),
        (_THOUGHT + _ANSWER + "42", [(REASONING, "", "t"), (FINAL, "", "x")]),
        (_THOUGHT + "...", [(REASONING, "", "t")]),
        (_THOUGHT + " \n", [(REASONING, "", "t")]),
        (_THOUGHT + "assistant" + _ANSWER, [(REASONING, "", "t"), (FINAL, "", "x")]),
        (_THOUGHT + "assistantfinal It is.", [(REASONING, "", "t"), (FINAL, "", "It is.")]),
        (
            _THOUGHT + "Well.<|channel|>final<|message|>x<|return|>",
            [(REASONING, "", "t"), (REASONING, "", "Well."), (FINAL, "", "x")],
        ),
    ],
)
def test_text_without_a_channel_is_the_answer_if_nothing_follows_it(
    script: str, said: list[tuple[SegmentKind, str, str]]
) -> None:
    assert parse(script).said() == said


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (_CALL_F.replace("<|message|>", "") + ' json{"a": 1}<|end|>', (CALL, "f", '{"a": 1}')),
        (_CALL_F.replace("<|message|>", "") + " ls<|call|>", (CALL, "f", "ls")),
        (_CALL_F.replace("<|message|>", "") + "<|call|>", (CALL, "f", "{}")),
        (_CALL_F.replace("<|message|>", "") + " let me see<|end|>", (REASONING, "", "let me see")),
        ("<|channel|>analysis let me see<|start|>assistant", (REASONING, "", "let me see")),
    ],
)
def test_a_trapped_body_is_a_call_only_if_it_looks_like_arguments(
    script: str, said: tuple[SegmentKind, str, str]
) -> None:
    turn = parse(script)

    assert turn.said() == [said]
    assert turn.recoveries[Rule.NO_MESSAGE_TOKEN] == 1


@each("size", [1, 3, 100])
@each(
    ("front", "said"),
    [
        ("<|channel|>final ", (FINAL, "")),
        ("<|channel|>analysis ", (REASONING, "")),
        ("", (FINAL, "")),
        (_CALL_F.replace("<|message|>", "") + " ", (REASONING, "")),
    ],
)
def test_a_header_longer_than_any_header_is_a_body(
    front: str, said: tuple[SegmentKind, str], size: int
) -> None:
    body = "so it goes 💖 on and on, " * 3
    ids = script_ids(front + body + "<|end|>")
    chunks = [ids[at : at + size] for at in range(0, len(ids), size)]

    for bound in range(len(script_ids(front)) + 1, 40):
        (segment,) = parse_chunks(chunks, header_ids_max=bound).segments

        assert (segment.kind, segment.name) == said
        assert segment.text.startswith("so it goes 💖 on")
        assert (segment.end, segment.verbatim) == (len(ids), False)


def test_a_long_header_streams_from_its_bound_on() -> None:
    parser = Parser(vocabulary(), TOOLS, header_ids_max=4)

    assert parser.feed(script_ids("<|channel|>final so it")) == []
    assert parser.feed(script_ids(" goes")) == [SegmentStarted(FINAL), SegmentText("so it goes")]
    assert parser.recoveries == {Rule.NO_MESSAGE_TOKEN: 1, Rule.HEADER_TOO_LONG: 1}


def test_markers_cannot_make_a_header_longer_than_its_bound() -> None:
    turn = parse("<|channel|>" * 10 + "final<|message|>x<|return|>", header_ids_max=4)

    assert turn.said() == [(FINAL, "", "x")]
    assert turn.recoveries[Rule.HEADER_TOO_LONG] == 2


def test_a_header_that_begins_as_text_and_is_too_long_keeps_its_recipient() -> None:
    body = f'{{"x": "{"word " * 300}"}}'
    front = "<|channel|>analysis<|message|>hm<|end|>commentary to=f <|constrain|>json"
    assert parse(f"{front}{body}<|call|>").segments[-1].text == body
    assert parse(f"{front}{body}<|call|>").segments[-1].name == "f"


def test_a_long_header_of_somebody_else_ends_the_turn() -> None:
    turn = parse("<|start|>user who goes on and on<|message|>x", header_ids_max=4)

    assert turn.segments == []
    assert turn.recoveries[Rule.FOREIGN_ROLE] == 1


@each(
    "script",
    [
        "<|start|>user<|message|>next<|end|>" + _ANSWER,
        "<|start|>tool next<|end|>" + _ANSWER,
        "<|start|>functions.f to=assistant<|channel|>commentary<|message|>42<|end|>" + _ANSWER,
        "<|start|>functions.f to=assistant<|channel|>commentary<|message|>{}<|call|>",
        "<|start|>bash<|channel|>commentary<|message|>ls<|end|>" + _ANSWER,
        "<|start|>bash<|channel|>commentary<|message|>ls<|channel|>final<|message|>x",
        "<|start|>bash<|channel|>commentary<|message|>ls",
        "<|start|>user" + _ANSWER,
        "<|start|>user",
    ],
)
def test_the_turn_ends_where_the_model_speaks_for_somebody_else(script: str) -> None:
    turn = parse(_THOUGHT + script)

    assert turn.said() == [(REASONING, "", "t")]
    assert turn.recoveries[Rule.FOREIGN_ROLE] == 1


def test_a_message_in_the_name_of_a_function_is_a_call_if_it_is_closed_as_one() -> None:
    turn = parse(_THOUGHT + "<|start|>functions.f<|channel|>commentary<|message|>{}<|call|>")

    assert turn.said() == [(REASONING, "", "t"), (SegmentKind.FUNCTION_CALL, "f", "{}")]


def test_ids_behind_the_end_of_the_turn_are_counted_and_ignored() -> None:
    turn = parse("<|channel|>final<|message|>x<|endoftext|>" + _ANSWER)

    assert turn.said() == [(FINAL, "", "x")]
    assert turn.recoveries[Rule.AFTER_TURN_END] == len(script_ids(_ANSWER))


def test_a_finished_parser_stays_finished() -> None:
    parser = _parser()

    assert parser.finish(FinishReason.STOP) == []
    assert parser.finish(FinishReason.STOP) == []
    assert parser.feed(script_ids(_THOUGHT)) == []
    assert parser.recoveries == {Rule.NO_VISIBLE_OUTPUT: 1, Rule.AFTER_TURN_END: 5}


def test_a_turn_that_was_broken_off_need_not_have_said_anything() -> None:
    assert parse("", None).recoveries == {}


def test_only_bodies_of_reasoning_count_as_reasoning() -> None:
    thought = "Let me think about it."
    count = len(script_ids(thought))

    assert parse(f"<|channel|>analysis<|message|>{thought}<|end|>").reasoning_tokens == count
    assert parse(f"<|channel|>final<|message|>{thought}<|return|>").reasoning_tokens == 0
    assert parse(f"{_CALL_F}{thought}<|call|>").reasoning_tokens == 0
    assert parse(f"<|channel|>analysis to=python<|message|>{thought}").reasoning_tokens == count
    assert parse(f"<|message|>{thought}<|end|>{_ANSWER}").reasoning_tokens == count
    assert parse(f"<|message|>{thought}<|end|>").reasoning_tokens == 0
    trapped = len(script_ids(" " + thought))
    assert parse(f"<|channel|>analysis {thought}<|end|>").reasoning_tokens == trapped


def test_reasoning_is_counted_while_it_streams() -> None:
    parser = _parser()

    parser.feed(script_ids("<|channel|>analysis<|message|>"))
    parser.feed(script_ids("a b c"))

    assert parser.reasoning_tokens == 3
    parser.finish(FinishReason.STOP)
    assert parser.recoveries[Rule.NO_VISIBLE_OUTPUT] == 1


_PROVOKED = {
    Rule.DOUBLED_START: "<|start|>" + _ANSWER,
    Rule.MISSING_START: _THOUGHT + "<|channel|>final<|message|>x<|return|>",
    Rule.MISSING_ROLE: _THOUGHT + "<|start|><|channel|>final<|message|>x<|return|>",
    Rule.UNCLOSED_MESSAGE: "<|channel|>analysis<|message|>t" + _ANSWER,
    Rule.MARKER_IN_BODY: "<|channel|>final<|message|><|message|>x<|return|>",
    Rule.RESERVED_ID: _THOUGHT + "<|startoftext|>" + _ANSWER,
    Rule.WRONG_TERMINATOR: "<|channel|>final<|message|>x<|call|>",
    Rule.NO_MESSAGE_TOKEN: "<|channel|>final x<|return|>",
    Rule.ABANDONED_HEADER: "<|channel|>final<|return|>",
    Rule.HEADER_TOO_LONG: "<|channel|>final " + "x " * 300,
    Rule.HEADER_AS_TEXT: "final<|message|>x<|return|>",
    Rule.HEADER_LEFTOVER: "<|channel|>final?<|message|>x<|return|>",
    Rule.NO_CHANNEL: "<|message|>x<|return|>",
    Rule.DUPLICATE_CHANNEL: "<|channel|>final<|channel|>final<|message|>x<|return|>",
    Rule.DUPLICATE_RECIPIENT: "<|channel|>commentary to=functions.f to=functions.f<|message|>x",
    Rule.RECIPIENT_NORMALISED: "<|channel|>commentary to=f<|message|>x",
    Rule.CALL_OFF_COMMENTARY: "<|channel|>analysis to=functions.f<|message|>x",
    Rule.ODD_CONTENT_TYPE: "<|channel|>final <|constrain|>yaml<|message|>x<|return|>",
    Rule.UNDECLARED_FUNCTION: "<|channel|>commentary to=functions.g<|message|>{}<|call|>",
    Rule.BUILTIN_NOT_ENABLED: "<|channel|>analysis to=python<|message|>x<|call|>",
    Rule.CALL_NOT_ALLOWED: _CALL_F + "{}<|call|>",
    Rule.UNKNOWN_RECIPIENT: "<|channel|>commentary to=nobody<|message|>x<|call|>",
    Rule.ADDRESSED_TO_ASSISTANT: "<|channel|>commentary to=assistant<|message|>x<|end|>",
    Rule.ROLE_IS_TOOL_NAME: "<|start|>bash<|message|>ls<|call|>",
    Rule.FOREIGN_ROLE: "<|start|>user<|message|>x",
    Rule.ORPHAN_TEXT: _THOUGHT + "364" + _ANSWER,
    Rule.TEXT_AFTER_CALL: _CALL_F + "{}<|call|>Anything else?",
    Rule.AFTER_TURN_END: "<|endoftext|>x",
    Rule.EMPTY_ARGUMENTS: _CALL_F + "<|call|>",
    Rule.PADDED_ARGUMENTS: _CALL_F + "{} <|call|>",
    Rule.REPEATED_ARGUMENTS: _CALL_F + "{}{}<|call|>",
    Rule.CONTROL_CHARACTER: _CALL_F + '{"a": "\n"}<|call|>',
    Rule.INVALID_ARGUMENTS: _CALL_F + "{}[]<|call|>",
    Rule.NO_VISIBLE_OUTPUT: _THOUGHT,
    Rule.PREAMBLE_ONLY: "<|channel|>commentary<|message|>x<|return|>",
    Rule.AFTER_ANSWER: "<|channel|>final<|message|>x<|end|><|channel|>?<|message|>y<|return|>",
    Rule.CALL_BY_TERMINATOR: "<|channel|>commentary f<|message|>{}<|call|>",
    Rule.FENCED_ARGUMENTS: _CALL_F + "```json\n{}\n```<|call|>",
    Rule.STRAY_CLOSER: _CALL_F + "{}}<|call|>",
}


@each("rule", Rule)
def test_every_rule_is_counted_by_its_name(rule: Rule) -> None:
    tools = None if rule is Rule.CALL_NOT_ALLOWED else TOOLS
    assert parse(_PROVOKED[rule], tools=tools).recoveries[rule.value] >= 1


@pytest.mark.parametrize("following", ["<|channel|>commentary", "<|constrain|>json"])
def test_a_header_without_start_may_begin_with_any_marker(following: str) -> None:
    turn = parse(_THOUGHT + "commentary to=functions.f " + following + "<|message|>{}<|call|>")

    assert turn.said() == [(REASONING, "", "t"), (CALL, "f", "{}")]
    assert turn.segments[1].start == len(script_ids(_THOUGHT))


def test_long_text_between_messages_is_never_a_header() -> None:
    prose = "commentary to=functions.f " + "word " * 300
    turn = parse(_THOUGHT + prose + "<|message|>x<|return|>")

    assert turn.said()[1:] == [(REASONING, "", prose), (FINAL, "", "x")]


@pytest.mark.requirement("harmony.call")
def test_text_behind_a_call_is_dropped_even_when_a_message_follows() -> None:
    turn = parse(_CALL_F + "{}<|call|>Anything else?" + _ANSWER)

    assert turn.said() == [(CALL, "f", "{}"), (FINAL, "", "x")]
    assert turn.recoveries == {Rule.TEXT_AFTER_CALL: 1}


def test_words_in_an_analysis_header_stay_in_front_of_an_empty_body() -> None:
    turn = parse("<|channel|>analysis need more<|message|><|end|>")

    assert turn.said() == [(REASONING, "", "need more")]


def test_without_preambles_they_are_reasoning() -> None:
    ids = script_ids("<|channel|>commentary<|message|>I look.<|end|>")
    parser = Parser(vocabulary(), TOOLS, preambles=False)
    segments = parser.feed(ids)
    assert segments[:2] == [SegmentStarted(SegmentKind.REASONING), SegmentText("I look.")]
    assert parser.reasoning_tokens == len(vocabulary().encode("I look."))
    parser.finish(FinishReason.STOP)
    assert parser.recoveries[Rule.NO_VISIBLE_OUTPUT] == 1


def test_a_call_that_is_cut_off_before_its_arguments_has_none() -> None:
    parser = Parser(vocabulary(), TOOLS)
    events = [*parser.feed(script_ids(_CALL_F)), *parser.finish(FinishReason.LENGTH)]
    assert [event for event in events if isinstance(event, SegmentText)] == []
