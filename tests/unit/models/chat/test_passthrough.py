"""A turn of text: read in one way however it is cut, and told again as messages."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.constraints.output_rules import AnswerFormat, OutputRules, ToolRule
from gateway.errors import ConfigError
from gateway.generation import (
    FinishReason,
    ParserPosition,
    SegmentEnded,
    SegmentKind,
    SegmentStarted,
    SegmentText,
    Where,
)
from gateway.models.chat.passthrough import EitherParser, PassThroughFormat, TextParser
from gateway.models.format import FormatOptions, GrammarOptions
from gateway.text_ids import (
    ANSWER,
    ARGUMENTS,
    CALL,
    END,
    TEXT_BASE,
    TEXT_STATE,
    THOUGHT,
    ids_of,
    text_of,
    unpacked_lines,
)
from tests.fakes import contexts as items

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.generation import SegmentEvent, TokenParser

TOOLS = {
    "add": ToolRule("add", SegmentKind.FUNCTION_CALL, "add"),
    "srv.run": ToolRule("srv.run", SegmentKind.MCP_CALL, "run", namespace="srv"),
}
RULES = OutputRules(TOOLS, frozenset(TOOLS))
ANY_IDS = st.lists(
    st.sampled_from([THOUGHT, ANSWER, CALL, ARGUMENTS, END, 5, 1 << 30])
    | st.sampled_from([*ids_of('add {"a}\n né😀'), *ids_of("srv.run")])
    | st.sampled_from(["add", "srv.run", '{"a": 1}', " "]).map(lambda _: ids_of(" ")[0]),
    max_size=30,
)
FINISHES = st.sampled_from([None, *FinishReason])


def read(
    parser: TokenParser, pieces: Sequence[Sequence[int]], finish: FinishReason | None
) -> list[SegmentEvent]:
    events = [event for piece in pieces for event in parser.feed(piece)]
    joined: list[SegmentEvent] = []
    for event in [*events, *parser.finish(finish)]:
        last = joined[-1] if joined else None
        if isinstance(event, SegmentText) and isinstance(last, SegmentText):
            joined[-1] = SegmentText(last.text + event.text)
        else:
            joined.append(event)
    return joined


def turn(*parts: int | str) -> list[int]:
    return [one for part in parts for one in (ids_of(part) if isinstance(part, str) else [part])]


@pytest.mark.slow
@given(ANY_IDS, FINISHES, st.data())
def test_no_ids_raise_and_no_cut_counts(
    ids: list[int], finish: FinishReason | None, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    bounds = [0, *cuts, len(ids)]
    pieces = [ids[begin:end] for begin, end in itertools.pairwise(bounds)]
    whole, cut = TextParser(RULES), TextParser(RULES)
    assert read(whole, [ids], finish) == read(cut, pieces, finish)
    assert (whole.recoveries, whole.reasoning_tokens) == (cut.recoveries, cut.reasoning_tokens)
    assert whole.place == cut.place
    assert whole.feed(ids) == []


@given(ANY_IDS, FINISHES)
def test_segments_open_and_close_in_turn(ids: list[int], finish: FinishReason | None) -> None:
    is_open, end = False, 0
    for event in read(TextParser(RULES), [ids], finish):
        if isinstance(event, SegmentEnded):
            assert is_open
            assert end <= event.start <= event.end <= len(ids)
            is_open, end = False, event.end
        else:
            assert is_open is isinstance(event, SegmentText)
            is_open = True
    assert not is_open


def test_a_turn_with_all_there_is() -> None:
    parser = TextParser(RULES)
    ids = turn(THOUGHT, "\nHm. ", ANSWER, "\n", CALL, "add", ARGUMENTS, '{"a": 1}', END, "x")
    assert read(parser, [ids], FinishReason.STOP) == [
        SegmentStarted(SegmentKind.REASONING),
        SegmentText("Hm."),
        SegmentEnded(0, 6),
        SegmentStarted(SegmentKind.FUNCTION_CALL, "add"),
        SegmentText('{"a": 1}'),
        SegmentEnded(8, 21),
    ]
    assert parser.recoveries == {"after_turn_end": 1}
    assert parser.reasoning_tokens == 5
    assert parser.piece(ids[1]) == b"\n"
    assert parser.piece(END) == b""


@pytest.mark.parametrize(
    ("parts", "where", "kind"),
    [
        ((), Where.HEADER, None),
        ((ANSWER,), Where.BODY, SegmentKind.FINAL),
        ((THOUGHT, "x"), Where.BODY, SegmentKind.REASONING),
        ((CALL, "ad"), Where.HEADER, None),
        ((CALL, "add", ARGUMENTS), Where.BODY, SegmentKind.FUNCTION_CALL),
        ((ANSWER, "x", END), Where.OVER, None),
        ((CALL, "srv.run", ARGUMENTS, "{}", CALL), Where.OVER, SegmentKind.FUNCTION_CALL),
    ],
)
def test_it_knows_its_place(
    parts: tuple[int | str, ...], where: Where, kind: SegmentKind | None
) -> None:
    parser = TextParser(RULES)
    parser.feed(turn(*parts))
    assert (parser.place.where, parser.place.kind) == (where, kind)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_control_characters_in_strings_of_arguments_are_escaped(size: int) -> None:
    written = '{\n"a": "b\nc\td"}\n'
    parser = TextParser(RULES)
    ids = turn(CALL, "add", ARGUMENTS, written, END)
    chunks = [ids[at : at + size] for at in range(0, len(ids), size)]
    events = read(parser, chunks, FinishReason.STOP)
    text = "".join(event.text for event in events if isinstance(event, SegmentText))
    assert text == '{\n"a": "b\\nc\\td"}\n'
    assert parser.recoveries == {"control_character": 1}
    assert FORMAT.render_call("add", written) == FORMAT.render_call("add", text)


def test_what_is_missing_is_counted() -> None:
    parser = TextParser(RULES)
    said = read(parser, [turn(ARGUMENTS, CALL, "x", CALL, "add", ARGUMENTS, END)], None)
    assert said[1] == SegmentText("{}")
    assert parser.recoveries == {"marker_in_body": 1, "abandoned_call": 1, "empty_arguments": 1}
    mute = TextParser(RULES)
    read(mute, [turn(THOUGHT, "x", END)], FinishReason.STOP)
    assert mute.recoveries == {"no_visible_output": 1}


def test_before_a_call_that_is_demanded_text_is_commentary() -> None:
    owing = OutputRules(TOOLS, frozenset(TOOLS), calls="required")
    assert read(TextParser(owing), [turn(ANSWER, "x")], None)[0] == SegmentStarted(
        SegmentKind.COMMENTARY
    )


@pytest.mark.slow
@given(ANY_IDS)
def test_the_first_id_chooses_the_parser(ids: list[int]) -> None:
    ids = [ANSWER, *ids]
    either = EitherParser(TextParser(RULES), TextParser(RULES))
    assert read(either, [ids], None) == read(TextParser(RULES), [ids], None)


def test_an_id_of_no_text_chooses_the_other_parser() -> None:
    of_ids = EitherParser(TextParser(RULES), TextParser(RULES))
    of_ids.feed([5])
    assert of_ids.recoveries == {"reserved_id": 1}
    assert of_ids.feed_each([5]) == []
    assert of_ids.piece(TEXT_BASE) == b"\0"
    assert (of_ids.reasoning_tokens, of_ids.place.where) == (0, Where.HEADER)
    assert of_ids.finish(None) == []


# The format.

FORMAT = PassThroughFormat(sees=True, template_kwargs={"thinking": True})


def told(ids: Sequence[int]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in unpacked_lines(ids)]


def test_turns_are_told_again_without_thoughts_and_without_what_was_lost() -> None:
    said = turn(THOUGHT, "hm", ANSWER, "I look.", CALL, "srv.run", ARGUMENTS, '{"a": 1}', END)
    cut = turn(ANSWER, "x", CALL, "add", ARGUMENTS, '{"a')
    lost = turn(ANSWER, "lost")
    turns = [(said, FinishReason.STOP), (cut, FinishReason.CUT), (lost, FinishReason.LOST)]
    first, second = told(FORMAT.rerender(turns, lambda: TextParser(RULES)))
    (call,) = first.pop("tool_calls")
    assert first == {"role": "assistant", "content": "I look."}
    assert call["function"] == {"name": "srv.run", "arguments": '{"a": 1}'}
    assert second == {"role": "assistant", "content": "x"}
    assert FORMAT.rerender([(turn(THOUGHT, "x"), None)], lambda: TextParser(RULES)) == []
    result = FORMAT.render_result("srv.run", "3 \ud83d".encode("utf-8", "replace").decode())
    assert told(FORMAT.with_result([], result))[0]["role"] == "tool"
    assert told(FORMAT.render_call("add", ""))[0]["tool_calls"][0]["function"]["arguments"] == "{}"


def bound(rules: OutputRules) -> dict[str, Any] | None:
    place = ParserPosition(Where.HEADER, 0)
    constraint = FORMAT.turn_constraint(rules, place, (), GrammarOptions())
    return None if constraint is None else constraint.chat


def test_the_server_is_told_of_the_rules() -> None:
    schema = {"type": "object"}
    answer = AnswerFormat("json_schema", schema, name="n", strict=True)
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    allowed = frozenset({"add"})
    assert bound(RULES) is None
    assert bound(OutputRules(TOOLS, allowed)) == {"allowed": ["add"]}
    assert bound(OutputRules(TOOLS, allowed, calls="required")) == {
        "allowed": ["add"],
        "tool_choice": "required",
    }
    assert bound(OutputRules(TOOLS, frozenset(TOOLS), calls="none", answer=answer)) == {
        "tool_choice": "none",
        "response_format": form,
    }
    # Servers that hold the whole turn to a format never call.
    assert bound(OutputRules(TOOLS, frozenset(TOOLS), answer=answer)) is None
    plain = OutputRules({}, frozenset(), answer=AnswerFormat("json_object", {}))
    assert bound(plain) == {"response_format": {"type": "json_object"}}


def test_it_puts_nothing_into_the_models_mouth() -> None:
    openings = FORMAT.answer_opening(RULES, attempt=2), FORMAT.call_opening(RULES)
    assert openings == ((), ())
    assert (FORMAT.message_opening(), FORMAT.prefill_size([1])) == ((), 0)
    assert FORMAT.plain_header([ANSWER], 0) == 0
    assert [FORMAT.has_body(one) for one in ((), (CALL,), (CALL, ARGUMENTS), (ANSWER,))] == [
        False,
        False,
        True,
        True,
    ]
    assert FORMAT.with_state(b"anything") is FORMAT
    assert FORMAT.new_parser(RULES, trace=True).feed([ANSWER]) == []
    assert (FORMAT.template_state, FORMAT.misfits({})) == (TEXT_STATE, ())
    FORMAT.check()


def test_a_transcript_has_its_text() -> None:
    said = FORMAT.messages_of_turn(turn(ANSWER, "x"), [("rule", turn("y"))])
    assert [one["message"] for one in said] == ["x", "y"]
    assert said[1]["taken_back_by"] == "rule"
    assert len(FORMAT.turn_ids([((), turn(ANSWER, "12345678"))])) > 2
    assert FORMAT.count_ids("12345678") == 3
    assert text_of(FORMAT.encode("né")) == "né"


def test_operators_see_its_characters_and_marks() -> None:
    pieces = FORMAT.anatomy(turn(ANSWER, "é"))
    assert [(one.spelling, one.part) for one in pieces] == [
        (b"<answer>", "marker"),
        ("é".encode(), "body"),
    ]


@pytest.mark.parametrize(
    ("model", "reasoning", "is_open"),
    [
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "think", True),
        ("Qwen/Qwen3-4B-Thinking-2507", "think", True),
        ("deepseek-ai/DeepSeek-R1", None, False),
        ("Qwen/Qwen3-8B", "think", False),
        ("mistralai/Magistral-Small-2509", "mistral", False),
        ("acme/unknown-1b", "think", False),
    ],
)
def test_what_is_said_begins_within_a_thought_that_the_template_always_opens(
    model: str, reasoning: str | None, is_open: bool
) -> None:
    format_ = PassThroughFormat.load(FormatOptions(model, reasoning=reasoning))
    assert format_.render([items.user()], items.options()).opens_thought is is_open


def test_settings_say_what_it_can_do() -> None:
    plain = PassThroughFormat.load(FormatOptions(reasoning="none", calls="none"))
    assert plain.abilities == ("structured_outputs", "streaming", "background")
    assert {"vision", "tools", "reasoning", "reasoning_off"} <= set(FORMAT.abilities)
    tagged = PassThroughFormat.load(FormatOptions(reasoning="think"))
    assert tagged.framing.thought == ("<think>", "</think>")
    with pytest.raises(ConfigError, match="no reasoning 'deep'"):
        PassThroughFormat.load(FormatOptions(reasoning="deep"))
    with pytest.raises(ConfigError, match="reads calls itself"):
        PassThroughFormat.load(FormatOptions(calls="hermes"))
    assert orjson.dumps(plain.abilities)
