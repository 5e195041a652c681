"""Calls that their terminator tells, and the end of those that break off."""

from __future__ import annotations

import pytest

from gateway.generation import BrokenCall, SegmentEnded, SegmentKind
from gateway.models.harmony.parsing import Parser
from tests.fakes.cases import each
from tests.fakes.harmony_script import TOOLS, parse, parse_chunks, script_ids, vocabulary

_CALL_F = "<|channel|>commentary to=functions.f<|message|>"
_ONE = frozenset({"f"})
_NOTE = "<|channel|>commentary<|message|>"


@each(
    ("script", "said"),
    [
        (_NOTE + '{"a": 1}<|call|>', (SegmentKind.FUNCTION_CALL, "f", '{"a": 1}')),
        (_NOTE + ' \n{"a": 1}}<|call|>', (SegmentKind.FUNCTION_CALL, "f", '{"a": 1}')),
        ("<|message|>{}<|call|>", (SegmentKind.FUNCTION_CALL, "f", "{}")),
        ("<|channel|>analysis<|message|>{}<|call|>", (SegmentKind.FUNCTION_CALL, "f", "{}")),
        ("<|channel|>analysis so {}<|call|>", (SegmentKind.FUNCTION_CALL, "f", "{}")),
        (_NOTE + '{"a": 1}<|end|>', (SegmentKind.COMMENTARY, "", '{"a": 1}')),
        (_NOTE + '{"a": <|call|>', (SegmentKind.COMMENTARY, "", '{"a": ')),
        (_NOTE + "So {}<|call|>", (SegmentKind.COMMENTARY, "", "So {}")),
        ("<|channel|>analysis<|message|>{a}<|end|>", (SegmentKind.REASONING, "", "{a}")),
        ("<|channel|>analysis so {a}<|call|>", (SegmentKind.REASONING, "", "so {a}")),
        ("<|message|>x<|call|>", (SegmentKind.FINAL, "", "x")),
        ("<|message|>{a<|call|>", (SegmentKind.FINAL, "", "{a")),
        ("<|channel|>final<|message|>{}<|call|>", (SegmentKind.FINAL, "", "{}")),
        ("<|channel|>final {}<|call|>", (SegmentKind.FINAL, "", "{}")),
        ("<|channel|>analysis to=python<|message|>{}<|call|>", (SegmentKind.REASONING, "", "{}")),
        ("<|channel|>analysis to=nobody<|message|>{}<|call|>", (SegmentKind.REASONING, "", "{}")),
        ("<|channel|>analysis so<|message|>{a}<|end|>", (SegmentKind.REASONING, "", "so {a}")),
        ("<|channel|>analysis so<|message|>we<|end|>", (SegmentKind.REASONING, "", "so we")),
    ],
)
def test_json_without_a_recipient_is_a_call_of_the_only_tool_if_it_is_closed_as_one(
    script: str, said: tuple[SegmentKind, str, str]
) -> None:
    whole = parse(script, tools=_ONE)
    assert whole.said() == [said]
    assert parse_chunks([[token] for token in script_ids(script)], tools=_ONE) == whole


def test_without_a_name_json_is_a_call_of_no_one_of_several_tools() -> None:
    assert parse(_NOTE + "{}<|call|>").said() == [(SegmentKind.COMMENTARY, "", "{}")]
    named = parse("<|channel|>commentary f or bash<|message|>{}<|call|>")
    assert named.said() == [(SegmentKind.COMMENTARY, "", "{}")]


_TYPED = '<|channel|>commentary <|constrain|>json<|message|>{"n": 1}<|call|>'


@pytest.mark.parametrize(
    ("tools", "kind"),
    [
        (frozenset({"f"}), SegmentKind.FUNCTION_CALL),
        (frozenset({"f", "g"}), SegmentKind.COMMENTARY),
        (frozenset[str](), SegmentKind.COMMENTARY),
        (None, SegmentKind.COMMENTARY),
    ],
    ids=["one tool", "several tools", "no tools", "tool_choice none"],
)
def test_typed_json_without_a_recipient_is_a_call_where_there_is_one_callee(
    tools: frozenset[str] | None, kind: SegmentKind
) -> None:
    turn = parse(_TYPED, tools=tools)
    assert [(said, text) for said, _, text in turn.said()] == [(kind, '{"n": 1}')]
    assert ("call_by_terminator" in turn.recoveries) == (kind is SegmentKind.FUNCTION_CALL)


def test_what_may_be_a_call_counts_as_waiting_while_it_may_be_reasoning() -> None:
    parser = Parser(vocabulary(), _ONE)
    parser.feed(script_ids('<|channel|>analysis<|message|>{"a": 1'))
    assert parser.place.waiting == len(script_ids('{"a": 1'))
    assert parser.reasoning_tokens == 0
    parser.feed(script_ids("}<|end|>"))
    assert parser.place.waiting == 0
    assert parser.reasoning_tokens == len(script_ids('{"a": 1')) + 1


def test_the_end_of_a_call_that_breaks_off_is_told_with_what_follows() -> None:
    parser = Parser(vocabulary(), TOOLS)
    parser.feed(script_ids(_CALL_F + '{"a'))
    assert parser.feed(script_ids("<|end|>")) == []
    assert parser.place.broken == BrokenCall("f", len(script_ids(_CALL_F + '{"a')))
    ended, *_ = parser.feed(script_ids("<|start|>assistant<|channel|>final<|message|>x"))
    assert isinstance(ended, SegmentEnded)
    assert ended.broken
    assert ended.complete
    assert parser.place.broken is None
