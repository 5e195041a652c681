"""What a model is shown of turns that are over is well-formed, whatever it said in them, and it is
what all later prompts show of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gateway.engine.row_mapping import output_context
from gateway.entries import Entry, Finished, Tokens, TurnEnded, TurnStarted
from gateway.eventlog.fold.fold import Fold
from gateway.generation import FinishReason, Framing
from gateway.models.harmony.harmony_format import HarmonyFormat, turn_ids
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.tokenizer import (
    CHANNEL,
    END,
    FINAL_HEADER,
    NAMED_SPECIALS,
    OPENING,
    RETURN,
)
from tests.fakes.fold_formats import parsed_by
from tests.fakes.harmony_oracle import well_formed
from tests.fakes.harmony_script import TOOLS, Segment, collect, script_ids, vocabulary
from tests.fakes.response_heads import NO_RULES, response_head
from tests.fakes.toy_logs import apply_all

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.models.format import Turn

STOP, CUT = FinishReason.STOP, FinishReason.CUT
_lawful = settings(deadline=None, derandomize=True)
_PROMPT = script_ids("<|start|>user<|message|>hi<|end|><|start|>assistant")
_THOUGHT = "<|channel|>analysis<|message|>Hm<|end|>"
_NEXT = "<|start|>assistant"
_PIECES = [
    *([token] for token in [*NAMED_SPECIALS.values(), *NAMED_SPECIALS.values(), 200013, 2**18]),
    *(
        script_ids(text)
        for text in (
            *("assistant", "user", "bash", "analysis", "commentary", "final", " to=functions.f"),
            *(' to="f"', " to=nobody", " to=python", " json", '{"a": 1}', "{", "ls", "?", "\n"),
            *("Let me see.", "💖", _NEXT, _THOUGHT, "<|channel|>final<|message|>"),
            *("<|channel|>commentary to=functions.f<|message|>", "<|end|>" + _NEXT),
        )
    ),
    script_ids("💖")[:1],
]
_HEADER_PIECES = [
    *("<|channel|>", "<|channel|>analysis", "<|channel|>final", "<|channel|>commentary"),
    *("<|constrain|>", " json", " to=functions.f", "assistant", " ", "\n"),
]
_BODIES = ["<|message|>Hm<|end|>", '<|message|>{"a": 1}<|call|>']
_said = st.lists(st.sampled_from(_PIECES), max_size=12).map(
    lambda pieces: [token for piece in pieces for token in piece]
)
_prefills = st.sampled_from([(), (CHANNEL,), FINAL_HEADER])
_finishes = st.sampled_from([STOP, CUT, None])
_turns = st.lists(
    st.tuples(st.builds(lambda a, b: [*a, *b], _prefills, _said), _finishes), max_size=3
)


_ENDED = Finished("incomplete", 1_795_000_009, reason="max_output_tokens")
_RENDERER = HarmonyFormat(vocabulary())
_FRAMING = Framing(opening=OPENING, turn_end=RETURN, message_end=END)


def _segments(ids: list[int], finish: FinishReason | None, tools: frozenset[str]) -> list[Segment]:
    parser = Parser(vocabulary(), tools)
    return collect([*parser.feed(ids), *parser.finish(finish)])


def _rerendered(turns: Iterable[Turn], tools: frozenset[str] = TOOLS) -> list[int]:
    return _RENDERER.rerender(turns, lambda: Parser(vocabulary(), tools))


@pytest.mark.slow
@_lawful
@given(_turns, st.sampled_from([TOOLS, frozenset({"f"})]))
def test_a_prompt_behind_turns_that_are_over_is_well_formed(
    turns: list[tuple[list[int], FinishReason | None]], tools: frozenset[str]
) -> None:
    told = _rerendered(turns, tools)
    said = 0
    for ids, finish in turns:
        segments = _segments(ids, finish, tools)
        said += sum(1 for segment in segments if segment.name == "" or segment.complete)

    assert well_formed([*_PROMPT, *told]) <= 1 + said


@pytest.mark.slow
@_lawful
@given(st.lists(st.sampled_from(_HEADER_PIECES), max_size=5), st.sampled_from(_BODIES))
def test_a_message_behind_any_header_is_well_formed(header: list[str], body: str) -> None:
    told = _rerendered([(script_ids("".join(header) + body), STOP)])

    assert well_formed([*_PROMPT, *told]) <= 2


@_lawful
@given(st.lists(st.sampled_from([_THOUGHT, "<|channel|>final<|message|>x<|return|>"]), max_size=3))
def test_turns_that_are_well_formed_are_repeated_id_for_id(scripts: list[str]) -> None:
    turns = [script_ids(script) for script in scripts]
    told = _rerendered((ids, STOP) for ids in turns)

    assert told == turn_ids([*(((), ids) for ids in turns), ((), ())])


def _calls(ids: list[int]) -> bool:
    return any(segment.name for segment in _segments(ids, CUT, TOOLS))


def _shown_later(turns: list[tuple[list[int], FinishReason]]) -> list[int]:
    """What prompts of later responses show of a response with these turns, opening another message
    behind each; what calls get for an answer is not among it.
    """
    fold = Fold(
        response_head(),
        parsed_by(lambda trace: Parser(vocabulary(), TOOLS, trace=trace), _FRAMING),
        NO_RULES,
    )
    log: list[Entry] = []
    for ids, finish in turns:
        log += [TurnStarted(9), *(Tokens((token,)) for token in ids), TurnEnded(finish)]
    apply_all(fold, [*log, _ENDED])
    shown: list[int] = []
    for item in map(output_context, fold.items()):
        if item.complete or not item.is_call:
            rendered = _RENDERER.render_item(item) if item.ids is None else item.ids
            shown += (*rendered[len(OPENING) :], *OPENING)
    return shown


@pytest.mark.slow
@_lawful
@given(st.lists(st.tuples(_said, st.sampled_from([STOP, CUT])), max_size=3))
def test_later_prompts_show_of_a_response_what_it_was_shown_itself(
    turns: list[tuple[list[int], FinishReason]],
) -> None:
    assume(not any(finish is CUT and _calls(ids) for ids, finish in turns))

    assert _rerendered(turns) == _shown_later(turns)


@pytest.mark.slow
@_lawful
@given(st.lists(st.text(max_size=9), max_size=9), st.integers(0, 99))
def test_a_message_that_was_cut_anywhere_is_shown_alike_in_every_prompt(
    pieces: list[str], cut: int
) -> None:
    """Whatever ids spell it: those of pieces of a text are seldom those of the text."""
    spelled = [token for piece in pieces for token in vocabulary().encode(piece)]
    for header in ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"):
        turns = [([*script_ids(header), *spelled[:cut]], CUT)]
        assert _rerendered(turns) == _shown_later(turns)
