"""Every captured malformed output, in chunks of several sizes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.generation import PYTHON_TOOL, FinishReason, SegmentKind
from gateway.models.harmony.recovery import Rule
from tests.fakes.harmony_script import HOSTED, Segment, Turn, parse_chunks

if TYPE_CHECKING:
    import pytest

_CORPUS = Path(__file__).parents[3] / "data" / "harmony_corpus.jsonl"
_CASES: list[dict[str, Any]] = [json.loads(line) for line in _CORPUS.read_text().splitlines()]


def _item(segment: Segment) -> dict[str, str]:
    status = "completed" if segment.complete else "incomplete"
    if segment.kind is SegmentKind.REASONING:
        return {"type": "reasoning", "text": segment.text}
    if segment.kind is SegmentKind.FUNCTION_CALL:
        arguments = {"name": segment.name, "arguments": segment.text}
        return {"type": "function_call", **arguments, "status": status}
    channel = segment.kind.value
    return {"type": "message", "channel": channel, "text": segment.text, "status": status}


def _wanted(case: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {"status": "completed", **item} if item["type"] == "message" else item
        for item in case["desired"]
    ]


def _parse(case: dict[str, Any], size: int, hosted: frozenset[str] = frozenset()) -> Turn:
    ids: list[int] = case["tokens"]
    chunks = [ids[at : at + size] for at in range(0, len(ids), size)]
    return parse_chunks(chunks, FinishReason(case["finish"]), hosted=hosted)


def test_a_malformed_turn_becomes_the_items_that_were_meant(subtests: pytest.Subtests) -> None:
    for case in _CASES:
        for size in (1, 2, 7, 10_000):
            with subtests.test(case=case["id"], size=size):
                _check_items(case, _parse(case, size))


def _check_items(case: dict[str, Any], turn: Turn) -> None:
    assert [_item(segment) for segment in turn.segments] == _wanted(case)
    # Some flags carry a remark behind the name, some are a remark only.
    named = {flag.split()[0] for flag in case["recovery_flags"] if re.match(r"\w+( \(|\Z)", flag)}
    assert named <= turn.recoveries.keys()


def test_the_reference_library_agrees_wherever_no_rule_fires(subtests: pytest.Subtests) -> None:
    for case in _CASES:
        with subtests.test(case=case["id"]):
            _check_agreement(case)


def _check_agreement(case: dict[str, Any]) -> None:
    turn = _parse(case, 1)
    strict = case["observed_harmony_0_0_8"]["strict"]

    if all(segment.verbatim for segment in turn.segments) and not turn.recoveries:
        # A stop id too many is forgiven here without being counted, as nothing is lost by it.
        assert strict["error"] is None or case["id"] in {"E03", "E09"}
        assert [segment.text for segment in turn.segments] == [
            text for *_, text in strict["messages"]
        ]


def test_hosted_tools_beside_it_change_only_what_is_addressed_to_them(
    subtests: pytest.Subtests,
) -> None:
    for case in _CASES:
        with subtests.test(case=case["id"]):
            _check_hosted_tools(case)


def _check_hosted_tools(case: dict[str, Any]) -> None:
    alone, beside = _parse(case, 10_000), _parse(case, 10_000, HOSTED)

    assert _parse(case, 1, HOSTED) == _parse(case, 7, HOSTED) == beside
    called = [segment.name for segment in beside.segments if segment.name in HOSTED]
    if called:
        assert Rule.BUILTIN_NOT_ENABLED in alone.recoveries
        assert beside.segments[-1].name == called[-1], "what came behind it is not read"
    else:
        assert beside == alone


def test_calls_of_python_were_captured() -> None:
    called = {segment.name for case in _CASES for segment in _parse(case, 7, HOSTED).segments}
    assert called & HOSTED == {PYTHON_TOOL}
