"""Schemas as languages of JSON: what they let through, what they leave open, what they refuse."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gateway.constraints.gbnf import UntranslatableGrammar, grammar_of, text
from gateway.constraints.json_language import DEPTH_MAX, JsonLanguage
from tests.fakes.cases import each
from tests.fakes.gbnf import Walker

CLOSED = {"additionalProperties": False}


def allowed(schema: Any, texts: list[str]) -> list[str]:
    documents = JsonLanguage(schema)
    walker = Walker.of_ebnf(grammar_of(documents.root, documents.rules))
    return [text for text in texts if walker.allows(text)]


@each(
    ("schema", "right", "wrong"),
    [
        (True, ["1", '{"a": [null]}'], ["", "x"]),
        ({"type": "boolean"}, ["true", "false"], ["null"]),
        ({"minimum": 0}, ["0", "1.5"], ["-1", '"a"']),
        ({"type": ["integer", "number"]}, ["1", "1.5"], ['"a"']),
        ({"type": "integer", "exclusiveMinimum": 2.5, "maximum": 4}, ["3", "4"], ["2", "5"]),
        ({"type": "integer", "minimum": 5, "maximum": 4, "enum": [1, 1.0]}, ["1", "1.0"], ["2"]),
        ({"type": "string", "enum": ["a", 1, None, [], {}, True, 1.5]}, ['"a"'], ["1", "null"]),
        ({"type": "number", "enum": ["a", 1, 1.5]}, ["1", "1.5"], ['"a"']),
        (
            {"enum": ["a", [1, {}], {"b": [], "c": 1}]},
            ["[1,{}]", '{"b":[],"c":1}'],
            ["[1]", "[1, {}]"],
        ),
        ({"pattern": "^a+$"}, ['"a"', '"aa"'], ['"ba"', '""']),
        ({"pattern": "(?i)^a$"}, ['"a"', '"A"'], ['"xa"', '"ax"']),
        ({"pattern": "^[^\\s\\d]\\S$"}, ['"aé"'], ['" a"', '"\u3000a"', '"1a"', '"a\ufeff"']),
        ({"type": "integer", "minimum": -1e308}, ["-1", "7"], ["1.5"]),
        ({"pattern": "a|b"}, ['"xay"', '"b\\n"'], ['"c"']),
        ({"pattern": "^(a|b)[|]$"}, ['"a|"', '"b|"'], ['"a"']),
        ({"enum": [1.5]}, ["1.5"], ["1"]),
        ({"type": "integer", "minimum": -3, "maximum": -3}, ["-3"], ["3", "-4"]),
        ({"type": "integer", "minimum": 4, "maximum": 3}, [], []),
        ({"type": "integer", "minimum": 19, "maximum": 20}, ["19", "20"], ["18", "21", "9"]),
        (
            {"allOf": [{"anyOf": [{"const": 1}], "allOf": [{}]}], "anyOf": [{"const": 1}]},
            ["1"],
            ["2"],
        ),
        ({"type": "string", "minLength": 1, "maxLength": 2}, ['"a"', '"\\ud83d\\ude00b"'], ['""']),
        ({"maxItems": 0}, ["[]", "[ ]"], ["[1]"]),
        ({"items": {"type": "null"}, "minItems": 2}, ["[null,null]"], ["[null]", "[1,1]"]),
        ({"items": False}, ["[]"], ["[1]"]),
        (
            {"prefixItems": [{"const": 1}, {"const": 2}], "minItems": 1},
            ["[1]", "[1,2]", '[1,2,"x"]'],
            ["[]", "[2]"],
        ),
        ({"prefixItems": [{"const": 1}, {"const": 2}], "maxItems": 1}, ["[]", "[1]"], ["[1,2]"]),
        (
            {"properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["b"], **CLOSED},
            ['{"b":2}', '{"a":1,"b":2}', '{\n"b" : 2\t}'],
            ['{\n "b":2}', "{}", '{"a":1}', '{"b":2,"a":1}', '{"b":2,"c":3}'],
        ),
        (
            {"properties": {"ab": {"const": 1}, "": {"const": 2}}},
            ['{"ab":1}', '{"":2}', '{"a":3,"abc":4}', "{}"],
            ['{"ab":2}', '{"":3}', '{"\\u0061b":2}'],
        ),
        (
            {"required": ["a"], "additionalProperties": {"type": "null"}},
            ['{"a":null,"b":null}'],
            ["{}", '{"b":null}', '{"a":1}'],
        ),
        ({"properties": {"a": False}, "required": ["a"]}, [], ["{}", '{"a":1}']),
        (
            {"allOf": [{"properties": {"a": {"type": "integer"}}}], "required": ["a"], **CLOSED},
            ['{"a":1}'],
            ["{}", '{"a":"x"}'],
        ),
        (
            {
                "allOf": [
                    {"properties": {"a": {"enum": [1, 2]}}, "required": ["a"]},
                    {"properties": {"a": {"type": "integer"}, "b": {}}, "required": ["b"]},
                    True,
                ],
                "type": ["object", "null"],
            },
            ['{"a":2,"b":0}'],
            ['{"a":2}', '{"b":2}'],
        ),
        ({"type": ["string", "null"], "anyOf": [{"type": ["null", "integer"]}]}, ["null"], ["1"]),
        ({"enum": ["a", 1], "minimum": 0}, ['"a"', "1"], ['"b"']),
        ({"type": "integer", "allOf": [{"type": "number"}]}, ["1"], ["1.5", '"a"']),
        ({"type": "number", "anyOf": [{"type": ["integer", "null"]}]}, ["1"], ["1.5", "null"]),
        ({"type": "array", "allOf": [{"type": "string"}]}, [], []),
        ({"type": "null", "allOf": [{"type": "string", "enum": ["a", None]}]}, [], []),
        ({"anyOf": [{"const": 1}, False], "title": "x"}, ["1"], ["2"]),
        ({"$ref": "#/$defs/a~1b", "title": "t", "$defs": {"a/b": {"const": 1}}}, ["1"], ["2"]),
        (
            {"$ref": "#/$defs/a/0", "properties": {"b": {"const": 2}}, "$defs": {"a": [CLOSED]}},
            ['{"b":2}', "{}"],
            ['{"b":1}', '{"c":1}'],
        ),
        (
            {"properties": {"a": {"$ref": "#"}}, **CLOSED},
            ["{}", '{"a":{"a":{}}}'],
            ['{"b":{}}', '{"a":1}'],
        ),
        (
            {"allOf": [{"allOf": [{"minimum": 0}]}, {"allOf": [{"type": "integer"}]}]},
            ["0"],
            ["-1", "1.5"],
        ),
    ],
)
def test_a_language_has_the_texts_of_its_schema(
    schema: Any, right: list[str], wrong: list[str]
) -> None:
    if not right:
        with pytest.raises(UntranslatableGrammar, match="nothing can be said"):
            allowed(schema, wrong)
        return
    assert allowed(schema, right + wrong) == right


@each(
    "schema",
    [
        {"type": "array", "uniqueItems": True},
        {"type": "number", "maximum": 2},
        {"type": "string", "pattern": "^a$", "minLength": 1},
        {"type": "string", "maxLength": 10**6},
        {"type": "array", "minItems": 10**6},
        {"type": "object", "patternProperties": {"^x": {"type": "null"}}},
        {"allOf": [{"minLength": 2}], "minLength": 1},
        {"properties": {"a": {"not": {"type": "null"}}}},
        {"oneOf": [{"type": "null"}, {"enum": [None, 1]}]},
        {"enum": ["a", "ab"], "maxLength": 1},
        {"enum": [1], "const": 2},
        {"$ref": "#/$defs/a", "multipleOf": 2, "$defs": {"a": {"type": "integer"}}},
        {"allOf": [{"properties": {"a": {}}}], "additionalProperties": False},
        {"allOf": [{"additionalProperties": False}], "properties": {"a": {}}},
        {"allOf": [{"prefixItems": [True]}], "items": {"type": "null"}},
        {"type": "integer", "maximum": 1e308},
    ],
)
def test_what_is_left_open_is_told(schema: dict[str, Any]) -> None:
    assert not JsonLanguage(schema).exact
    assert JsonLanguage({"type": "object", "properties": {"a": {"type": "integer"}}}).exact


@each("first", ["a", "A", "0", "b`"])
def test_no_code_in_a_grammar_goes_on_in_the_character_behind_it(first: str) -> None:
    # xgrammar takes `\\x60b` for one character, which other engines do not.
    documents = JsonLanguage({"properties": {first: {}}})
    names = grammar_of(documents.root, documents.rules)
    line_breaks = grammar_of(text("\nb\x7fa\x01\nfg"), {})

    assert not re.search(r"\\x[0-9a-f]{2}[0-9a-fA-F]", names + line_breaks)
    assert Walker.of_ebnf(line_breaks).allows("\nb\x7fa\x01\nfg")


def test_values_that_are_alike_are_written_once() -> None:
    # Engines take the square of the time otherwise: seconds for 50 properties.
    value = {"type": "array", "items": {"pattern": "^abc$"}}
    documents = JsonLanguage({"properties": {f"p{number}": value for number in range(50)}})

    assert grammar_of(documents.root, documents.rules).count('"abc"') == 1


def test_properties_by_pattern_stand_at_the_end() -> None:
    schema = {"properties": {"a": {}}, "patternProperties": {"^x": {"type": "null"}}, **CLOSED}
    right = ['{"a":1,"xy":null}', '{"x":null}']
    assert allowed(schema, [*right, '{"x":1}', '{"y":null}']) == right


DEEP: dict[str, Any] = {}
DEEP_MERGED: dict[str, Any] = {}
for _ in range(DEPTH_MAX):
    DEEP = {"items": DEEP}
    DEEP_MERGED = {"allOf": [DEEP_MERGED]}

CHAINED: dict[str, Any] = {"$ref": "#/$defs/0", "$defs": {}}
for at in range(DEPTH_MAX):
    CHAINED["$defs"][str(at)] = {"$ref": f"#/$defs/{at + 1}"}


@each(
    "schema",
    [
        {"$ref": "https://example.com/schema"},
        {"$ref": "#/$defs/none"},
        {"$ref": "#/$defs/x/y", "$defs": {"x": 1}},
        {"$ref": "#/items/x", "items": [True]},
        {"$ref": "#", "minLength": 1},
        {"pattern": "^a|b$"},
        {"pattern": "(?=a)"},
        {"type": "array", "items": {"$ref": "#/none"}},
        DEEP,
        DEEP_MERGED,
        CHAINED,
    ],
)
def test_what_cannot_be_said_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(UntranslatableGrammar):
        JsonLanguage(schema)


@pytest.mark.slow
@pytest.mark.parametrize("beside", [{"type": "object"}, {"allOf": []}])
def test_references_that_double_with_each_step_are_given_up_soon(beside: Any) -> None:
    def step(number: int) -> Any:
        return {"$ref": f"#/$defs/{number}", **beside}

    defs = {f"{n}": {"properties": {"a": step(n + 1), "b": step(n + 1)}} for n in range(40)}
    schema = {"$defs": {**defs, "40": {"type": "object"}}, **step(0)}
    with pytest.raises(UntranslatableGrammar, match="too large"):
        JsonLanguage(schema)
