"""Laws of the Harmony parser: total, deaf to chunking, equal to the library where that works."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai_harmony
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

import gateway.models.harmony
from gateway.generation import PYTHON_TOOL, FinishReason, SegmentEvent, SegmentKind, SegmentText
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.recovery import Rule
from gateway.models.harmony.tokenizer import NAMED_SPECIALS, VOCABULARY_SIZE, Detokenizer
from tests.fakes.harmony_script import HOSTED, TOOLS, Turn, parse_chunks, script_ids, vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

_NONE: frozenset[str] = frozenset()
_SPECIALS = sorted(NAMED_SPECIALS.values())
_VOIDS = [199998, 200000, 200013, 201087, VOCABULARY_SIZE, 2**40, -1]
_WORDS = [
    script_ids(text)
    for text in (
        *("assistant", "user", "tool", "bash", "functions.f", "python", "analysis", "commentary"),
        *(
            "final",
            " to=functions.f",
            ' to="f"',
            " to=f",
            " to=assistant",
            " to=python",
            " to=",
            " json",
        ),
        *(" to=browser.search", " to=functions.python", " to=functions.crm.add", "crm.add"),
        *("browser.search", "<|channel|>analysis to=python code<|message|>"),
        *("json", " code", '{"a": 1}', "{", "}", '"', "\\", " ", "\n", "364", "?", "Let me see."),
        *("💖", "नमस्ते", "a", " the", "```json\n", "functions.f", "}}"),
        *("<|channel|>commentary<|message|>", "<|channel|>final<|message|>x<|end|>"),
    )
]
# Halves of characters as well.
_PIECES = [*_WORDS, *([token] for token in [*_SPECIALS, *_SPECIALS, *_VOIDS, *script_ids("💖")])]
_FINISHES = [FinishReason.STOP, FinishReason.LENGTH, FinishReason.CUT, None]
_lawful = settings(deadline=None, derandomize=True)
_SOME_TOOLS = [
    (TOOLS, _NONE),
    (frozenset({"f"}), _NONE),
    (TOOLS, HOSTED),
    (frozenset({"python", "browser.search"}), HOSTED),
    (_NONE, frozenset({"crm.add"})),
    (_NONE, frozenset({PYTHON_TOOL})),
]
_declared = st.sampled_from(_SOME_TOOLS)
Declared = tuple[frozenset[str], frozenset[str]]

_MARKER = re.compile(r"<\|[a-z_0-9]+\|>")
_NAME = re.compile(r"(builtin:)?[A-Za-z0-9_.-]+")


def _parser(declared: Declared, **more: Any) -> Parser:
    tools, hosted = declared
    return Parser(vocabulary(), tools | hosted, hosted=hosted, **more)


def _check_laws(ids: list[int], turn: Turn, hosted: frozenset[str]) -> None:
    end = 0
    calls = [segment.name in hosted and segment.complete for segment in turn.segments]
    assert not any(calls[:-1]), "a call that the gateway runs is the last thing that is said"
    for segment in turn.segments:
        assert segment.name in hosted or "builtin:" not in segment.name
        assert end <= segment.start <= segment.end <= len(ids)
        end = segment.end
        is_cut_call = segment.kind is SegmentKind.FUNCTION_CALL and not segment.complete
        assert segment.text or is_cut_call or segment.name == PYTHON_TOOL
        assert not _MARKER.search(segment.text)
        is_call = segment.kind is SegmentKind.FUNCTION_CALL
        assert _NAME.fullmatch(segment.name) if is_call else not segment.name
        if segment.verbatim:
            assert segment.complete
            assert not set(ids[segment.start : segment.end]) & set(_VOIDS)
    assert 0 <= turn.reasoning_tokens <= len(ids)


def _fuzz(sequences: int, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(sequences):
        ids = [token for _ in range(dice.randrange(24)) for token in dice.choice(_PIECES)]
        finish = dice.choice(_FINISHES)
        tools, hosted = dice.choice(_SOME_TOOLS)
        ids_max = dice.choice([2, 8, 256])
        turn = parse_chunks([ids], finish, header_ids_max=ids_max, tools=tools, hosted=hosted)
        _check_laws(ids, turn, hosted)
        assert (Rule.NO_VISIBLE_OUTPUT in turn.recoveries) == (
            finish not in {None, FinishReason.CUT} and not turn.visible
        )


@pytest.mark.slow
@pytest.mark.requirement("harmony.unparsable")
def test_no_ids_raise_and_no_marker_is_ever_text() -> None:
    _fuzz(10_000, seed=20)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_no_million_of_turns_raises_or_leaks(seed: int) -> None:
    _fuzz(100_000, seed=seed)


_ids = st.lists(st.sampled_from(_PIECES), max_size=24).map(
    lambda pieces: [token for piece in pieces for token in piece]
)


@pytest.mark.slow
@_lawful
@given(_ids, st.data(), st.sampled_from(_FINISHES), st.sampled_from([3, 256]), _declared)
def test_the_result_does_not_depend_on_how_the_ids_were_cut(
    ids: list[int],
    data: st.DataObject,
    finish: FinishReason | None,
    header_ids_max: int,
    declared: Declared,
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(ids)))))
    chunks = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]

    def read(chunks: list[list[int]]) -> Turn:
        tools, hosted = declared
        return parse_chunks(
            chunks, finish, header_ids_max=header_ids_max, tools=tools, hosted=hosted
        )

    whole = read([ids])

    assert read(chunks) == whole
    assert read([[token] for token in ids]) == whole


class _StepByStep(Detokenizer):
    """Has its parser look at every id."""

    @override
    def read(self, ids: Sequence[int]) -> None:
        return


@pytest.mark.slow
@_lawful
@given(_ids, st.data(), st.sampled_from(_FINISHES), _declared)
def test_a_read_of_nothing_but_text_is_read_as_step_by_step(
    ids: list[int], data: st.DataObject, finish: FinishReason | None, declared: Declared
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(ids)))))
    quick, slow = _parser(declared), _parser(declared)
    slow._detokenizer = _StepByStep(vocabulary())
    for begin, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        assert quick.feed(ids[begin:end]) == slow.feed(ids[begin:end])
        assert (quick.place, quick.reasoning_tokens) == (slow.place, slow.reasoning_tokens)
    assert quick.finish(finish) == slow.finish(finish)
    assert quick.recoveries == slow.recoveries


@pytest.mark.slow
@_lawful
@given(_ids, st.sampled_from(_FINISHES), st.sampled_from([3, 256]), _declared)
def test_tracing_changes_no_segment(
    ids: list[int], finish: FinishReason | None, header_ids_max: int, declared: Declared
) -> None:
    tools, hosted = declared
    read = partial(
        parse_chunks, finish=finish, header_ids_max=header_ids_max, tools=tools, hosted=hosted
    )
    plain = read([ids])

    assert read([ids], trace=True) == plain
    assert read([[token] for token in ids], trace=True) == plain


@pytest.mark.slow
@_lawful
@given(_ids, st.data(), st.sampled_from(_FINISHES))
def test_traced_text_is_what_its_ids_spell(
    ids: list[int], data: st.DataObject, finish: FinishReason | None
) -> None:
    cut = data.draw(st.integers(0, len(ids)))
    parser = Parser(vocabulary(), TOOLS, trace=True)
    events = [*parser.feed(ids[:cut]), *parser.feed(ids[cut:]), *parser.finish(finish)]

    last = -1
    for text in events:
        if isinstance(text, SegmentText) and text.tokens:
            spelled = b"".join(parser.piece(ids[at]) for at in text.tokens)
            assert spelled == text.text.encode()
            assert last < text.tokens[0]
            assert list(text.tokens) == sorted(set(text.tokens))
            last = text.tokens[-1]


@pytest.mark.slow
@_lawful
@given(_ids, st.data(), st.booleans(), st.sampled_from([3, 256]), _declared)
def test_what_was_said_after_some_ids_depends_on_them_alone(
    ids: list[int], data: st.DataObject, trace: bool, header_ids_max: int, declared: Declared
) -> None:
    ids = ids[: data.draw(st.integers(0, len(ids)))]
    whole, single = (
        _parser(declared, header_ids_max=header_ids_max, trace=trace) for _ in range(2)
    )
    singles = [event for token in ids for event in single.feed([token])]

    assert _joined(singles) == _joined(whole.feed(ids))
    assert whole.reasoning_tokens == single.reasoning_tokens


def _joined(events: list[SegmentEvent]) -> list[SegmentEvent]:
    """Neighbouring texts as one, without their ids."""
    joined: list[SegmentEvent] = []
    for event in events:
        if isinstance(event, SegmentText):
            before = joined.pop() if isinstance(joined[-1], SegmentText) else SegmentText("")
            assert isinstance(before, SegmentText)
            joined.append(SegmentText(before.text + event.text))
        else:
            joined.append(event)
    return joined


@pytest.mark.slow
@_lawful
@given(_ids, st.data(), st.sampled_from([3, 256]), _declared)
def test_the_place_does_not_depend_on_how_the_ids_were_cut(
    ids: list[int], data: st.DataObject, header_ids_max: int, declared: Declared
) -> None:
    cut = data.draw(st.integers(0, len(ids)))
    whole, parts = (_parser(declared, header_ids_max=header_ids_max) for _ in range(2))
    whole.feed(ids)
    parts.feed(ids[:cut])
    parts.feed(ids[cut:])

    assert whole.place == parts.place
    assert 0 <= whole.place.start <= len(ids)


@dataclass(frozen=True)
class _Message:
    """One well-formed message as the model was trained to write it."""

    channel: str
    recipient: str
    header: str
    body: str
    terminator: str


# Hypothesis knows the markers from this package's source; here they would become special ids.
_text = st.text(max_size=40).map(lambda text: text.replace("<|", ""))
_json = st.dictionaries(_text, st.integers() | _text, max_size=3).map(
    lambda value: json.dumps(value, ensure_ascii=False)
)
_spoken = st.builds(
    lambda channel, body: _Message(channel, "", f"<|channel|>{channel}", body, "<|end|>"),
    st.sampled_from(["analysis", "commentary", "final"]),
    _text,
)
_call = st.builds(
    lambda name, form, body: _Message(
        "commentary", f"functions.{name}", form.format(name), body, "<|call|>"
    ),
    st.sampled_from([*sorted(TOOLS), "undeclared"]),
    st.sampled_from(
        [
            "<|channel|>commentary to=functions.{}",
            "<|channel|>commentary to=functions.{} json",
            "<|channel|>commentary to=functions.{} <|constrain|>json",
            " to=functions.{}<|channel|>commentary",
            " to=functions.{}<|channel|>commentary json",
            " to=functions.{}<|channel|>commentary <|constrain|>json",
        ]
    ),
    _json,
)
_hosted_call = st.builds(
    lambda name, form, body: _Message("analysis", name, form.format(name), body, "<|call|>"),
    st.sampled_from(["browser.search", "browser.open", "browser.find", "python"]),
    st.sampled_from(
        [
            "<|channel|>analysis to={}",
            "<|channel|>analysis to={} code",
            "<|channel|>analysis to={} <|constrain|>json",
            " to={}<|channel|>analysis",
            " to={}<|channel|>analysis code",
            " to={}<|channel|>analysis json",
        ]
    ),
    _json,
)
_turns = st.lists(_spoken | _call, min_size=1, max_size=5)
_hosted_turns = st.builds(
    lambda before, call: [*before, call], st.lists(_spoken, max_size=3), _hosted_call
)


def _written(messages: list[_Message]) -> list[list[int]]:
    """The ids of each message; the first one's role is the end of the prompt."""
    scripts = [
        f"{message.header}<|message|>{message.body}{message.terminator}" for message in messages
    ]
    return [
        script_ids(script if index == 0 else f"<|start|>assistant{script}")
        for index, script in enumerate(scripts)
    ]


@pytest.fixture(scope="module")
def library() -> openai_harmony.HarmonyEncoding:
    data = Path(gateway.models.harmony.__file__).parent / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_ENCODINGS_BASE", str(data))
        return openai_harmony.load_harmony_encoding("HarmonyGptOss")


@pytest.mark.slow
@_lawful
@given(_turns | _hosted_turns)
def test_what_the_reference_library_parses_is_parsed_alike(
    library: openai_harmony.HarmonyEncoding, messages: list[_Message]
) -> None:
    ids = [token for message in _written(messages) for token in message]
    theirs = openai_harmony.StreamableParser(library, openai_harmony.Role.ASSISTANT)
    for token in ids:
        theirs.process(token)

    turn = parse_chunks([ids], hosted=HOSTED)

    said = []
    for message in theirs.messages:
        text = "".join(content.text for content in message.content)
        if message.recipient:
            name = message.recipient.removeprefix("functions.")
            if name == message.recipient:
                name = f"builtin:{name}"
            said.append((SegmentKind.FUNCTION_CALL, name, text))
        elif text:
            kind = "reasoning" if message.channel == "analysis" else message.channel
            said.append((SegmentKind(kind), "", text))
    assert turn.said() == said


@pytest.mark.slow
@_lawful
@given(_turns | _hosted_turns)
def test_ranges_hold_the_ids_of_their_message_and_nothing_else(messages: list[_Message]) -> None:
    written = _written(messages)
    ids = [token for message in written for token in message]

    turn = parse_chunks([ids], hosted=HOSTED)

    shown = [
        message_ids for message, message_ids in zip(messages, written, strict=True) if message.body
    ]
    assert [ids[segment.start : segment.end] for segment in turn.segments] == shown
    declared = [segment for segment in turn.segments if segment.name != "undeclared"]
    assert all(segment.verbatim for segment in declared)
    known = {Rule.NO_VISIBLE_OUTPUT, Rule.PREAMBLE_ONLY, Rule.UNDECLARED_FUNCTION}
    assert turn.recoveries.keys() <= known


@pytest.mark.slow
@pytest.mark.requirement("usage.reasoning")
@_lawful
@given(_turns | _hosted_turns)
def test_reasoning_tokens_are_the_ids_of_analysis_bodies(messages: list[_Message]) -> None:
    turn = parse_chunks(_written(messages), hosted=HOSTED)

    thoughts = (one for one in messages if one.channel == "analysis" and not one.recipient)
    bodies = [thought.body for thought in thoughts]
    assert turn.reasoning_tokens == sum(len(vocabulary().encode(body)) for body in bodies)
