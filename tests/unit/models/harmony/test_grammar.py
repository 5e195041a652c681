"""What a turn may still be, for every kind of demand and from every place in it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway.constraints.lark import are_translated, languages_of
from gateway.constraints.output_rules import AnswerFormat, OutputRules, TextGrammar, ToolRule
from gateway.eventlog.fold.screen import Beginning, Verdict
from gateway.generation import (
    AnyText,
    InOrder,
    Json,
    OneOf,
    ParserPosition,
    Repeated,
    SegmentKind,
    Where,
)
from gateway.models.format import GrammarOptions
from gateway.models.grammar_parts import REFUSALS
from gateway.models.harmony.grammar import turn_constraint
from gateway.models.harmony.tokenizer import (
    CALL_PREFIX,
    CHANNEL,
    MESSAGE,
    NAMED_SPECIALS,
    OPENING,
    RECIPIENT_PREFIX,
)
from tests.fakes.cases import each
from tests.fakes.harmony_script import script_ids, vocabulary
from tests.fakes.turn_matching import allows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.generation import Constraint, Node

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"enum": ["c", "f"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
CODEX = (Path(__file__).parents[3] / "data" / "grammars" / "codex_apply_patch.lark").read_text()
FUNCTION = SegmentKind.FUNCTION_CALL
CUSTOM = SegmentKind.CUSTOM_CALL

STRICT = ToolRule("weather", FUNCTION, "weather", schema=SCHEMA)
FREE = ToolRule("ping", FUNCTION, "ping")
NAMESPACED = ToolRule("crm.find", FUNCTION, "find", namespace="crm")
PATCH = ToolRule("patch", CUSTOM, "patch", grammar=TextGrammar("lark", CODEX))
WORDS = ToolRule("words", CUSTOM, "words")
ODD = ToolRule("odd", CUSTOM, "odd", grammar=TextGrammar("lark", "%import python.X\nstart: X"))
SEARCH = ToolRule(
    "builtin:browser.search", SegmentKind.WEB_SEARCH_CALL, "browser.search", schema=SCHEMA
)
PYTHON = ToolRule("builtin:python", SegmentKind.CODE_INTERPRETER_CALL, "python")
ADD = ToolRule("s.add", SegmentKind.MCP_CALL, "add", namespace="s", schema=SCHEMA)
ASK = ToolRule("s.ask", SegmentKind.MCP_APPROVAL_REQUEST, "ask", namespace="s")
HOSTED = (SEARCH, PYTHON, ADD, ASK)

ANSWER = AnswerFormat("json_schema", SCHEMA, strict=True)
LOOSE = AnswerFormat("json_schema", SCHEMA)
LOOSE_LIST = AnswerFormat("json_schema", {"type": "array"})
OBJECT = AnswerFormat("json_object", {})

THOUGHT = "<|channel|>analysis<|message|>Hm 😀 {}<|end|><|start|>assistant"
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>Hello."
SORRY = "<|channel|>final<|message|>I\u2019m sorry, I can\u2019t."
JSON = '{"unit":"c"}'
ANSWERS = [
    f"<|channel|>final <|constrain|>json<|message|>{JSON}",
    f"<|channel|>final json<|message|>{JSON}",
    f"<|channel|>final<|message|>{JSON}",
]
THINKING = GrammarOptions()
STARTED = ParserPosition(Where.HEADER, 0)


def calls(name: str, arguments: str) -> list[str]:
    """A call in each form that was trained."""
    fronts = [
        f" to=functions.{name}<|channel|>commentary",
        f"<|channel|>commentary to=functions.{name}",
    ]
    types = [" <|constrain|>json", " json", ""]
    return [f"{front}{type_}<|message|>{arguments}" for front in fronts for type_ in types]


def rules(*tools: ToolRule, **demands: Any) -> OutputRules:
    declared = {tool.name: tool for tool in tools}
    demands.setdefault("allowed", frozenset(declared))
    return OutputRules(declared, **demands)


def constraint(
    demands: OutputRules,
    place: ParserPosition = STARTED,
    message: tuple[int, ...] = (),
    options: GrammarOptions = THINKING,
) -> Constraint | None:
    return turn_constraint(demands, place, message, options, vocabulary())


def allowed(found: Constraint | None, turns: list[str]) -> list[str]:
    assert found is not None
    return [turn for turn in turns if allows(found.turn, turn)]


@pytest.mark.parametrize(
    "demands",
    [rules(), rules(FREE, NAMESPACED, WORDS), rules(calls="none", allowed=frozenset())],
    ids=["no tools", "tools that take anything", "no calls of no tools"],
)
def test_without_demands_nothing_is_bound(demands: OutputRules) -> None:
    assert constraint(demands) is None


def test_a_strict_tool_is_called_right_or_not_at_all() -> None:
    found = constraint(rules(STRICT, FREE, NAMESPACED))
    right = [
        *calls("weather", JSON),
        *calls("ping", '{"any":[1]}'),
        *calls("crm.find", "{}"),
        FINAL,
        THOUGHT + FINAL,
        THOUGHT + PREAMBLE + THOUGHT + calls("weather", JSON)[0],
    ]
    wrong = [
        *calls("weather", '{"unit":"k"}'),
        *calls("ping", "[]"),
        *calls("other", "{}"),
        "Hello.",
        THOUGHT,
        FINAL + "<|end|>",
        "<|channel|>analysis<|message|>Hm",
        FINAL + "<|end|><|start|>assistant" + FINAL,
    ]
    assert allowed(found, right + wrong) == right


def test_a_call_that_is_required_cannot_be_answered_around() -> None:
    found = constraint(rules(STRICT, FREE, calls="required"))
    right = [*calls("ping", "{}"), THOUGHT + PREAMBLE + calls("weather", JSON)[0]]
    assert allowed(found, [*right, FINAL, THOUGHT + FINAL]) == right


OWING = {
    "a call": (
        rules(STRICT, FREE, calls="required"),
        "<|channel|>commentary to=functions.ping<|message|>{}",
        True,
    ),
    "a call of a tool with a grammar": (
        rules(PATCH, WORDS, calls="required"),
        '<|channel|>commentary to=functions.words<|message|>{"input":"x"}',
        True,
    ),
    "an answer": (
        rules(answer=AnswerFormat("json_object", {"type": "object"})),
        "<|channel|>final<|message|>{}",
        False,
    ),
    "an answer or a call": (rules(FREE, answer=OBJECT), "<|channel|>final<|message|>{}", False),
    "a hosted call": (
        rules(*HOSTED, calls="required"),
        "<|channel|>analysis to=python code<|message|>1",
        True,
    ),
}


@pytest.mark.parametrize(("demands", "last", "may_preface"), OWING.values(), ids=OWING)
def test_before_what_is_owed_a_model_thinks_once(
    demands: OutputRules, last: str, *, may_preface: bool
) -> None:
    found = constraint(demands)
    assert allowed(found, [THOUGHT * times + last for times in range(4)]) == [last, THOUGHT + last]
    prefaced = [PREAMBLE + last, THOUGHT + PREAMBLE + last]
    wrong = [PREAMBLE * 2 + last, PREAMBLE + THOUGHT + last, THOUGHT + PREAMBLE + THOUGHT + last]
    assert allowed(found, prefaced + wrong) == (prefaced if may_preface else [])


@pytest.mark.parametrize(("demands", "last", "may_preface"), OWING.values(), ids=OWING)
def test_a_turn_that_goes_on_behind_a_thought_has_no_other(
    demands: OutputRules, last: str, *, may_preface: bool
) -> None:
    thought = GrammarOptions(has_thought=True)
    between = ParserPosition(Where.BETWEEN, 9)
    turns = [last, THOUGHT + last, PREAMBLE + last, PREAMBLE + THOUGHT + last]
    right = [last, PREAMBLE + last] if may_preface else [last]
    opened = ["<|start|>assistant" + turn for turn in turns]
    opened_right = ["<|start|>assistant" + turn for turn in right]
    assert allowed(constraint(demands, between, options=thought), opened) == opened_right
    thinking = ParserPosition(Where.BODY, 3, SegmentKind.REASONING)
    for options in (THINKING, thought):
        found = constraint(demands, thinking, (CHANNEL, 5), options=options)
        behind = ["k.<|end|>" + turn for turn in opened]
        assert allowed(found, behind) == ["k.<|end|>" + turn for turn in opened_right]


def test_grammars_of_tools_can_be_translated_beforehand() -> None:
    demands = rules(STRICT, PATCH)
    assert not are_translated(demands)
    assert languages_of(demands).keys() == {PATCH.grammar}
    assert are_translated(demands)
    assert constraint(demands) == constraint(rules(STRICT, PATCH))
    assert not rules(STRICT).grammars


def test_the_turns_of_the_same_rules_begin_with_the_same_grammar() -> None:
    demands = rules(STRICT)
    assert constraint(demands) is constraint(demands)
    thoughtless = GrammarOptions(reasoning=False)
    found = constraint(demands, options=thoughtless)
    assert found == constraint(rules(STRICT), options=thoughtless)
    assert found != constraint(demands)


def test_only_a_tool_that_is_allowed_is_called() -> None:
    for demand in ("auto", "required"):
        found = constraint(rules(STRICT, FREE, calls=demand, allowed=frozenset({"ping"})))
        assert allowed(found, [*calls("weather", JSON), *calls("ping", "{}")]) == calls(
            "ping", "{}"
        )


def test_no_tool_is_called_where_none_may_be() -> None:
    found = constraint(rules(STRICT, calls="none"))
    turns = [FINAL, THOUGHT + FINAL, PREAMBLE + FINAL, *calls("weather", JSON)]
    assert allowed(found, turns) == [FINAL, THOUGHT + FINAL]


def test_a_call_that_is_required_where_none_is_possible_binds_nothing() -> None:
    assert constraint(rules(calls="required")) is None


def test_an_answer_has_its_format_or_is_a_refusal() -> None:
    found = constraint(rules(answer=ANSWER))
    right = [*ANSWERS, THOUGHT + ANSWERS[0], SORRY, THOUGHT + SORRY]
    wrong = [
        FINAL,
        ANSWERS[0].replace('"c"', '"k"'),
        PREAMBLE + ANSWERS[0],
        calls("weather", JSON)[0],
        SORRY.replace("final", "final json"),
    ]
    assert allowed(found, right + wrong) == right


def test_a_refusal_can_be_ruled_out() -> None:
    found = constraint(rules(answer=ANSWER), options=GrammarOptions(refusals=False))
    assert allowed(found, [*ANSWERS, SORRY]) == ANSWERS
    begun = ParserPosition(Where.BODY, 0, SegmentKind.FINAL)
    found = constraint(
        rules(answer=ANSWER), begun, (MESSAGE,), options=GrammarOptions(refusals=False)
    )
    assert allowed(found, [JSON, "I\u2019m sorry"]) == [JSON]


@each("words", REFUSALS)
def test_every_refusal_that_is_allowed_is_known_as_one(words: str) -> None:
    assert Beginning(ANSWER).read(words) is Verdict.REFUSAL
    assert allows_refusal(words)


def allows_refusal(words: str) -> bool:
    found = constraint(rules(answer=ANSWER))
    return bool(allowed(found, [f"<|channel|>final<|message|>{words} for that."]))


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        (LOOSE, ['{"a":1}'], ["[1]", "1"]),
        (LOOSE_LIST, ["[1]", '{"a":1}', "null"], ["x"]),
        (OBJECT, ["{}", '{"a":1}'], ["[1]"]),
    ],
)
def test_an_answer_that_is_not_strict_need_only_be_json(
    answer: AnswerFormat, right: list[str], wrong: list[str]
) -> None:
    found = constraint(rules(answer=answer))
    header = "<|channel|>final<|message|>"
    assert allowed(found, [header + text for text in right + wrong]) == [header + t for t in right]


def test_an_answer_beside_tools_has_no_preamble() -> None:
    found = constraint(rules(STRICT, answer=ANSWER))
    call = calls("weather", JSON)[0]
    turns = [ANSWERS[0], call, THOUGHT + call, SORRY, FINAL, PREAMBLE + call]
    assert allowed(found, turns) == turns[:4]


def test_a_custom_tool_gets_text_of_its_language() -> None:
    found = constraint(rules(PATCH))
    text = "*** Begin Patch\n*** Delete File: a\n*** End Patch"
    right = calls("patch", orjson.dumps({"input": text}).decode())
    wrong = calls("patch", orjson.dumps({"input": "x"}).decode())
    assert allowed(found, right + wrong) == right


@pytest.mark.parametrize("tool", [WORDS, ODD], ids=["no language", "one that cannot be said"])
def test_any_other_custom_tool_gets_any_text(tool: ToolRule) -> None:
    found = constraint(rules(STRICT, tool))
    right = calls(tool.name, '{"input":"x"}')
    assert allowed(found, [*right, *calls(tool.name, '{"other":"x"}')]) == right


def test_thinking_can_be_over() -> None:
    no_more = GrammarOptions(reasoning=False)
    for demands in (rules(), rules(FREE), rules(answer=ANSWER)):
        found = constraint(demands, options=no_more)
        last = FINAL if demands.answer is None else ANSWERS[0]
        assert allowed(found, [last, THOUGHT + last]) == [last]
    found = constraint(rules(FREE), options=no_more)
    right = [PREAMBLE + calls("ping", "{}")[0], PREAMBLE + FINAL]
    assert allowed(found, [*right, THOUGHT + FINAL]) == right


@pytest.mark.parametrize(
    ("demands", "schema"),
    [
        (rules(answer=ANSWER), SCHEMA),
        (rules(FREE, answer=ANSWER), SCHEMA),
        (rules(answer=OBJECT), {"type": "object"}),
        (rules(STRICT, answer=ANSWER), None),
        (rules(FREE, answer=ANSWER, calls="required"), None),
        (rules(FREE, answer=ANSWER, allowed=frozenset()), None),
        (rules(STRICT), None),
    ],
)
def test_the_schema_of_the_answer_stands_alone_only_where_nothing_else_is_bound(
    demands: OutputRules, schema: dict[str, Any] | None
) -> None:
    found = constraint(demands)
    assert found is not None
    assert found.answer == schema
    found = constraint(demands, options=GrammarOptions(reasoning=False))
    assert found is not None
    assert found.answer is None


@pytest.mark.parametrize("kind", [SegmentKind.REASONING, SegmentKind.COMMENTARY])
def test_a_thought_or_preamble_is_finished_before_anything_else(kind: SegmentKind) -> None:
    found = constraint(
        rules(STRICT, calls="required"), ParserPosition(Where.BODY, 3, kind), (CHANNEL, 5)
    )
    call = calls("weather", JSON)[0]
    right = ["k.<|end|><|start|>assistant" + call, "<|end|><|start|>assistant" + call]
    wrong = [
        "k.<|end|><|start|>assistant" + THOUGHT + call,
        "k.",
        call,
        "k.<|end|>",
        "k.<|end|><|start|>assistant" + FINAL,
    ]
    assert allowed(found, right + wrong) == right


def test_between_messages_another_one_is_opened() -> None:
    between = ParserPosition(Where.BETWEEN, 9)
    found = constraint(rules(STRICT), between)
    assert allowed(found, ["<|start|>assistant" + FINAL, FINAL]) == ["<|start|>assistant" + FINAL]
    assert constraint(rules(STRICT), between, (5, 6)) is None


def test_behind_the_opening_of_a_message_all_is_open() -> None:
    found = constraint(rules(STRICT), ParserPosition(Where.HEADER, 9), OPENING)
    assert allowed(found, [THOUGHT + FINAL, "x"]) == [THOUGHT + FINAL]


def test_behind_a_channels_marker_comes_its_name() -> None:
    found = constraint(rules(STRICT), STARTED, (CHANNEL,))
    turns = [THOUGHT + PREAMBLE + FINAL, FINAL, *calls("weather", JSON)[3:]]
    right = [turn.removeprefix("<|channel|>") for turn in turns]
    assert allowed(found, [*right, calls("weather", JSON)[0]]) == right
    assert allowed(constraint(rules(answer=ANSWER), STARTED, (CHANNEL,)), [ANSWERS[0][11:]])


def test_behind_the_front_of_a_call_comes_the_tools_name() -> None:
    demands = rules(STRICT, FREE, calls="required")
    found = constraint(demands, STARTED, CALL_PREFIX)
    right = [turn.removeprefix(" to=functions.") for turn in calls("weather", JSON)[:3]]
    assert allowed(found, [*right, "other", FINAL]) == right
    assert constraint(rules(answer=ANSWER), STARTED, CALL_PREFIX) is None


@pytest.mark.parametrize(
    ("kind", "name", "right", "wrong"),
    [
        (SegmentKind.FINAL, "", [JSON, "I\u2019m sorry, no."], ["Hello.", "{}"]),
        (FUNCTION, "weather", [JSON], ["{}", "x"]),
        (FUNCTION, "ping", ["{}"], ["x"]),
    ],
)
def test_a_body_that_is_json_can_be_bound_from_its_start(
    kind: SegmentKind, name: str, right: list[str], wrong: list[str]
) -> None:
    demands = rules(STRICT, FREE, answer=ANSWER)
    place = ParserPosition(Where.BODY, 0, kind, name)
    assert allowed(constraint(demands, place, (CHANNEL, 5, MESSAGE)), right + wrong) == right


def body(script: str) -> tuple[int, ...]:
    return (CHANNEL, 5, MESSAGE, *vocabulary().encode(script))


@pytest.mark.parametrize(
    ("kind", "name", "said", "right", "wrong"),
    [
        (SegmentKind.FINAL, "", JSON[:5], [JSON[5:]], [JSON, "}", JSON[5:] + "x"]),
        (SegmentKind.FINAL, "", "I\u2019m", [" sorry, no."], ["{}", " happy."]),
        (SegmentKind.FINAL, "", "I'm sorry", [", no.", ""], []),
        (FUNCTION, "weather", JSON[:5], [JSON[5:]], [JSON, "}"]),
        (FUNCTION, "ping", '{"a', ['":1}'], ['": 1', "}"]),
    ],
)
def test_a_body_can_be_bound_in_the_middle(
    kind: SegmentKind, name: str, said: str, right: list[str], wrong: list[str]
) -> None:
    demands = rules(STRICT, FREE, answer=ANSWER)
    found = constraint(demands, ParserPosition(Where.BODY, 0, kind, name), body(said))
    assert allowed(found, right + wrong) == right
    assert found is not None
    assert found.exact
    assert found.bare is not said.startswith("I")
    again = constraint(demands, ParserPosition(Where.BODY, 0, kind, name), body(said))
    assert again == found


def test_the_input_of_a_custom_tool_can_be_bound_in_the_middle() -> None:
    for definition, is_exact in (('start: "ab" "cd"*', True), ("start: %json {}", False)):
        grammar = TextGrammar("lark", definition)
        tool = ToolRule("t", SegmentKind.CUSTOM_CALL, "t", grammar=grammar)
        place = ParserPosition(Where.BODY, 0, FUNCTION, "t")
        found = constraint(rules(tool), place, body('{"input": "abc'))
        assert found is not None
        assert found.exact is is_exact
        right = ['d"}', 'x"}'] if not is_exact else ['d"}']
        assert allowed(found, ['d"}', 'x"}', "}"]) == right


@pytest.mark.parametrize(
    "message",
    [(CHANNEL, 5, 90), (CHANNEL, 5, MESSAGE, 90, CHANNEL), body("Well"), (*body("I"), 447, 247)],
    ids=["no body", "a marker in it", "prose", "a piece of a character"],
)
def test_a_body_that_is_none_cannot_be_bound(message: tuple[int, ...]) -> None:
    place = ParserPosition(Where.BODY, 0, SegmentKind.FINAL)
    assert constraint(rules(answer=ANSWER), place, message) is None


def test_an_answer_in_words_goes_on_as_it_likes() -> None:
    place = ParserPosition(Where.BODY, 0, SegmentKind.FINAL)
    for message in ((MESSAGE,), (MESSAGE, 5)):
        assert constraint(rules(STRICT), place, message) is not None
        assert allowed(constraint(rules(STRICT), place, message), ["a {", "a<|end|>"]) == ["a {"]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (ParserPosition(Where.OVER, 9), ()),
        (ParserPosition(Where.HEADER, 0), (CHANNEL, 5)),
        (ParserPosition(Where.BODY, 0), (MESSAGE,)),
        (ParserPosition(Where.BODY, 0, SegmentKind.FINAL), (MESSAGE,)),
        (ParserPosition(Where.BODY, 0, FUNCTION, "other"), (MESSAGE,)),
    ],
    ids=["over", "half a header", "no kind", "an answer for a call", "a call of no tool"],
)
def test_nothing_can_be_said_of_what_breaks_its_rules(
    place: ParserPosition, message: tuple[int, ...]
) -> None:
    assert constraint(rules(STRICT, calls="required"), place, message) is None


@cache
def nodes(node: Node) -> list[Node]:
    return [node, *(deeper for part in _parts(node) for deeper in nodes(part))]


def _parts(node: Node) -> Iterator[Node]:
    match node:
        case InOrder(parts) | OneOf(parts):
            yield from parts
        case Repeated(part):
            yield part
        case _:
            pass


def test_no_text_ever_holds_a_marker_and_no_schema_is_repeated_needlessly() -> None:
    many = [ToolRule(f"t{at}", FUNCTION, f"t{at}", schema=SCHEMA) for at in range(20)]
    frees = [ToolRule(f"f{at}", FUNCTION, f"f{at}") for at in range(100)]
    found = constraint(rules(*many, *frees, answer=ANSWER))
    assert found is not None
    every = nodes(found.turn)
    texts = [node for node in every if isinstance(node, AnyText)]
    assert texts
    assert all(set(NAMED_SPECIALS.values()) <= set(text.excluded) for text in texts)
    assert len([node for node in every if isinstance(node, Json)]) == len(many) + 2


CODE = "print('<a>')\n{"


def builtin_calls(recipient: str, body: str, *types: str) -> list[str]:
    fronts = [f" to={recipient}<|channel|>analysis", f"<|channel|>analysis to={recipient}"]
    return [f"{front}{type_}<|message|>{body}" for front in fronts for type_ in types]


SEARCHES = builtin_calls("browser.search", JSON, " <|constrain|>json", " json", " code", "")
CODES = builtin_calls("python", CODE, " code", "")
HOSTED_CALLS = [*SEARCHES, *CODES, *calls("s.add", JSON), *calls("s.ask", '{"a":1}')]
NO_CALLS = [
    *builtin_calls("browser.search", '{"unit":"k"}', " json"),
    *builtin_calls("browser.open", JSON, " json"),
    *builtin_calls("functions.python", CODE, " code"),
    *builtin_calls("python", CODE, " json"),
    *calls("python", "{}"),
    *calls("browser.search", JSON),
    *calls("s.add", "{}"),
    *calls("s.ask", "[]"),
    " to=python<|channel|>commentary code<|message|>1",
    FINAL,
]


def test_the_tools_that_were_trained_bind_nothing_and_those_of_a_server_do() -> None:
    assert constraint(rules(SEARCH, PYTHON)) is None
    found = constraint(rules(*HOSTED))
    assert allowed(found, [*HOSTED_CALLS, *calls("s.add", "{}"), FINAL]) == [*HOSTED_CALLS, FINAL]


def test_hosted_tools_are_called_as_they_were_trained() -> None:
    found = constraint(rules(*HOSTED, calls="required"))
    right = [*HOSTED_CALLS, THOUGHT + CODES[0], THOUGHT + PREAMBLE + SEARCHES[0]]
    assert allowed(found, [*right, *NO_CALLS]) == right


def test_beside_an_answer_in_a_format_they_come_first() -> None:
    found = constraint(rules(*HOSTED, answer=ANSWER))
    right = [*HOSTED_CALLS, *ANSWERS, THOUGHT + ANSWERS[0]]
    assert allowed(found, [*right, *NO_CALLS, CODES[0] + "<|end|>" + ANSWERS[0]]) == right


def test_one_that_was_withdrawn_is_held_off() -> None:
    left = rules(*HOSTED, allowed=frozenset({"s.add", "s.ask"}))
    assert allowed(constraint(left), [*HOSTED_CALLS, FINAL]) == [
        *calls("s.add", JSON),
        *calls("s.ask", '{"a":1}'),
        FINAL,
    ]
    assert allowed(constraint(rules(*HOSTED, allowed=frozenset())), [*HOSTED_CALLS, FINAL]) == [
        FINAL
    ]


def test_a_call_may_be_made_without_a_thought() -> None:
    found = constraint(rules(*HOSTED, STRICT), options=GrammarOptions(reasoning=False))
    assert allowed(found, [*HOSTED_CALLS, FINAL, THOUGHT + FINAL]) == [*HOSTED_CALLS, FINAL]


@pytest.mark.parametrize(
    ("prefix", "text", "right"),
    [
        (RECIPIENT_PREFIX, " to=", HOSTED_CALLS),
        (CALL_PREFIX, " to=functions.", [*calls("s.add", JSON), *calls("s.ask", '{"a":1}')]),
    ],
)
def test_what_opens_a_call_is_gone_on_with(
    prefix: tuple[int, ...], text: str, right: list[str]
) -> None:
    found = constraint(rules(*HOSTED, calls="required"), message=prefix)
    wanted = [turn.removeprefix(text) for turn in right if turn.startswith(text)]
    others = [turn.removeprefix(text) for turn in NO_CALLS if turn.startswith(text)]
    assert allowed(found, [*wanted, *others]) == wanted
    opened = constraint(rules(*HOSTED, calls="required"), message=(*OPENING, *prefix))
    assert opened == found


def test_functions_are_not_gone_on_with_where_there_are_none() -> None:
    found = constraint(rules(SEARCH, PYTHON, calls="required"), message=CALL_PREFIX)
    assert found is None
    assert constraint(rules(calls="required"), message=RECIPIENT_PREFIX) is None
    nothing = rules(STRICT, allowed=frozenset())
    assert constraint(nothing, message=RECIPIENT_PREFIX) is None


@pytest.mark.parametrize(
    ("tool", "header", "begun", "rest", "wrong"),
    [
        (PYTHON, "to=python code", "", CODE, "<|end|>"),
        (PYTHON, "to=python code", "print(", "'x')", "a<|start|>"),
        (SEARCH, "to=browser.search code", "", JSON, "{}"),
        (SEARCH, "to=browser.search", '{"unit"', ':"f"}', ':"k"}'),
        (ADD, "to=functions.s.add json", '{"unit":"', 'c"}', 'k"}'),
        (ASK, "to=functions.s.ask json", '{"a"', ":[]}", ":]"),
    ],
)
def test_the_body_of_a_call_is_gone_on_with(
    tool: ToolRule, header: str, begun: str, rest: str, wrong: str
) -> None:
    message = tuple(script_ids(f"<|channel|>analysis {header}<|message|>{begun}"))
    place = ParserPosition(Where.BODY, 0, FUNCTION, tool.name)
    found = constraint(rules(*HOSTED, calls="required"), place, message)
    assert allowed(found, [rest, wrong]) == [rest]
