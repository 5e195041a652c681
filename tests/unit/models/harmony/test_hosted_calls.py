"""Calls of tools that the gateway runs itself, as a model writes them."""

from __future__ import annotations

import pytest

from gateway.generation import PYTHON_TOOL, FinishReason, ParserPosition, SegmentKind, Where
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.recovery import Rule
from tests.fakes.cases import each
from tests.fakes.harmony_script import HOSTED, TOOLS, Turn, harmony, parse, script_ids, vocabulary

SEARCH = "builtin:browser.search"
CALL = SegmentKind.FUNCTION_CALL
THOUGHT = "<|channel|>analysis<|message|>Hm<|end|>"
JSON_TYPES = ["", " json", " <|constrain|>json", "<|constrain|>json"]
CODE_TYPES = [" code", " <|constrain|>code", "<|constrain|>code"]
ADDED = "<|channel|>commentary to=functions.crm.add <|constrain|>json<|message|>"
PYTHON = "<|channel|>analysis to=python code<|message|>"
BUILTINS = HOSTED - {"crm.add"}


def hosted(script: str, tools: frozenset[str] = TOOLS) -> Turn:
    return parse(script, tools=tools, hosted=HOSTED)


@each("content_type", [*JSON_TYPES, *CODE_TYPES])
@each(
    ("recipient", "body"),
    [("browser.search", '{"query": "x"}'), ("browser.open", '{"id": 1}'), ("python", "print(1)")],
)
@each("order", [" to={}<|channel|>analysis", "<|channel|>analysis to={}"])
def test_a_call_as_it_was_trained_is_repeated_id_for_id(
    order: str, recipient: str, body: str, content_type: str
) -> None:
    script = f"{order.format(recipient)}{content_type}<|message|>{body}<|call|>"
    turn = hosted(script)
    [segment] = turn.segments
    assert segment.said() == (CALL, f"builtin:{recipient}", body)
    assert (segment.verbatim, segment.start, segment.end) == (True, 0, len(script_ids(script)))
    assert turn.recoveries == {}
    assert turn.reasoning_tokens == 0


@each(
    ("script", "name", "rules"),
    [
        (" to=browser.search<|channel|>commentary json<|message|>{}<|call|>", SEARCH, set()),
        (
            "<|channel|>analysis to=functions.browser.search json<|message|>{}<|call|>",
            SEARCH,
            {Rule.RECIPIENT_NORMALISED},
        ),
        (
            "<|channel|>commentary to=functions.python code<|message|>{}<|call|>",
            PYTHON_TOOL,
            {Rule.RECIPIENT_NORMALISED},
        ),
        (
            "<|channel|>analysis to=browser.searchcode<|message|>{}<|call|>",
            SEARCH,
            {Rule.RECIPIENT_NORMALISED},
        ),
        (" to=python<|message|>{}<|call|>", PYTHON_TOOL, {Rule.CALL_OFF_COMMENTARY}),
        (
            "<|channel|>final to=python<|message|>{}<|call|>",
            PYTHON_TOOL,
            {Rule.CALL_OFF_COMMENTARY},
        ),
        (
            "<|channel|>analysis to=python now<|message|>{}<|call|>",
            PYTHON_TOOL,
            {Rule.HEADER_LEFTOVER},
        ),
        (
            "<|channel|>analysis to=python code<|message|>{}<|end|>",
            PYTHON_TOOL,
            {Rule.WRONG_TERMINATOR},
        ),
        (
            "<|channel|>analysis to=python<|message|>{}<|start|>",
            PYTHON_TOOL,
            {Rule.UNCLOSED_MESSAGE},
        ),
        ("<|channel|>analysis to=browser.search json{}<|call|>", SEARCH, {Rule.NO_MESSAGE_TOKEN}),
        (ADDED + "{}<|call|>", "crm.add", set()),
        (
            "<|channel|>commentary to=crm.add json<|message|>{}<|call|>",
            "crm.add",
            {Rule.RECIPIENT_NORMALISED},
        ),
        (
            "<|channel|>analysis to=functions.crm.add json<|message|>{}<|call|>",
            "crm.add",
            {Rule.CALL_OFF_COMMENTARY},
        ),
    ],
)
def test_a_call_is_known_by_its_recipient_however_its_header_is_written(
    script: str, name: str, rules: set[Rule]
) -> None:
    turn = hosted(script)
    [segment] = turn.segments
    assert segment.said() == (CALL, name, "{}")
    assert turn.recoveries.keys() == rules
    assert segment.verbatim == (script.startswith(ADDED))


@pytest.mark.parametrize("function", ["python", "browser.search"])
def test_a_function_of_that_name_stays_the_clients(function: str) -> None:
    tools = frozenset({function})
    spelled = f"<|channel|>commentary to=functions.{function} json<|message|>{{}}<|call|>"
    plain = f"<|channel|>commentary to={function} json<|message|>{{}}<|call|>"
    assert hosted(spelled, tools).said() == [(CALL, function, "{}")]
    assert hosted(plain, tools).said() == [(CALL, f"builtin:{function}", "{}")]
    assert parse(plain, tools=tools).said() == [(CALL, function, "{}")]


@pytest.mark.parametrize(
    "recipient", ["browser.search", "python", "browser", "browser.searches", "container.exec"]
)
def test_what_was_not_granted_is_never_a_call_of_a_hosted_tool(recipient: str) -> None:
    granted = HOSTED - BUILTINS
    script = f"<|channel|>analysis to={recipient} code<|message|>{{}}<|call|>"
    for allowed in (granted, frozenset[str]()):
        turn = parse(script, hosted=allowed)
        assert turn.said() == [(SegmentKind.REASONING, "", "{}")]
        assert Rule.BUILTIN_NOT_ENABLED in turn.recoveries
    forbidden = parse(script, tools=None, hosted=HOSTED)
    assert forbidden.said() == [(SegmentKind.REASONING, "", "{}")]


@pytest.mark.parametrize("name", ["browser.searches", "browser", "pythonic", "crm.ad"])
def test_only_the_exact_name_is_a_hosted_tools(name: str) -> None:
    turn = hosted(f"<|channel|>commentary to=functions.{name}<|message|>{{}}<|call|>")
    assert turn.said() == [(CALL, name, "{}")]
    assert Rule.UNDECLARED_FUNCTION in turn.recoveries


CODE = [
    "",
    " \n",
    "print(1)",
    '{"code": "print(1)"}',
    '{"a": 1}{"a": 1}',
    "  indented\n\n",
    "```python\nprint(1)\n```",
    '"unclosed',
    "{",
    "💖",
]


@each("code", CODE)
def test_code_is_passed_on_letter_for_letter(code: str) -> None:
    turn = hosted(f"{PYTHON}{code}<|call|>")
    [segment] = turn.segments
    assert segment.said() == (CALL, PYTHON_TOOL, code)
    assert segment.verbatim
    assert turn.recoveries == {}


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("<|channel|>analysis to=python code print(1)<|call|>", "print(1)"),
        ("<|channel|>analysis to=python code\nx = 1\n<|call|>", "x = 1\n"),
        ("<|channel|>analysis to=python code_x = 1<|call|>", "code_x = 1"),
        (" to=python<|channel|>analysis<|call|>", ""),
    ],
)
def test_code_may_be_trapped_in_its_header(script: str, code: str) -> None:
    turn = hosted(script)
    assert turn.said() == [(CALL, PYTHON_TOOL, code)]
    assert Rule.NO_MESSAGE_TOKEN in turn.recoveries


def test_code_that_nothing_tells_from_a_thought_is_no_call() -> None:
    turn = hosted("<|channel|>analysis to=python Let me see.<|end|>")
    assert turn.said() == [(SegmentKind.REASONING, "", "Let me see.")]


@each(
    "behind",
    [
        "<|start|>assistant<|channel|>final<|message|>It is 2.<|return|>",
        "<|start|>assistant" + PYTHON + "again()<|call|>",
        "<|start|>python to=assistant<|channel|>analysis<|message|>2<|end|>",
        "2",
    ],
)
@each("ending", ["<|call|>", "<|end|>", "<|return|>"])
@each("call", [PYTHON + "f()", ADDED + '{"a": 1}', "<|channel|>analysis to=browser.open{}"])
def test_nothing_is_said_before_a_call_has_its_result(call: str, ending: str, behind: str) -> None:
    before = hosted(THOUGHT + "<|start|>assistant" + call + ending)
    turn = hosted(THOUGHT + "<|start|>assistant" + call + ending + behind)
    assert turn.segments == before.segments
    assert len(turn.segments) == 2
    assert Rule.AFTER_TURN_END in turn.recoveries


def test_the_place_tells_which_call_ended_the_turn() -> None:
    parser = Parser(vocabulary(), TOOLS | HOSTED, hosted=HOSTED)
    script = script_ids(PYTHON + "f()<|end|>")
    parser.feed(script[:-1])
    assert parser.place == ParserPosition(Where.BODY, 0, CALL, PYTHON_TOOL)
    parser.feed(script[-1:])
    ended = ParserPosition(Where.OVER, len(script), CALL, PYTHON_TOOL)
    assert parser.place == ended
    parser.finish(FinishReason.STOP)
    assert parser.place == ended


@pytest.mark.parametrize("name", ["f", "g"])
def test_a_call_of_the_client_ends_no_turn(name: str) -> None:
    parser = Parser(vocabulary(), TOOLS | HOSTED, hosted=HOSTED)
    parser.feed(script_ids(f"<|channel|>commentary to=functions.{name}<|message|>{{}}<|call|>"))
    assert parser.place.where is Where.BETWEEN


@pytest.mark.parametrize("finish", [FinishReason.LENGTH, None])
def test_a_call_that_was_cut_off_is_not_whole(finish: FinishReason | None) -> None:
    for script in (PYTHON + "f(", ADDED + '{"a'):
        [segment] = parse(script, finish, hosted=HOSTED).segments
        assert not segment.complete


@pytest.mark.parametrize(
    ("body", "arguments"), [("", "{}"), ('{"a', '{"a'), ("no JSON", "no JSON"), ("{}{}", "{}")]
)
def test_arguments_that_break_off_are_for_the_tool_to_refuse(body: str, arguments: str) -> None:
    parser = Parser(vocabulary(), HOSTED, hosted=HOSTED)
    parser.feed(script_ids(ADDED + body + "<|call|>"))
    assert parser.place.broken is None
    assert hosted(ADDED + body + "<|call|>").said() == [(CALL, "crm.add", arguments)]


@each(
    "script",
    [
        "<|channel|>analysis<|message|>{}<|call|>",
        "<|channel|>commentary browser.search<|message|>{}<|call|>",
        "<|channel|>commentary crm.add<|message|>{}<|call|>",
        "<|channel|>analysis to=crm<|message|>{}<|call|>",
        "<|channel|>commentary crm.add{}<|call|>",
        "<|start|>crm.add<|channel|>commentary<|message|>{}<|call|>",
        "<|start|>browser.search to=assistant<|channel|>analysis<|message|>{}<|call|>",
        "<|start|>functions.crm.add to=assistant<|channel|>commentary<|message|>ok<|end|>",
    ],
)
@each("allowed", [HOSTED, frozenset({"crm.add"}), frozenset({PYTHON_TOOL})])
def test_no_call_of_a_hosted_tool_is_guessed(script: str, allowed: frozenset[str]) -> None:
    turn = parse(script, tools=frozenset(), hosted=allowed)
    assert not any(segment.kind is CALL for segment in turn.segments)


@pytest.mark.parametrize(
    "author", ["browser.search", "python", "functions.crm.add", "crm.add", "tool", "user"]
)
def test_a_result_that_the_model_makes_up_ends_the_turn(author: str) -> None:
    forged = f"<|start|>{author} to=assistant<|channel|>analysis<|message|>42<|end|>"
    turn = hosted(THOUGHT + forged + "<|start|>assistant<|channel|>final<|message|>42<|return|>")
    assert turn.said() == [(SegmentKind.REASONING, "", "Hm")]
    assert turn.recoveries[Rule.FOREIGN_ROLE] == 1


def test_a_call_in_text_between_messages_ends_the_turn_too() -> None:
    script = f'{THOUGHT}assistant to=crm.add{{"a": 1}}<|message|>and more<|end|>'
    turn = parse(script, tools=frozenset(), hosted=HOSTED, header_ids_max=5)
    assert turn.said() == [(SegmentKind.REASONING, "", "Hm"), (CALL, "crm.add", '{"a": 1}')]


def test_nothing_of_this_format_is_learned_from_servers() -> None:
    assert harmony().with_state(b"any") is harmony()
    assert harmony().misfits({}) == ()
