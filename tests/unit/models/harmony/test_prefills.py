"""Headers that are put into the model's mouth are read as what they are meant to be."""

from __future__ import annotations

from functools import cache

import pytest

from gateway.constraints.rules import AnswerFormat, OutputRules, ToolRule
from gateway.generation import SegmentKind, SegmentStarted
from gateway.models.harmony.framing import CALL_PREFIX, FINAL_HEADER, answer_header, call_header
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.vocabulary import Vocabulary
from tests.fakes.harmony_script import harmony

TOOLS = {
    name: ToolRule(name, SegmentKind.FUNCTION_CALL, name) for name in ("get_weather", "crm.find")
}


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary.load()


def rules(*allowed: str, answer: AnswerFormat | None = None) -> OutputRules:
    return OutputRules(TOOLS, frozenset(allowed), answer=answer)


@pytest.mark.parametrize("name", TOOLS)
def test_one_tool_gets_a_whole_header(name: str) -> None:
    header = call_header(rules(name), vocabulary())
    parser = Parser(vocabulary(), frozenset(TOOLS))
    assert parser.feed(header) == [SegmentStarted(SegmentKind.FUNCTION_CALL, name)]
    assert parser.recoveries == {}


def test_of_several_tools_the_model_names_one() -> None:
    header = call_header(rules(*TOOLS), vocabulary())
    assert header == CALL_PREFIX == tuple(vocabulary().encode(" to=functions."))


def test_without_a_format_the_answer_has_a_plain_header() -> None:
    assert answer_header(rules(), attempt=1) == FINAL_HEADER


@pytest.mark.parametrize(
    ("answer", "attempt", "begun"),
    [
        (AnswerFormat("json_object", {}), 0, ""),
        (AnswerFormat("json_object", {}), 1, "{"),
        (AnswerFormat("json_schema", {"type": "object"}, strict=True), 2, "{"),
        (AnswerFormat("json_schema", {"type": "array"}, strict=True), 2, ""),
    ],
)
def test_an_answer_in_a_format_has_a_header_that_says_so(
    answer: AnswerFormat, attempt: int, begun: str
) -> None:
    parser = Parser(vocabulary(), None)
    header = answer_header(rules(answer=answer), attempt=attempt)
    started = SegmentStarted(SegmentKind.FINAL, form=1)
    assert parser.feed((*header, *vocabulary().encode("x")))[0] == started
    assert parser.recoveries == {}
    assert vocabulary().decode(list(header)) == "final json" + begun


def test_a_channel_is_asked_for_with_its_marker_alone() -> None:
    assert harmony().message_opening() == FINAL_HEADER[:1]


"""Headers that are put into the model's mouth are read as what they are meant to be."""
