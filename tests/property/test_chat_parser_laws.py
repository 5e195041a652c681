"""Laws of the parsers of chat formats: total, the same for any cut, what is written is read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.constraints.output_rules import OutputRules, ToolRule
from gateway.generation import FinishReason, SegmentEnded, SegmentKind, SegmentStarted, SegmentText
from gateway.models.chat.call_syntax import Mark, Syntax
from gateway.models.chat.chat_parser import ChatParser
from gateway.models.chat.families import CALLS, REASONING
from gateway.models.chat.syntax.tagged_arguments import ANY, as_json
from tests.fakes.chat_vocabulary import ids_of, vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.generation import SegmentEvent
    from gateway.models.chat.tokenizer import Vocabulary

FAMILIES = {name: syntax for name, syntax in CALLS.items() if syntax is not None}
ENDS = ("<|im_end|>", "</s>")
SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "rows": {"type": "array"},
        "text": {"type": "string"},
        "maybe": {"type": ["null", "string"]},
    },
}
TOOLS = {
    name: ToolRule(name, SegmentKind.FUNCTION_CALL, name, declared=SCHEMA) for name in ("f", "g.h")
} | {"builtin:browser.search": ToolRule("builtin:browser.search", SegmentKind.WEB_SEARCH_CALL, "x")}
RULES = OutputRules(tools=TOOLS, allowed=frozenset(TOOLS))
OWED = OutputRules(tools=TOOLS, allowed=frozenset(TOOLS), calls="required")
PLAIN = OutputRules(tools={}, allowed=frozenset())
EVERY_RULES = (RULES, OWED, PLAIN)


def syntax_of(name: str) -> Syntax:
    return Syntax(REASONING["mistral" if name == "mistral" else "think"], FAMILIES[name])


def vocabulary_of(syntax: Syntax, *, has_ids: bool, special: bool = False) -> Vocabulary:
    """One in which every marker is an id, or none is; `special`: one without text."""
    markers = syntax.markers if has_ids else ()
    return vocabulary((*markers, *ENDS), (*markers, *ENDS) if special else ENDS)


def merged(events: Sequence[SegmentEvent]) -> list[SegmentEvent]:
    """With one text for each stay in a segment."""
    made: list[SegmentEvent] = []
    for event in events:
        last = made[-1] if made else None
        if isinstance(event, SegmentText) and isinstance(last, SegmentText):
            made[-1] = SegmentText(last.text + event.text, last.tokens + event.tokens)
        else:
            made.append(event)
    return made


def said_in(events: Sequence[SegmentEvent]) -> list[tuple[SegmentKind, str, str]]:
    """Kind, name and text of each segment."""
    said: list[tuple[SegmentKind, str, str]] = []
    for event in events:
        if isinstance(event, SegmentStarted):
            said.append((event.kind, event.name, ""))
        elif isinstance(event, SegmentText):
            kind, name, text = said[-1]
            said[-1] = (kind, name, text + event.text)
    return said


@st.composite
def cuts(draw: st.DrawFn, ids: Sequence[int]) -> list[Sequence[int]]:
    at = sorted(draw(st.sets(st.integers(0, len(ids)), max_size=8)))
    return [ids[a:b] for a, b in zip([0, *at], [*at, len(ids)], strict=True)]


PIECES = (
    *("f", "g.h", "browser.search", "functions.f", "a b", "", ">", "\n", " \n\n", "count", "text"),
    *('{"name": "f", "arguments": {"a": 1}}', '{"name":"g.h","parameters":{}}', "Hello"),
    *('{"arguments": "{', '"}', "}", "]", "[", ",", ";", "{", '"', "\\", '{"', '": ', "null"),
    *("5", "0.5", "true", "[1]", "```json\n", "```", "\u00e9\U0001f496", "function", '"name"'),
    '{"answer": 1}', '{"name": "f", "arguments": {"a\x00": "\n', "\t",
)  # fmt: skip
"""Texts that mean something to some syntax, or make trouble."""


def pieces_of(syntax: Syntax) -> tuple[str, ...]:
    """These, and the markers, whole or in halves."""
    marks = syntax.markers
    halves = (half for mark in marks for half in (mark[: len(mark) // 2], mark[len(mark) // 2 :]))
    return (*marks, *halves, *PIECES)


@st.composite
def outputs(draw: st.DrawFn) -> tuple[Vocabulary, Syntax, list[int]]:
    syntax = syntax_of(draw(st.sampled_from(sorted(FAMILIES))))
    known = vocabulary_of(syntax, has_ids=draw(st.booleans()), special=draw(st.booleans()))
    texts = st.lists(st.sampled_from(pieces_of(syntax)), max_size=14)
    ids = [token for text in draw(texts) for token in ids_of(known, (Mark(text),) if text else ())]
    for _ in range(draw(st.integers(0, 3))):
        ids.insert(draw(st.integers(0, len(ids))), draw(st.integers(-1, known.size + 2)))
    return known, syntax, ids


def run(
    parser: ChatParser, chunks: Sequence[Sequence[int]], finish: FinishReason | None
) -> list[SegmentEvent]:
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return merged([*events, *parser.finish(finish)])


FINISHES = st.sampled_from([*FinishReason, None])


@pytest.mark.slow
@given(st.data(), outputs(), FINISHES, st.booleans(), st.sampled_from(EVERY_RULES))
@settings(max_examples=200)
def test_any_cut_of_any_ids_is_read_the_same(
    data: st.DataObject,
    output: tuple[Vocabulary, Syntax, list[int]],
    finish: FinishReason | None,
    trace: bool,
    rules: OutputRules,
) -> None:
    known, syntax, ids = output

    def new() -> ChatParser:
        return ChatParser(known, syntax, rules, trace=trace)

    whole, single, cut = new(), new(), new()
    events = run(whole, [ids], finish)
    assert run(single, [[token] for token in ids], finish) == events
    assert run(cut, data.draw(cuts(ids)), finish) == events
    for other in (single, cut):
        assert other.recoveries == whole.recoveries
        assert other.reasoning_tokens == whole.reasoning_tokens
        assert other.place == whole.place
    assert_well_formed(events, ids)


def assert_well_formed(events: Sequence[SegmentEvent], ids: Sequence[int]) -> None:
    """Segments come one after the other, whole, each behind the ids of the one before."""
    is_open, at = False, 0
    for event in events:
        if isinstance(event, SegmentStarted):
            assert not is_open
            is_open = True
        elif isinstance(event, SegmentText):
            assert is_open
            assert event.text
        else:
            assert isinstance(event, SegmentEnded)
            assert is_open
            assert at <= event.start <= event.end <= len(ids)
            is_open, at = False, event.end
    assert not is_open


@pytest.mark.slow
@given(st.data(), outputs(), st.sampled_from(EVERY_RULES))
def test_the_place_depends_on_the_ids_alone(
    data: st.DataObject, output: tuple[Vocabulary, Syntax, list[int]], rules: OutputRules
) -> None:
    known, syntax, ids = output
    whole = ChatParser(known, syntax, rules)
    cut = ChatParser(known, syntax, rules)
    whole.feed(ids)
    for chunk in data.draw(cuts(ids)):
        cut.feed(chunk)
    assert cut.place == whole.place
    assert 0 <= whole.place.start <= len(ids)


@pytest.mark.slow
@given(st.data(), outputs())
def test_ids_fed_each_say_what_they_say_alone(
    data: st.DataObject, output: tuple[Vocabulary, Syntax, list[int]]
) -> None:
    known, syntax, ids = output
    at = data.draw(st.integers(0, len(ids)))
    one, other = (ChatParser(known, syntax, RULES) for _ in range(2))
    one.feed(ids[:at])
    other.feed(ids[:at])
    texts = one.feed_each(ids[at:])
    for token, text in zip(ids[at:], texts, strict=False):
        events = other.feed([token])
        assert all(isinstance(event, SegmentText) for event in events)
        assert said(events) == text
    rest = ids[at + len(texts) :]
    assert merged(one.feed(rest)) == merged(other.feed(rest))
    assert one.place == other.place


def said(events: Sequence[SegmentEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, SegmentText))


@pytest.mark.slow
@given(outputs(), FINISHES)
def test_a_traced_turn_says_the_same_and_its_ids_spell_it(
    output: tuple[Vocabulary, Syntax, list[int]], finish: FinishReason | None
) -> None:
    known, syntax, ids = output
    plain = ChatParser(known, syntax, RULES)
    traced = ChatParser(known, syntax, RULES, trace=True)
    events = [event for token in ids for event in traced.feed([token])]
    events += traced.finish(finish)
    assert said_in(events) == said_in(run(plain, [ids], finish))
    for event in events:
        if isinstance(event, SegmentText) and event.tokens:
            assert b"".join(traced.piece(ids[at]) for at in event.tokens) == event.text.encode()


@pytest.mark.slow
@given(outputs())
def test_no_marker_without_text_becomes_text(output: tuple[Vocabulary, Syntax, list[int]]) -> None:
    known, syntax, ids = output
    markers = {token for text in syntax.markers if (token := known.special(text)) is not None}
    texts = [token for token in ids if token not in markers]
    spelled = b"".join(map(known.piece, texts)).decode("utf-8", "replace")
    parser = ChatParser(known, syntax, PLAIN)
    for _, _, text in said_in(run(parser, [ids], FinishReason.STOP)):
        for marker in syntax.markers:
            token = known.special(marker)
            is_text = token is None or known.piece(token)
            assert is_text or marker not in text or marker in spelled


NAMES = st.sampled_from(["f", "g.h"])
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="<>[]"), max_size=12)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "count": st.integers(-(10**12), 10**12),
    "ratio": st.floats(allow_nan=False, allow_infinity=False, width=32),
    "flag": st.booleans(),
    "rows": st.lists(st.one_of(st.integers(0, 9), TEXTS), max_size=3),
    "text": TEXTS,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | TEXTS,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(TEXTS, some, max_size=3),
)


def is_ambiguous(value: Any) -> bool:
    """A text that is written as another value is."""
    return isinstance(value, str) and as_json(value, ANY) != json.dumps(value, ensure_ascii=False)


UNTYPED = {"glm": JSON.filter(lambda value: not is_ambiguous(value))}
"""What a syntax that writes any value without a type makes of one."""
LETTERS = st.sampled_from("abc \u00e9\U0001f496.,")
WORDS = st.text(LETTERS, min_size=1, max_size=12).filter(str.strip)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("has_ids", [True, False])
@given(data=st.data())
@settings(max_examples=30)
def test_what_is_written_is_read(name: str, has_ids: bool, data: st.DataObject) -> None:
    syntax = syntax_of(name)
    known = vocabulary_of(syntax, has_ids=has_ids)
    values = VALUES | {"unknown": UNTYPED.get(name, TEXTS)}
    arguments_ = st.fixed_dictionaries({}, optional=values)
    made = data.draw(st.lists(st.tuples(NAMES, arguments_), min_size=1, max_size=3))
    calls = tuple((name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in made)
    thought, words = data.draw(WORDS), data.draw(WORDS)
    assert FAMILIES[name] is syntax.calls
    assert syntax.reasoning is not None
    opening, closing = Mark(syntax.reasoning.opening), Mark(syntax.reasoning.closing)
    front = () if FAMILIES[name].is_bare else (words, "\n")
    text = (opening, "\n", thought, "\n", closing, "\n\n", *front, *FAMILIES[name].written(calls))
    ids = [*ids_of(known, text), known.special("<|im_end|>") or 0]
    parser = ChatParser(known, syntax, RULES)
    events = run(parser, [ids], FinishReason.STOP)
    read = said_in(events)
    if not FAMILIES[name].is_bare:
        assert read.pop(1) == (SegmentKind.FINAL, "", words.strip())
    assert read.pop(0) == (SegmentKind.REASONING, "", thought.strip())
    assert [(kind, called) for kind, called, _ in read] == [
        (SegmentKind.FUNCTION_CALL, called) for called, _ in calls
    ]
    for (called, _, text_read), (_, arguments) in zip(read, made, strict=True):
        assert called is SegmentKind.FUNCTION_CALL
        assert json.loads(text_read) == arguments
    assert all(event.complete for event in events if isinstance(event, SegmentEnded))
    assert not parser.recoveries
