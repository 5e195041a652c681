"""Where a turn of a chat format stands, and what streams of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.constraints.output_rules import AnswerFormat
from gateway.generation import (
    BrokenCall,
    FinishReason,
    ParserPosition,
    SegmentEnded,
    SegmentKind,
    SegmentText,
    Where,
)
from gateway.models.chat.call_syntax import offered_name
from gateway.models.chat.chat_parser import Prose, Unit
from tests.fakes.cases import each
from tests.fakes.chat_turns import RULES, SEARCH, Model, text_of, told

if TYPE_CHECKING:
    from gateway.generation import SegmentEvent

MODEL = Model()
SPELLED = Model(spelled=("<think>", "</think>", "<tool_call>", "</tool_call>"))
PLAIN = Model("none", "none")
LLAMA = Model("llama3_json", "none")
CODER = Model("qwen3_coder", "think", ("<function=", "<parameter=", "</parameter>", "</function>"))
CALLS_OF_MISTRAL = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
OWED = replace(RULES, calls="required")
ANSWERED = replace(RULES, answer=AnswerFormat("json_object", {}))
TOLD_OF_NONE = replace(RULES, tools={}, allowed=frozenset())
STOP, LENGTH, CUT = FinishReason.STOP, FinishReason.LENGTH, FinishReason.CUT


@each(
    ("text", "said", "rules"),
    [
        ("<think>\nhm\n</think>\n\nHi<|im_end|>", ["reasoning: hm", "final: Hi"], {}),
        ("<think>\n\n</think>\n\nHi", ["final: Hi"], {}),
        ("Hi \n", ["final: Hi \n"], {}),
        (" \nHi", ["final:  \nHi"], {}),
        (" \n", [], {"no_visible_output": 1}),
        ("a <think>b</think> c", ["final: a <think>b</think> c"], {}),
        ("a </think> b", ["final: a </think> b"], {}),
        ("<think>a</think>\n<think>b</think>c",
         ["reasoning: a", "reasoning: b", "final: c"], {}),
        ("a\n</think>\n\nb", ["final: a\n\n\nb"], {"marker_in_body": 1}),
        ("a\n<think>\n</think>\nb", ["final: a\n<think>\n</think>\nb"], {}),
        ("<think>a\n<think>\nb</think>c", ["reasoning: a\n\nb", "final: c"],
         {"marker_in_body": 1}),
        ("</think>\n\nHi", ["final: Hi"], {}),
        ("</think></think>Hi", ["final: Hi"], {"marker_in_body": 1}),
        ("<think>a <think>b</think>c", ["reasoning: a <think>b", "final: c"], {}),
        ("<think><think>b</think>c", ["reasoning: b", "final: c"], {"marker_in_body": 1}),
        ("<think>a", ["reasoning: a"], {"unclosed_reasoning": 1, "no_visible_output": 1}),
        ('<think>a<tool_call>{"name": "f", "arguments": {}}</tool_call>',
         ["reasoning: a", "f({})"], {"unclosed_reasoning": 1}),
        ('<tool_call>{"name": "f", "arguments": {</think>}}</tool_call>',
         ["f({})"], {"marker_in_body": 1}),
        ('<tool_call>{"name": "f", "arguments": {}}</tool_call> Hi',
         ["f({})", "final: Hi"], {}),
        ("Hi<|im_end|>more</s>", ["final: Hi"], {"after_turn_end": 5}),
        ('<tool_call>{"name": "browser.search", "arguments": {}}</tool_call>Hi',
         [f"{SEARCH}({{}})"], {"after_turn_end": 2}),
        ('```\n{"name": "f", "arguments": {}}\n```\n```json\n{"name": "g", "arguments": {}}```',
         ["f({})", "g({})"], {"odd_frame": 2}),
    ],
)  # fmt: skip
def test_what_a_turn_says(text: str, said: list[str], rules: dict[str, int]) -> None:
    assert MODEL.read(text) == (said, rules)


def test_an_object_is_an_answer_where_none_may_be_called_and_where_one_is_demanded() -> None:
    text = '{"name": "f", "arguments": {}}'
    for rules in (replace(RULES, calls="none"), TOLD_OF_NONE, ANSWERED):
        assert MODEL.read(text, rules=rules) == ([f"final: {text}"], {})
    assert MODEL.read(text, rules=OWED) == (["f({})"], {"odd_frame": 1})
    assert MODEL.read(f"<think>{text}")[0] == [f"reasoning: {text}"]
    assert MODEL.read(f"\n {text}x") == (["f({})", "final: x"], {"odd_frame": 1})
    assert MODEL.read("\n {1}") == (["final: \n {1}"], {})
    assert MODEL.read("\n ```json") == (["final: \n ```json"], {})


_F = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


@pytest.mark.parametrize("model", [MODEL, SPELLED])
@each(
    ("text", "said", "rules"),
    [
        ("a <tool_call> b", ["final: a <tool_call> b"], {"not_a_call": 1}),
        ("a <tool_call>", ["final: a <tool_call>"], {"abandoned_call": 1}),
        ("a `<tool_call></tool_call>` b",
         ["final: a `<tool_call></tool_call>` b"], {"abandoned_call": 1}),
        ('a <tool_call>\n{"x": 1}\n</tool_call> b',
         ['final: a <tool_call>\n{"x": 1}\n</tool_call> b'], {"not_a_call": 1}),
        (f"a <tool_call> b {_F} c", ["final: a <tool_call> b", "f({})", "final: c"],
         {"not_a_call": 1}),
    ],
)  # fmt: skip
def test_an_answer_that_speaks_of_calls_goes_on(
    model: Model, text: str, said: list[str], rules: dict[str, int]
) -> None:
    assert model.read(text) == (said, rules)


@each(
    ("text", "said", "rules"),
    [
        ("<think>a <tool_call></tool_call> b</think>c",
         ["reasoning: a <tool_call></tool_call> b", "final: c"], {"abandoned_call": 1}),
        ('<think>a <tool_call>\n{"x": </think>c',
         ['reasoning: a <tool_call>\n{"x":', "final: c"], {"not_a_call": 1}),
        ('<think>a <tool_call>{"x": 1}',
         ['reasoning: a <tool_call>{"x": 1}'],
         {"not_a_call": 1, "unclosed_reasoning": 1, "no_visible_output": 1}),
        (f"<think>a <tool_call> b {_F}", ["reasoning: a <tool_call> b", "f({})"],
         {"not_a_call": 1, "unclosed_reasoning": 1}),
    ],
)  # fmt: skip
def test_a_thought_that_speaks_of_calls_goes_on(
    text: str, said: list[str], rules: dict[str, int]
) -> None:
    assert MODEL.read(text) == (said, rules)


def test_the_beginning_of_a_call_that_is_cut_off_is_no_part_of_the_prose_before_it() -> None:
    assert MODEL.read('a\n<tool_call>\n{"na', LENGTH)[0] == ["final: a"]


@pytest.mark.parametrize("model", [MODEL, SPELLED])
def test_markers_in_strings_of_arguments_are_text(model: Model) -> None:
    arguments = '{"a": "<think></think><tool_call></tool_call>", "</tool_call>": 1}'
    call = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    assert model.read(call) == ([f"f({arguments})"], {})


def test_a_thought_may_be_cut_off_or_empty() -> None:
    assert MODEL.read("<think>hm", LENGTH)[0] == ["reasoning: hm cut"]
    assert MODEL.read("<think></think>Hi")[0] == ["final: Hi"]


def test_a_marker_of_thoughts_in_letters_counts_only_before_the_answer() -> None:
    said = ["reasoning: a", "final: b <think> </think>"]
    assert SPELLED.read("<think>a</think>b <think> </think>")[0] == said
    assert SPELLED.read("a<tool_ca")[0] == ["final: a<tool_ca"]


def test_letters_of_a_marker_that_is_an_id_are_text() -> None:
    parser = MODEL.parser()
    ids = MODEL.vocabulary.encode("<think>Hi</think>")
    events = [*parser.feed(ids), *parser.finish(STOP)]
    assert told(events) == ["final: <think>Hi</think>"]


def test_a_plain_model_says_text_alone() -> None:
    text = '<think>a</think>{"name": "f", "arguments": {}}'
    assert PLAIN.read(text) == ([f"final: {text}"], {})


def test_ids_that_are_nothing_are_dropped() -> None:
    parser = MODEL.parser()
    ids = [MODEL.vocabulary.size + 7, *MODEL.ids("Hi"), -3]
    assert told([*parser.feed(ids), *parser.finish(STOP)]) == ["final: Hi"]
    assert parser.recoveries == {"reserved_id": 2}
    pieces = [parser.piece(one) for one in (65, MODEL.ids("<think>")[0], -3)]
    assert pieces == [b"A", b"<think>", b""]


def test_half_a_character_waits_and_is_replaced_at_the_end() -> None:
    parser = MODEL.parser()
    assert text_of(parser.feed(b"a\xf0")) == "a"
    assert text_of(parser.feed(b"\x9f\x92")) == ""
    assert text_of(parser.feed(b"\x96")) == "\U0001f496"
    assert text_of(parser.feed(b"\xc3A\xc3")) == "\ufffdA"
    assert text_of(parser.finish(STOP)) == "\ufffd"


@pytest.mark.parametrize(
    ("model", "text", "said", "rules"),
    [
        (CODER, "Write <function=name> and </function>.",
         ["final: Write <function=name> and </function>."], {}),
        (CODER, "<think>a <tool_call>b</think>c", ["reasoning: a <tool_call>b", "final: c"], {}),
        (SPELLED, 'So:\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
         ['final: So:\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'], {}),
        (MODEL, 'So: <tool_call>{"name": "f", "arguments": {}}</tool_call>!',
         ['final: So: <tool_call>{"name": "f", "arguments": {}}</tool_call>!'], {}),
        (LLAMA, '{"name": "f", "parameters": {}}', ['final: {"name": "f", "parameters": {}}'], {}),
        (LLAMA, '<|python_tag|>{"name": "f", "parameters": {}}',
         ['final: {"name": "f", "parameters": {}}'], {"marker_in_body": 1}),
    ],
)  # fmt: skip
def test_who_was_told_of_no_tools_calls_none(
    model: Model, text: str, said: list[str], rules: dict[str, int]
) -> None:
    assert model.read(text, rules=TOLD_OF_NONE) == (said, rules)


def test_a_call_that_is_not_allowed_is_one() -> None:
    forbidden = replace(RULES, calls="none")
    assert MODEL.read('<tool_call>{"name": "f"}</tool_call>', rules=forbidden)[0] == ["f({})"]


def test_what_is_owed_comes_behind_commentary() -> None:
    text = 'I look.<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert MODEL.read(text, rules=OWED)[0] == ["commentary: I look.", "f({})"]


def test_behind_a_call_of_a_hosted_tool_nothing_counts() -> None:
    hosted = "[TOOL_CALLS]browser.search[ARGS]{}[TOOL_CALLS]f[ARGS]{}"
    for model in (Model("mistral", "none"), Model("mistral", "none", CALLS_OF_MISTRAL)):
        assert model.read(hosted)[0] == [f"{SEARCH}({{}})"]
        assert model.read("[TOOL_CALLS]browser.search[ARGS]{};{}")[0] == [f"{SEARCH}({{}})"]


def test_what_may_be_the_end_of_a_call_is_no_part_of_it() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": "</tool_c'
    assert SPELLED.read(text, LENGTH)[0] == ['f({"a": ") cut']
    assert SPELLED.read(text)[0] == ['f({"a": "</tool_c) broken']


def place(text: str, model: Model = MODEL) -> ParserPosition:
    parser = model.parser()
    parser.feed(model.ids(text))
    return parser.place


def test_where_a_turn_stands() -> None:
    thought, final, call = (SegmentKind.REASONING, SegmentKind.FINAL, SegmentKind.FUNCTION_CALL)
    front = '<tool_call>{"name": "f", "arguments": '
    size = len(MODEL.ids(front))
    assert place("") == ParserPosition(Where.HEADER, 0)
    assert place("<think>") == ParserPosition(Where.BODY, 0, thought)
    assert place("<think>a</think>") == ParserPosition(Where.BETWEEN, 3)
    assert place("</think>") == ParserPosition(Where.BETWEEN, 1)
    assert place("<think>a</think>\nb") == ParserPosition(Where.BODY, 3, final)
    assert place(front) == ParserPosition(Where.HEADER, 0)
    assert place(front + "{") == ParserPosition(Where.BODY, 0, call, "f")
    closed = len(MODEL.ids(front + "{}}</tool_call>"))
    assert place(front + "{}}</tool_call>") == ParserPosition(Where.BETWEEN, closed, called=True)
    broken = BrokenCall("f", size + 1)
    assert place(front + "{</tool_call>") == ParserPosition(
        Where.BETWEEN, size + 2, broken=broken, called=True
    )
    assert place(front + "{</tool_call>a").broken is None
    hosted = '<tool_call>{"name": "browser.search", "arguments": {}}</tool_call>'
    over = ParserPosition(Where.OVER, len(MODEL.ids(hosted)), call, SEARCH)
    assert place(hosted) == over
    assert place("Hi<|im_end|>") == ParserPosition(Where.OVER, len(MODEL.ids("Hi")) + 1)


def test_arguments_in_front_of_the_name_are_those_of_a_call() -> None:
    """So Hermes' models write them."""
    call = SegmentKind.FUNCTION_CALL
    front = '<tool_call>\n{"arguments": '
    assert place(front) == ParserPosition(Where.HEADER, 0)
    assert place(front + '{"a": 1') == ParserPosition(Where.BODY, 0, call)
    assert place(front + '{"a": 1}, "name": ') == ParserPosition(Where.BODY, 0, call)
    assert place(front + '{"a": 1}, "name": "f"') == ParserPosition(Where.BODY, 0, call, "f")
    assert place(front + "{}}</tool_call>").kind is None
    answer = '{"parameters": {}, "answer": 1}'
    assert place(answer[:-3], LLAMA).kind is SegmentKind.FINAL


def test_text_that_may_become_a_marker_waits_as_such() -> None:
    parser = SPELLED.parser()
    parser.feed(SPELLED.ids("<think>abc</thi"))
    assert parser.place.waiting == len(SPELLED.ids("</thi"))
    assert parser.reasoning_tokens == 3


def test_a_call_that_breaks_off_is_told_with_what_follows() -> None:
    parser = MODEL.parser()
    events = parser.feed(MODEL.ids('<tool_call>{"name": "f", "arguments": {</tool_call>'))
    assert not any(isinstance(event, SegmentEnded) for event in events)
    again = parser.feed(MODEL.ids('<tool_call>{"name": "g", "arguments": {'))
    assert isinstance(again[0], SegmentEnded)
    assert again[0].broken


def test_reasoning_is_counted_in_ids() -> None:
    parser = MODEL.parser()
    parser.feed(MODEL.ids("<think>\n ab</think>cd"))
    assert parser.reasoning_tokens == len(MODEL.ids("\n ab"))


def test_text_streams_id_by_id() -> None:
    parser = MODEL.parser()
    assert parser.feed_each(MODEL.ids("ab")) == []
    parser.feed(MODEL.ids("a"))
    assert parser.feed_each([*MODEL.ids("b \nc"), *MODEL.ids("<think>x")]) == ["b", "", "", " \nc"]
    assert parser.feed_each([0xC3]) == []
    assert MODEL.parser(trace=True).feed_each(MODEL.ids("a")) == []
    parser = MODEL.parser()
    parser.feed(MODEL.ids("a"))
    assert parser.feed_each(MODEL.ids("bc")) == ["b", "c"]


def test_traced_text_is_told_in_whole_ids() -> None:
    parser = MODEL.parser(trace=True)
    ids = [*MODEL.ids("<think>"), *b" a\n\xc3\xa9 ", *MODEL.ids("</think>"), *b"\n b \n"]
    texts = [one for token in ids for one in parser.feed([token]) if isinstance(one, SegmentText)]
    texts += [one for one in parser.finish(STOP) if isinstance(one, SegmentText)]
    assert "".join(one.text for one in texts) == "a\n\u00e9b \n"
    assert [one.tokens for one in texts] == [(2,), (3, 4, 5), (10,), (11, 12)]


def test_a_finished_turn_says_nothing_more() -> None:
    parser = MODEL.parser()
    parser.feed(MODEL.ids("<think>a"))
    assert parser.finish(CUT)
    assert parser.finish(STOP) == []
    assert parser.feed(MODEL.ids("b")) == []
    assert parser.recoveries == {"after_turn_end": 1}


def test_tools_that_the_gateway_runs_are_functions_to_the_model() -> None:
    assert offered_name(SEARCH) == "browser.search"
    assert offered_name("crm.find") == "crm.find"


def test_ids_that_are_nothing_are_dropped_in_the_middle_of_an_answer() -> None:
    parser = MODEL.parser()
    nothing = MODEL.vocabulary.size + 7
    events = parser.feed(MODEL.ids("Hi"))
    for ids in ([nothing], [nothing, *MODEL.ids("!")], MODEL.ids(" you")):
        events += parser.feed(ids)
    assert told([*events, *parser.finish(STOP)]) == ["final: Hi! you"]
    assert parser.recoveries == {"reserved_id": 2}


@pytest.mark.parametrize("trace", [False, True])
def test_white_space_at_the_end_of_an_id_waits_for_what_follows(trace: bool) -> None:
    """Such as that of a piece which is a word and a line's end."""
    events: list[SegmentEvent] = []
    prose = Prose(SegmentKind.FINAL, 0, events, trace=trace)
    for position, text in enumerate(("a", "b\n", "c", "d\n")):
        prose.write(Unit(text, position, position + 1, is_exact=True))
    prose.close(4, complete=True, at_marker=True)
    texts = [one.text for one in events if isinstance(one, SegmentText)]
    assert "".join(texts) == "ab\ncd"
