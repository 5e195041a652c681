"""Law: what becomes of a turn does not depend on how its backend cuts it into chunks, also where
the headers of calls are text.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.constraints.output_rules import AnswerFormat, OutputRules, ToolRule
from gateway.constraints.validation import Checker
from gateway.generation import FinishReason, SegmentKind, TokenChunk
from gateway.models.chat.call_syntax import Mark
from gateway.models.chat.families import CALLS, NONE
from gateway.protocol.call_items import call_fields
from tests.fakes.chat_format import ids_of, loaded
from tests.fakes.examples import examples
from tests.fakes.staged_run import ScriptedTokens, Stage, run_spec

if TYPE_CHECKING:
    from gateway.models.chat.chat_format import ChatFormat

BOUND = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = {name: ToolRule(name, SegmentKind.FUNCTION_CALL, name) for name in ("f", "g")}
STRICT = {**TOOLS, "f": replace(TOOLS["f"], schema=BOUND)}
BOTH = frozenset(TOOLS)
RULES = [
    OutputRules(TOOLS, BOTH),
    OutputRules(TOOLS, BOTH, one_call=True),
    OutputRules(TOOLS, BOTH, calls="none"),
    OutputRules(TOOLS, BOTH, calls="required"),
    OutputRules(TOOLS, frozenset({"f"}), open_calls=False),
    OutputRules(STRICT, BOTH),
    OutputRules(TOOLS, BOTH, stop=("Fr",)),
    OutputRules({}, frozenset(), answer=AnswerFormat("json_object", {"type": "object"})),
]
THOUGHT = "<think>\nHm.\n</think>\n\n"
SORRY = "Sorry.<|im_end|>"


@cache
def format_of(calls: str) -> ChatFormat:
    return loaded(calls=calls)


def written(calls: str, name: str, arguments: str) -> str:
    syntax = CALLS[calls]
    assert syntax is not None
    parts = syntax.written(((name, arguments),))
    return "".join(part.text if isinstance(part, Mark) else part for part in parts)


@st.composite
def turns(draw: st.DrawFn, calls: str) -> str:
    names = st.sampled_from(["f", "g", "other"])
    arguments = st.sampled_from(['{"city": "Paris"}', '{"town": 1}'])
    call = st.builds(written, st.just(calls), names, arguments)
    text = st.sampled_from(["From Paris. ", '{"a": 1}', "\n", ";", "<think>so</think>", THOUGHT])
    turn = "".join(draw(st.lists(call | text, min_size=1, max_size=4)))
    return turn[: draw(st.just(len(turn)) | st.integers(1, len(turn)))] + "<|im_end|>"


async def outcome(
    calls: str, rules: OutputRules, chunks: list[list[int]], budget: int | None
) -> tuple[Any, ...]:
    """The output, usage and recoveries of a turn, and of others that apologise."""
    spec = replace(
        run_spec(max_tokens=1_000),
        rules=rules,
        checker=Checker(rules, call_fields),
        reasoning_budget=budget,
        prompt_ids=ids_of("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"),
    )
    end = TokenChunk([], FinishReason.STOP)
    scripts = [chunks, *[[ids_of(SORRY)]] * 8]
    tokens = ScriptedTokens([[*map(TokenChunk, script), end] for script in scripts])
    stage = Stage(tokens, spec=spec, format_of=lambda _: format_of(calls))
    await stage.play()
    body: dict[str, Any] = stage.live.fold.response()
    for item in body["output"]:
        del item["id"]
        item.pop("call_id", None)
    return body["status"], body["output"], body["usage"], stage.live.fold.recoveries


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(st.data(), st.sampled_from(RULES), st.none() | st.just(3))
@pytest.mark.parametrize("calls", sorted(CALLS.keys() - {NONE}))
def test_a_turn_does_not_depend_on_its_chunks(
    calls: str, data: st.DataObject, rules: OutputRules, budget: int | None
) -> None:
    ids = ids_of(data.draw(turns(calls)))
    places = {0, *data.draw(st.lists(st.integers(1, len(ids)), max_size=5))}
    cuts = [*sorted(places), len(ids)]
    chunks = [ids[begin:end] for begin, end in pairwise(cuts) if begin < end]
    one_by_one = asyncio.run(outcome(calls, rules, [[one] for one in ids], budget))
    assert asyncio.run(outcome(calls, rules, chunks, budget)) == one_by_one
