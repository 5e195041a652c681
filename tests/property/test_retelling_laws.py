"""What a model is shown of turns that are over is well-formed, whatever it said in them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.generation import FinishReason
from gateway.models.harmony.framing import FINAL_HEADER, thread_ids
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.retelling import Retelling
from gateway.models.harmony.vocabulary import CHANNEL, NAMED_SPECIALS
from tests.fakes.harmony_oracle import well_formed
from tests.fakes.harmony_script import TOOLS, collect, script_ids, vocabulary

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
_said = st.lists(st.sampled_from(_PIECES), max_size=12).map(
    lambda pieces: [token for piece in pieces for token in piece]
)
_prefills = st.sampled_from([(), (CHANNEL,), FINAL_HEADER])
_finishes = st.sampled_from([FinishReason.STOP, FinishReason.CUT, None])
_turns = st.lists(
    st.tuples(st.builds(lambda a, b: [*a, *b], _prefills, _said), _finishes), max_size=3
)


def _retelling(tools: frozenset[str]) -> Retelling:
    return Retelling(vocabulary(), lambda: Parser(vocabulary(), tools))


@_lawful
@given(_turns, st.sampled_from([TOOLS, frozenset({"f"})]))
def test_a_prompt_behind_turns_that_are_over_is_well_formed(
    turns: list[tuple[list[int], FinishReason | None]], tools: frozenset[str]
) -> None:
    told = _retelling(tools).ids(turns)
    said = 0
    for ids, finish in turns:
        parser = Parser(vocabulary(), tools)
        segments = collect([*parser.feed(ids), *parser.finish(finish)])
        said += sum(1 for segment in segments if segment.name == "" or segment.complete)

    assert well_formed([*_PROMPT, *told]) <= 1 + said


@_lawful
@given(st.lists(st.sampled_from([_THOUGHT, "<|channel|>final<|message|>x<|return|>"]), max_size=3))
def test_turns_that_are_well_formed_are_repeated_id_for_id(scripts: list[str]) -> None:
    turns = [script_ids(script) for script in scripts]
    told = _retelling(TOOLS).ids((ids, FinishReason.STOP) for ids in turns)

    assert told == thread_ids((), [*(((), ids) for ids in turns), ((), ())])
