"""Hosted calls as gpt-oss says them: parsed, folded, and told again in the next prompt."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.constraints.output_rules import OutputRules, ToolRule
from gateway.entries import Finished, Tokens, ToolEnded, ToolStarted, TurnEnded, TurnStarted
from gateway.eventlog.fold.fold import Fold
from gateway.generation import BROWSER_TOOLS, PYTHON_TOOL, FinishReason, SegmentKind
from gateway.protocol.grants import BrowserGrant, Grants, PythonGrant
from tests.fakes.event_grammar import check_stream
from tests.fakes.examples import examples
from tests.fakes.harmony_script import harmony, script_ids
from tests.fakes.response_heads import response_head
from tests.fakes.toy_logs import logprob_of

if TYPE_CHECKING:
    from gateway.entries import Entry
    from gateway.protocol.stream_events import Event

laws = settings(deadline=None, max_examples=examples(60))
GRANTS = Grants(BrowserGrant("web_search"), PythonGrant("cntr_1", "linux", 1 << 30))
RULES = OutputRules(
    {
        **{name: ToolRule(name, SegmentKind.WEB_SEARCH_CALL, name) for name in BROWSER_TOOLS},
        PYTHON_TOOL: ToolRule(PYTHON_TOOL, SegmentKind.CODE_INTERPRETER_CALL, "python"),
        "crm.add": ToolRule("crm.add", SegmentKind.MCP_CALL, "add", "crm"),
    },
    frozenset({*BROWSER_TOOLS, PYTHON_TOOL, "crm.add"}),
)
THOUGHT = "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant"
CALLS = (
    (
        "builtin:browser.search",
        " to=browser.search<|channel|>analysis <|constrain|>json<|message|>"
        '{"query": "sea é"}<|call|>',
    ),
    (
        "builtin:browser.open",
        '<|channel|>analysis to=browser.open code<|message|>{"id": 3}<|call|>',
    ),
    ("builtin:python", " to=python<|channel|>analysis code<|message|>x = 1\nprint(x)<|call|>"),
    (
        "crm.add",
        "<|channel|>commentary to=functions.crm.add <|constrain|>json<|message|>{}<|call|>",
    ),
)
ANSWER = "<|channel|>final<|message|>It is 💖é【{0}†L1-L2】 so.【99†L1】<|return|>"
turns = st.lists(st.tuples(st.sampled_from(CALLS), st.booleans()), min_size=1, max_size=5)


def new_fold() -> Fold:
    return Fold(replace(response_head(), grants=GRANTS), harmony(), RULES)


def state(name: str, cursor: int) -> bytes:
    if not name.startswith("builtin:browser"):
        return b""
    page = {"cursor": cursor, "key": "k", "kind": "page", "url": "https://a.example", "title": "A"}
    return orjson.dumps({"page": page})


def written(chosen: list[tuple[tuple[str, str], bool]]) -> list[Entry]:
    log: list[Entry] = []
    for ordinal, ((name, script), thinks) in enumerate(chosen):
        said = script_ids(THOUGHT * thinks + script)
        log += [TurnStarted(9), Tokens(tuple(said)), TurnEnded(FinishReason.STOP)]
        result = tuple(harmony().render_result(name, f"result {ordinal}"))
        log += [ToolStarted(ordinal), ToolEnded(ordinal, result, state=state(name, ordinal))]
    answer = Tokens(tuple(script_ids(ANSWER.format(0))))
    log += [TurnStarted(9), answer, TurnEnded(FinishReason.STOP), Finished("completed", 1)]
    return log


def told(log: list[Entry]) -> list[Entry]:
    """The same log with logprobs."""
    return [
        Tokens(entry.ids, tuple(map(logprob_of, entry.ids))) if isinstance(entry, Tokens) else entry
        for entry in log
    ]


@pytest.mark.slow
@laws
@given(turns)
def test_every_call_is_found_and_the_items_repeat_the_prompt(
    chosen: list[tuple[tuple[str, str], bool]],
) -> None:
    fold, prompt = new_fold(), list[int]()
    framing, found = harmony().framing, list[str]()
    for entry in written(chosen):
        if isinstance(entry, ToolStarted):
            assert fold.hosted.call is not None
            found.append(fold.hosted.call.name)
        fold.apply(entry)
        if isinstance(entry, Tokens):
            prompt += [*framing.opening, *entry.ids]
        elif isinstance(entry, ToolEnded):
            prompt += entry.ids
            repeated = [token for item in fold.items() for token in item.ids or ()]
            assert repeated == prompt
    assert found == [name for (name, _), _ in chosen]


@pytest.mark.slow
@laws
@given(turns, st.data())
def test_any_cut_gives_the_same_items(
    chosen: list[tuple[tuple[str, str], bool]], data: st.DataObject
) -> None:
    whole, parts = new_fold(), new_fold()
    log = told(written(chosen)) if data.draw(st.booleans()) else written(chosen)
    events = [event for entry in log for event in whole.apply(entry)]
    cut: list[Event] = []
    for entry in log:
        pieces: list[Entry] = [entry]
        if isinstance(entry, Tokens):
            size = data.draw(st.integers(1, 9))
            pieces = [
                Tokens(entry.ids[at : at + size], entry.logprobs[at : at + size])
                for at in range(0, len(entry.ids), size)
            ]
        cut += [event for piece in pieces for event in parts.apply(piece)]
    assert check_stream(cut).items == check_stream(events).items
    assert parts.items() == whole.items()
    answer: dict[str, Any] = whole.response()["output"][-1]
    [part] = answer["content"]
    is_cited = chosen[0][0][0].startswith("builtin:browser")
    link = "([A](https://a.example))" if is_cited else ""
    assert part["text"] == f"It is 💖é{link} so."
    assert [one["start_index"] for one in part["annotations"]] == [8] * is_cited
