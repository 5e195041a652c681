"""Values that a model writes without a type get that of the schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.models.chat.call_syntax import tags_of
from gateway.models.chat.syntax.tagged_arguments import ANY, TaggedArguments, as_json, types_of

ROOT: dict[str, Any] = {
    "$defs": {
        "Place": {"type": "object"},
        "a/b": {"type": "array"},
        "Loop": {"$ref": "#/$defs/Loop"},
    }
}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["null", "number", 5]}, {"null", "number"}),
        ({"enum": [1, None, True, 0.5, "x", [], {}]},
         {"integer", "null", "boolean", "number", "string", "array", "object"}),
        ({"const": 5}, {"integer"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
        ({"$ref": "#/$defs/Place"}, {"object"}),
        ({"$ref": "#/$defs/a~1b"}, {"array"}),
        ({"$ref": "#/$defs/Loop"}, {"string"}),
        ({"$ref": "#/$defs/None"}, {"string"}),
        ({"$ref": "other.json"}, {"string"}),
        ({"enum": 5, "anyOf": 6, "type": {}}, {"string"}),
        (True, {"string"}),
        ({}, {"string"}),
    ],
)  # fmt: skip
def test_the_types_of_a_schema(schema: Any, types: set[str]) -> None:
    assert types_of(schema, ROOT) == types


@pytest.mark.parametrize("schema", [{}, True, None, {"$ref": "#/$defs/Loop"}])
def test_what_a_schema_says_nothing_of_is_what_the_syntax_says(schema: Any) -> None:
    assert types_of(schema, ROOT, ANY) == ANY


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("5", 5),
        ("[1]", [1]),
        ("['a']", ["a"]),
        ('{"a": null}', {"a": None}),
        ("null", None),
        ("true", True),
        ("1e+20", 1e20),
        ("1.10", "1.10"),
        ("007", "007"),
        ('"a"', '"a"'),
        ("[1", "[1"),
        (" x ", " x "),
    ],
)
def test_what_may_be_anything_is_what_it_looks_like(value: str, read: Any) -> None:
    for key in ("any", "undeclared"):
        arguments = TaggedArguments({"properties": {"any": {}}}, ANY)
        parts = (arguments.begin(key), arguments.text(value), arguments.end(), arguments.finish())
        assert json.loads("".join(parts)) == {key: read}


@pytest.mark.parametrize(
    ("value", "types", "read"),
    [
        ("5", "string", "5"),
        (" 5\n", "integer", 5),
        ("5.0", "integer number", 5),
        ("five", "integer", "five"),
        ("12.5", "integer", 12.5),
        ("[1]", "null integer", [1]),
        ("[1]", "integer string", "[1]"),
        ("9" * 5000, "integer", "9" * 5000),
        ("0.5", "number", 0.5),
        ("1e999", "number", "1e999"),
        ("x", "number", "x"),
        ("True", "boolean", True),
        ("0", "boolean", False),
        ("yes", "boolean", "yes"),
        ("null", "null string", None),
        ("nil", "null string", "nil"),
        ('{"a": [1.5]}', "object", {"a": [1.5]}),
        ('{"a": "x\n"}', "object", {"a": "x\n"}),
        ("[1e999]", "array", "[1e999]"),
        ("[NaN]", "array", "[NaN]"),
        ("[1", "array", "[1"),
        ("[" * 300 + "]" * 300, "array", "[" * 300 + "]" * 300),
    ],
)
def test_a_value_becomes_the_first_type_that_fits(value: str, types: str, read: Any) -> None:
    assert json.loads(as_json(value, frozenset(types.split()))) == read


@pytest.mark.parametrize(
    ("value", "types", "written"),
    [
        (" 1234567890123456789\n", "number", "1234567890123456789"),
        ("+1234567890123456789", "number", "1234567890123456789"),
        ("0.1000000000000000055511151231257827", "number", "0.1000000000000000055511151231257827"),
        ("1.10", "number", "1.10"),
        ("1E5", "number", "1E5"),
        (".5", "number", "0.5"),
        ("007", "number", "7"),
        ("1.10", "number string", '"1.10"'),
        ("1.5", "number string", "1.5"),
        ("5.0", "integer number string", "5.0"),
        ("-0", "integer number string", '"-0"'),
        ("1.", "number string", '"1."'),
        ("+4712345678", "integer string", '"+4712345678"'),
        ("00123", "integer number string", '"00123"'),
        ("-12", "integer string", "-12"),
        ("1" * 400, "number string", '"' + "1" * 400 + '"'),
        ("1", "boolean string", '"1"'),
        ("False", "boolean string", "false"),
        (" no ", "boolean string", '" no "'),
    ],
)
def test_nothing_of_a_number_is_lost(value: str, types: str, written: str) -> None:
    assert as_json(value, frozenset(types.split())) == written


@pytest.mark.parametrize(
    "value",
    [
        *([], {}, ["a", "b"], ["a", True, None, False], {"x": 1, "y": {"z": [-1.5e30]}}),
        *(["it's", 'say "it\'s"', "\\", "a\nb\t\r", "\x00\x1b\x7f\xa0", "\u2028\u00e9\U0001f496"],),
        {"True": "None", "a": ", ]"},
    ],
)
def test_literals_of_python_are_read_as_what_they_are(value: Any) -> None:
    name = "array" if isinstance(value, list) else "object"
    assert json.loads(as_json(repr(value), frozenset({name}))) == value
    assert json.loads(as_json(f" {value!r}\n", frozenset({name, "string"}))) == value
    other = {"array", "object"} - {name}
    assert json.loads(as_json(repr(value), frozenset({*other, "string"}))) == repr(value)


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("[1, 'a',\n]", [1, "a"]),
        ("{'a': [2,],}", {"a": [2]}),
        ("{'a': \"b\tc\"}", {"a": "b\tc"}),
        ("{'a': Nones}", None),
        ("['a', b]", None),
        ("['a' 'b']", None),
        ("['\\N{BULLET}']", None),
        ("['a]", None),
        ("[1e999, 'a']", None),
        ("[f()]", None),
        ("[" * 300 + "'a'" + "]" * 300, None),
        pytest.param("[" + "-" * 100_000 + "1]", None, marks=pytest.mark.slow),
        pytest.param("['a'" + "[0]" * 100_000 + "]", None, marks=pytest.mark.slow),
    ],
)
def test_what_is_no_literal_stays_text(value: str, read: Any) -> None:
    types = frozenset({"array", "object"})
    assert json.loads(as_json(value, types)) == (value if read is None else read)


@pytest.mark.parametrize("value", ["5", '"a"', "true", "1.10"])
def test_what_is_neither_object_nor_array_is_text_where_that_may_be(value: str) -> None:
    assert json.loads(as_json(value, frozenset({"array", "object", "string"}))) == value
    assert as_json(value, frozenset({"array", "object"})) == value


def test_arguments_that_are_no_object_have_no_tags() -> None:
    assert tags_of("[1]") == tags_of("{") == []
    assert tags_of('{"a": "x", "b": {"c": 1}}') == [("a", "x"), ("b", '{"c": 1}')]
