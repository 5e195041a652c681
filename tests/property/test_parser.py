"""Laws of the Harmony parser: total, deaf to chunking, equal to the library where that works."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import openai_harmony
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

import gateway.models.harmony
from gateway.generation import FinishReason, SegmentEvent, SegmentKind, SegmentText
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.recovery import Rule
from gateway.models.harmony.vocabulary import NAMED_SPECIALS, VOCABULARY_SIZE, Detokenizer
from tests.fakes.harmony_script import TOOLS, Turn, parse_chunks, script_ids, vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        *("json", " code", '{"a": 1}', "{", "}", '"', "\\", " ", "\n", "364", "?", "Let me see."),
        *("💖", "नमस्ते", "a", " the", "```json\n", "functions.f", "}}"),
        *("<|channel|>commentary<|message|>", "<|channel|>final<|message|>x<|end|>"),
    )
]
# Halves of characters as well.
_PIECES = [*_WORDS, *([token] for token in [*_SPECIALS, *_SPECIALS, *_VOIDS, *script_ids("💖")])]
_FINISHES = [FinishReason.STOP, FinishReason.LENGTH, FinishReason.CUT, None]
_lawful = settings(deadline=None, derandomize=True)
_declared = st.sampled_from([TOOLS, frozenset({"f"})])

_MARKER = re.compile(r"<\|[a-z_0-9]+\|>")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def _check_laws(ids: list[int], turn: Turn) -> None:
    end = 0
    for segment in turn.segments:
        assert end <= segment.start <= segment.end <= len(ids)
        end = segment.end
        is_cut_call = segment.kind is SegmentKind.FUNCTION_CALL and not segment.complete
        assert segment.text or is_cut_call
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
        tools = dice.choice([TOOLS, frozenset({"f"})])
        turn = parse_chunks([ids], finish, header_ids_max=dice.choice([2, 8, 256]), tools=tools)
        _check_laws(ids, turn)
        assert (Rule.NO_VISIBLE_OUTPUT in turn.recoveries) == (
            finish not in {None, FinishReason.CUT} and not turn.visible
        )


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


@_lawful
@given(_ids, st.data(), st.sampled_from(_FINISHES), st.sampled_from([3, 256]), _declared)
def test_the_result_does_not_depend_on_how_the_ids_were_cut(
    ids: list[int],
    data: st.DataObject,
    finish: FinishReason | None,
    header_ids_max: int,
    tools: frozenset[str],
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(ids)))))
    chunks = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]

    def read(chunks: list[list[int]]) -> Turn:
        return parse_chunks(chunks, finish, header_ids_max=header_ids_max, tools=tools)

    whole = read([ids])

    assert read(chunks) == whole
    assert read([[token] for token in ids]) == whole


class _StepByStep(Detokenizer):
    """Has its parser look at every id."""

    @override
    def read(self, ids: Sequence[int]) -> None:
        return


@_lawful
@given(_ids, st.data(), st.sampled_from(_FINISHES), _declared)
def test_a_read_of_nothing_but_text_is_read_as_step_by_step(
    ids: list[int], data: st.DataObject, finish: FinishReason | None, tools: frozenset[str]
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(ids)))))
    quick, slow = Parser(vocabulary(), tools), Parser(vocabulary(), tools)
    slow._detokenizer = _StepByStep(vocabulary())
    for begin, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        assert quick.feed(ids[begin:end]) == slow.feed(ids[begin:end])
        assert (quick.place, quick.reasoning_tokens) == (slow.place, slow.reasoning_tokens)
    assert quick.finish(finish) == slow.finish(finish)
    assert quick.recoveries == slow.recoveries


@_lawful
@given(_ids, st.sampled_from(_FINISHES), st.sampled_from([3, 256]))
def test_tracing_changes_no_segment(
    ids: list[int], finish: FinishReason | None, header_ids_max: int
) -> None:
    singles = [[token] for token in ids]
    plain = parse_chunks([ids], finish, header_ids_max=header_ids_max)

    assert parse_chunks([ids], finish, header_ids_max=header_ids_max, trace=True) == plain
    assert parse_chunks(singles, finish, header_ids_max=header_ids_max, trace=True) == plain


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


@_lawful
@given(_ids, st.data(), st.booleans(), st.sampled_from([3, 256]), _declared)
def test_what_was_said_after_some_ids_depends_on_them_alone(
    ids: list[int], data: st.DataObject, trace: bool, header_ids_max: int, tools: frozenset[str]
) -> None:
    ids = ids[: data.draw(st.integers(0, len(ids)))]
    whole, single = (
        Parser(vocabulary(), tools, header_ids_max=header_ids_max, trace=trace) for _ in range(2)
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


@_lawful
@given(_ids, st.data(), st.sampled_from([3, 256]))
def test_the_place_does_not_depend_on_how_the_ids_were_cut(
    ids: list[int], data: st.DataObject, header_ids_max: int
) -> None:
    cut = data.draw(st.integers(0, len(ids)))
    whole, parts = (Parser(vocabulary(), TOOLS, header_ids_max=header_ids_max) for _ in range(2))
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
_turns = st.lists(_spoken | _call, min_size=1, max_size=5)


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


@_lawful
@given(_turns)
def test_what_the_reference_library_parses_is_parsed_alike(
    library: openai_harmony.HarmonyEncoding, messages: list[_Message]
) -> None:
    ids = [token for message in _written(messages) for token in message]
    theirs = openai_harmony.StreamableParser(library, openai_harmony.Role.ASSISTANT)
    for token in ids:
        theirs.process(token)

    turn = parse_chunks([ids])

    said = []
    for message in theirs.messages:
        text = "".join(content.text for content in message.content)
        if message.recipient:
            name = message.recipient.removeprefix("functions.")
            said.append((SegmentKind.FUNCTION_CALL, name, text))
        elif text:
            kind = "reasoning" if message.channel == "analysis" else message.channel
            said.append((SegmentKind(kind), "", text))
    assert turn.said() == said


@_lawful
@given(_turns)
def test_ranges_hold_the_ids_of_their_message_and_nothing_else(messages: list[_Message]) -> None:
    written = _written(messages)
    ids = [token for message in written for token in message]

    turn = parse_chunks([ids])

    shown = [
        message_ids for message, message_ids in zip(messages, written, strict=True) if message.body
    ]
    assert [ids[segment.start : segment.end] for segment in turn.segments] == shown
    declared = [segment for segment in turn.segments if segment.name != "undeclared"]
    assert all(segment.verbatim for segment in declared)
    assert turn.recoveries.keys() <= {Rule.NO_VISIBLE_OUTPUT, Rule.UNDECLARED_FUNCTION}


@pytest.mark.requirement("usage.reasoning")
@_lawful
@given(_turns)
def test_reasoning_tokens_are_the_ids_of_analysis_bodies(messages: list[_Message]) -> None:
    turn = parse_chunks(_written(messages))

    bodies = [message.body for message in messages if message.channel == "analysis"]
    assert turn.reasoning_tokens == sum(len(vocabulary().encode(body)) for body in bodies)
