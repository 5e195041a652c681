"""Headers that are put into the model's mouth are read as what they are meant to be."""

from __future__ import annotations

from functools import cache

import pytest

from gateway.constraints.output_rules import AnswerFormat, OutputRules, ToolRule
from gateway.generation import BROWSER_TOOLS, PYTHON_TOOL, SEARCH_TOOL, SegmentKind, SegmentStarted
from gateway.models.harmony.harmony_format import answer_header
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.tokenizer import CALL_PREFIX, FINAL_HEADER, RECIPIENT_PREFIX, Vocabulary
from tests.fakes.harmony_script import harmony, script_ids

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
    header = harmony().call_opening(rules(name))
    parser = Parser(vocabulary(), frozenset(TOOLS))
    assert parser.feed(header) == [SegmentStarted(SegmentKind.FUNCTION_CALL, name)]
    assert parser.recoveries == {}


def test_of_several_tools_the_model_names_one() -> None:
    header = harmony().call_opening(rules(*TOOLS))
    assert header == CALL_PREFIX == tuple(vocabulary().encode(" to=functions."))


def hosted_rules(*allowed: str) -> OutputRules:
    kinds = dict.fromkeys(BROWSER_TOOLS, SegmentKind.WEB_SEARCH_CALL)
    kinds |= {PYTHON_TOOL: SegmentKind.CODE_INTERPRETER_CALL, "crm.add": SegmentKind.MCP_CALL}
    tools = {name: ToolRule(name, kind, name) for name, kind in kinds.items()}
    return OutputRules(TOOLS | tools, frozenset(allowed), calls="required")


@pytest.mark.parametrize(
    ("allowed", "name", "spelled"),
    [
        (
            BROWSER_TOOLS,
            SEARCH_TOOL,
            " to=browser.search<|channel|>analysis <|constrain|>json<|message|>",
        ),
        (
            BROWSER_TOOLS[1:2],
            BROWSER_TOOLS[1],
            " to=browser.open<|channel|>analysis <|constrain|>json<|message|>",
        ),
        ((PYTHON_TOOL,), PYTHON_TOOL, " to=python<|channel|>analysis code<|message|>"),
        (
            ("crm.add",),
            "crm.add",
            " to=functions.crm.add<|channel|>commentary <|constrain|>json<|message|>",
        ),
    ],
)
def test_a_hosted_tool_that_must_be_called_gets_a_whole_header(
    allowed: tuple[str, ...], name: str, spelled: str
) -> None:
    demanded = hosted_rules(*allowed)
    header = harmony().call_opening(demanded)
    assert list(header) == script_ids(spelled)
    parser = harmony().new_parser(demanded)
    assert parser.feed(header) == [SegmentStarted(SegmentKind.FUNCTION_CALL, name)]
    assert parser.recoveries == {}


@pytest.mark.parametrize(
    ("allowed", "prefix"),
    [
        (("crm.add", "get_weather"), CALL_PREFIX),
        ((*BROWSER_TOOLS, PYTHON_TOOL), RECIPIENT_PREFIX),
        ((*BROWSER_TOOLS, "get_weather"), RECIPIENT_PREFIX),
        ((PYTHON_TOOL, "crm.add"), RECIPIENT_PREFIX),
        (BROWSER_TOOLS[1:], RECIPIENT_PREFIX),
    ],
)
def test_of_tools_of_several_namespaces_the_model_names_that_too(
    allowed: tuple[str, ...], prefix: tuple[int, ...]
) -> None:
    assert harmony().call_opening(hosted_rules(*allowed)) == prefix
    assert tuple(vocabulary().encode(" to=")) == RECIPIENT_PREFIX


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
