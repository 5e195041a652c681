from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from gateway.models.harmony.tokenizer import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN
from gateway.simulator.completion_wire import SimulatedError
from tests.fakes.cases import each
from tests.fakes.harmony_oracle import vocabulary
from tests.fakes.wayward_engine.constraint_fields import OutputConstraint, read_constraint
from tests.fakes.wayward_engine.lark_grammars import BadGrammar, BadTag, lark_of_ebnf, lark_of_tag
from tests.fakes.wayward_engine.matcher import Guide
from tests.fakes.wayward_engine.options import WaywardOptions

DIGIT = {"type": "regex", "pattern": "[0-9]"}
A = {"type": "const_string", "value": "a"}
B = {"type": "const_string", "value": "b"}
ONE_KEY = {
    "type": "object",
    "properties": {"k": {"type": "integer"}},
    "required": ["k"],
    "additionalProperties": False,
}
VERSIONS = {"0.10.2": None, "0.11.0": True, "0.26.9": True, "0.27.0": False, "0.32.0": False}


def _encode(*parts: str | int) -> list[int]:
    ids: list[int] = []
    for part in parts:
        ids += [part] if isinstance(part, int) else vocabulary().encode(part)
    return ids


def _guide(form: dict[str, Any]) -> Guide:
    return Guide(lark_of_tag({"type": "structural_tag", "format": form}), vocabulary())


def _takes(guide: Guide, *parts: str | int) -> bool:
    ids = [*_encode(*parts), RETURN]
    return guide.accepts(ids) == len(ids)


@each(
    ("form", "good", "bad"),
    [
        ({"type": "token", "token": CHANNEL}, [[CHANNEL]], [[MESSAGE], ["<|channel|>"]]),
        ({"type": "token", "token": "<|end|>"}, [[END]], [[CALL]]),
        ({"type": "const_string", "value": 'a "b"\n/'}, [['a "b"\n/']], [["a"], ["x"]]),
        (
            {"type": "const_string", "value": "<|channel|>final"},
            [[CHANNEL, "final"], ["<|channel|>final"]],
            [["final"]],
        ),
        (
            {"type": "any_tokens", "exclude_tokens": [CHANNEL, "<|end|>"]},
            [[], ["naïve 👋🏽"], [CONSTRAIN]],
            [[CHANNEL], ["a", END]],
        ),
        ({"type": "any_tokens"}, [[CHANNEL, "a"]], []),
        ({"type": "any_text"}, [[], ["naïve\n👋🏽"]], [[CHANNEL]]),
        ({"type": "any_text", "excludes": ["/b", "c"]}, [["a b/"]], [["a/b"], ["abc"]]),
        (
            {"type": "json_schema", "json_schema": ONE_KEY},
            [['{"k": 1}'], ['{"k":1}'], ['{  "k":\n 1}']],
            [['{"k": "1"}'], ["{}"]],
        ),
        (
            {"type": "json_schema", "json_schema": ONE_KEY, "max_whitespace_cnt": 1},
            [['{"k": 1}'], ['{"k":1}']],
            [['{  "k": 1}']],
        ),
        ({"type": "json_schema", "json_schema": True}, [["[1]"], ["null"]], [["x"]]),
        ({"type": "grammar", "grammar": 'root ::= "x" [0-9]+ "y"'}, [["x12y"]], [["xy"]]),
        ({"type": "regex", "pattern": "a/b|c\\/d"}, [["a/b"], ["c/d"]], [["a"]]),
        ({"type": "sequence", "elements": [A, DIGIT]}, [["a1"]], [["a"], ["1"]]),
        ({"type": "or", "elements": [A, DIGIT]}, [["a"], ["1"]], [["b"]]),
        ({"type": "optional", "content": A}, [[], ["a"]], [["aa"]]),
        ({"type": "star", "content": A}, [[], ["aaa"]], [["b"]]),
        ({"type": "plus", "content": A}, [["a"], ["aaa"]], [[]]),
        ({"type": "repeat", "min": 1, "max": 2, "content": A}, [["a"], ["aa"]], [[], ["aaa"]]),
        ({"type": "repeat", "min": 1, "max": -1, "content": A}, [["aaaa"]], [[]]),
        ({"type": "tag", "begin": "<", "content": DIGIT, "end": ">"}, [["<1>"]], [["<1"]]),
        ({"type": "tag", "begin": "<", "content": DIGIT, "end": [">", ""]}, [["<1"]], [["1"]]),
        (
            {"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": "<|end|>"},
            [["<a", END], ["<a<|end|>"]],
            [["<a"], ["<a", CHANNEL, END]],
        ),
        (
            {"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": ["</>", "!"]},
            [["<a b</>"], ["<a!"]],
            [["<a"], ["<a</>b</>"]],
        ),
        (
            {
                "type": "tag",
                "begin": {"type": "token", "token": CHANNEL},
                "content": {"type": "any_tokens", "exclude_tokens": [END]},
                "end": {"type": "token", "token": END},
            },
            [[CHANNEL, "a", END]],
            [[CHANNEL, "a"]],
        ),
    ],
)
def test_each_format_takes_what_it_describes(
    form: dict[str, Any], good: list[list[str | int]], bad: list[list[str | int]]
) -> None:
    guide = _guide(form)
    assert [parts for parts in good if not _takes(guide, *parts)] == []
    assert [parts for parts in bad if _takes(guide, *parts)] == []


def _nested(depth: int) -> dict[str, Any]:
    form: dict[str, Any] = A
    for _ in range(depth):
        form = {"type": "optional", "content": form}
    return form


@each(
    "form",
    [
        {},
        {"type": "unknown"},
        {"type": "token", "token": "<|nothing|>"},
        {"type": "token", "token": 201088},
        {"type": "token", "token": True},
        {"type": "const_string"},
        {"type": "const_string", "value": ""},
        {"type": "const_string", "value": 5},
        {"type": "any_tokens", "exclude_tokens": 5},
        {"type": "json_schema", "json_schema": "{}"},
        {"type": "json_schema", "json_schema": {}, "max_whitespace_cnt": "1"},
        {"type": "sequence", "elements": []},
        {"type": "sequence"},
        {"type": "optional"},
        {"type": "repeat", "min": -1, "max": 2, "content": A},
        {"type": "tag", "begin": "<", "content": A},
        _nested(100),
    ],
)
def test_what_is_no_format_is_refused(form: dict[str, Any]) -> None:
    with pytest.raises(BadTag):
        lark_of_tag({"type": "structural_tag", "format": form})


def test_the_older_triggers_leave_text_free() -> None:
    tag = {"type": "structural_tag", "structures": [{"begin": "<f>"}], "triggers": ["<f>"]}
    assert _takes(Guide(lark_of_tag(tag), vocabulary()), "anything")


@pytest.mark.parametrize(
    ("ebnf", "good", "bad"),
    [
        ('root ::= [a-z ]* "and" [^\\n]+', ["a band and b"], ["a b"]),
        ('root ::= "\\u00e9\\u0022" [\\u00e0-\\u00ff]\n', ['é"è'], ["é"]),
        ('root ::= x\nx ::= "(" x ")" | "y"', ["((y))"], ["((y)"]),
    ],
)
def test_grammars_are_followed_exactly(ebnf: str, good: list[str], bad: list[str]) -> None:
    guide = Guide(lark_of_ebnf(ebnf), vocabulary())
    assert all(_takes(guide, text) for text in good)
    assert not any(_takes(guide, text) for text in bad)


@each("ebnf", ["", "root ::= ", "root ::= \nx ::= y", "x", 'root ::= "a', "root ::= y", '("', "\\"])
def test_what_is_no_grammar_is_refused(ebnf: str) -> None:
    with pytest.raises(BadGrammar):
        lark_of_ebnf(ebnf)


@cache
def _options(engine: Any, version: str) -> WaywardOptions:
    return WaywardOptions(engine=engine, version=version)


def _constraint(
    structured: dict[str, Any],
    response_format: dict[str, Any] | None = None,
    engine: str = "vllm",
    version: str = "0.32.0",
) -> OutputConstraint | None:
    return read_constraint(structured, response_format or {}, _options(engine, version))


@pytest.mark.parametrize("version", VERSIONS)
def test_an_engine_can_only_what_its_version_can(version: str) -> None:
    constraint = _constraint({"json": ONE_KEY}, version=version)
    assert (constraint.answer_only if constraint else None) is VERSIONS[version]


TAG = {"type": "structural_tag", "format": A}


@pytest.mark.parametrize(
    ("version", "kind"), [("0.5.11", None), ("0.5.12", "structural_tag"), ("dev", None)]
)
def test_sglang_reads_the_response_format_alone(version: str, kind: str | None) -> None:
    constraint = _constraint({"json": {}, "regex": "("}, TAG, "sglang", version)
    assert (constraint.kind if constraint else None) == kind


@pytest.mark.parametrize(
    ("response_format", "text"),
    [
        (TAG, "a"),
        ({"type": "json_object"}, "{}"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": ONE_KEY}}, '{"k":1}'),
    ],
)
def test_vllm_reads_the_response_format_too(response_format: dict[str, Any], text: str) -> None:
    constraint = _constraint({}, response_format)
    assert constraint is not None
    assert _takes(Guide(constraint.grammar, vocabulary()), text)


@pytest.mark.parametrize(
    ("structured", "text"),
    [
        ({"choice": ["alpha", "beta"]}, "beta"),
        ({"json_object": True}, '{"a": 1}'),
        ({"json": json.dumps(ONE_KEY), "regex": None}, '{"k": 1}'),
        ({"structural_tag": json.dumps(TAG)}, "a"),
    ],
)
def test_each_kind_of_structured_output_binds(structured: dict[str, Any], text: str) -> None:
    constraint = _constraint(structured)
    assert constraint is not None
    assert _takes(Guide(constraint.grammar, vocabulary()), text)


def test_no_demand_is_none() -> None:
    assert _constraint({}) is None
    assert _constraint({"json": None, "json_object": False}, {"type": "text"}) is None


@each(
    "structured",
    [
        {"structural_tag": "{"},
        {"structural_tag": "[]"},
        {"json": "{"},
        {"json": 5},
        {"regex": 5},
        {"choice": "a"},
        {"choice": []},
        {"grammar": {}},
    ],
)
def test_what_cannot_be_read_is_a_400_of_its_field(structured: dict[str, Any]) -> None:
    with pytest.raises(SimulatedError) as caught:
        _constraint(structured)
    assert (caught.value.status, caught.value.param) == (400, "structured_outputs")
