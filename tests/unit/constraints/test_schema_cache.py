"""What was compiled once is there the next time, for whoever sent it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.constraints import validation
from gateway.constraints.output_rules import AnswerFormat, OutputRules, ToolRule
from gateway.constraints.validation import Checker, SchemaCache
from gateway.constraints.validators import SchemaValidator
from gateway.errors import InvalidRequest
from gateway.generation import SegmentKind
from gateway.protocol.call_items import call_fields

OURS, THEIRS = b"ours", b"theirs"


def schema(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "integer", **fields}}}


def document(of: dict[str, Any]) -> SchemaValidator:
    return SchemaValidator(of, work_max=1_000)


def rules(*schemas: dict[str, Any], answer: dict[str, Any] | None = None) -> OutputRules:
    tools = {
        f"tool_{at}": ToolRule(f"tool_{at}", SegmentKind.FUNCTION_CALL, f"tool_{at}", schema=each)
        for at, each in enumerate(schemas)
    }
    bound = None if answer is None else AnswerFormat("json_schema", answer, strict=True)
    return OutputRules(tools, frozenset(tools), answer=bound)


def test_the_same_schema_is_found_again() -> None:
    kept, compiled = SchemaCache(), document(schema("a"))
    kept.put(OURS, schema("a"), compiled)
    assert kept.get(OURS, schema("a")) is compiled
    assert kept.get(OURS, schema("b")) is None


def test_nobody_finds_what_another_sent() -> None:
    kept = SchemaCache()
    kept.put(OURS, schema("a"), document(schema("a")))
    assert kept.get(THEIRS, schema("a")) is None


def test_what_was_not_used_for_longest_goes_first() -> None:
    size = len(orjson.dumps(schema("a")))
    kept = SchemaCache(json_bytes_max=2 * size)
    for name in ("a", "b"):
        kept.put(OURS, schema(name), document(schema(name)))
    kept.get(OURS, schema("a"))
    kept.put(OURS, schema("c"), document(schema("c")))
    assert [kept.get(OURS, schema(name)) is None for name in "abc"] == [False, True, False]


def test_one_that_is_put_twice_counts_once() -> None:
    size = len(orjson.dumps(schema("a")))
    kept = SchemaCache(json_bytes_max=2 * size)
    for name in ("a", "b", "b"):
        kept.put(OURS, schema(name), document(schema(name)))
    assert kept.get(OURS, schema("a")) is not None


def test_a_schema_beyond_the_bound_is_not_kept() -> None:
    kept = SchemaCache(json_bytes_max=10)
    kept.put(OURS, schema("a"), document(schema("a")))
    assert kept.get(OURS, schema("a")) is None


@pytest.mark.parametrize(
    "patterned", [schema("a", pattern="^x"), {"patternProperties": {"^x": {"type": "string"}}}]
)
def test_patterns_are_not_kept(patterned: dict[str, Any]) -> None:
    kept = SchemaCache()
    kept.put(OURS, patterned, document(patterned))
    assert kept.get(OURS, patterned) is None


def test_a_checker_takes_what_another_has_compiled() -> None:
    kept = SchemaCache()
    first = Checker(rules(schema("a"), answer=schema("b")), call_fields, cache=kept, scope=OURS)
    first.compile()
    found = kept.get(OURS, schema("a")), kept.get(OURS, schema("b"))
    assert None not in found
    second = Checker(rules(schema("a"), answer=schema("b")), call_fields, cache=kept, scope=OURS)
    second.compile()
    assert second.is_compiled
    assert kept.get(OURS, schema("a")) is found[0]
    assert second.call_fault("tool_0", '{"a": "x"}') is not None
    assert second.answer_fault('{"b": 1}') is None


def test_the_patterns_of_all_schemas_stay_bounded_beside_what_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(validation, "PATTERNS_MAX", 1)
    kept = SchemaCache()
    plain, patterned = schema("a"), [schema(name, pattern=f"^{name}") for name in "bc"]
    Checker(rules(plain), call_fields, cache=kept).compile()
    Checker(rules(plain, patterned[0]), call_fields, cache=kept).compile()
    with pytest.raises(InvalidRequest, match="2 patterns"):
        Checker(rules(plain, *patterned), call_fields, cache=kept).compile()
