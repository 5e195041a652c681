from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai_harmony import ToolDescription

from gateway.models.format import RenderOptions
from gateway.models.harmony.rendering import Renderer
from gateway.protocol.tool_types import FunctionTool
from gateway.simulator.argument_values import SIZE_MAX, make_arguments, make_value, tools_of
from tests.fakes.cases import each
from tests.fakes.contexts import said
from tests.fakes.examples import examples
from tests.fakes.harmony_oracle import vocabulary
from tests.fakes.simulated_conversation import developer, parsed, say, scripted_model, user

Schema = dict[str, Any]

NAMES = st.sampled_from(["city", "unit", "when", "count", "weird-name", "größe", "a b", "$id"])
LEAVES = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "description": "Two\nlines, one: with a colon", "default": 'a "b"'},
        {"type": "string", "enum": ["red", 'dark "blue"', "a, b"]},
        {"type": "integer"},
        {"type": "number", "description": "Half // of it"},
        {"type": "boolean", "default": False},
        {"type": ["string", "null"]},
        {"type": "string", "nullable": True, "examples": ["x"]},
        {"enum": [1, 2, 3]},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"anyOf": [{"type": "integer", "description": "n"}, {"type": "boolean"}]},
        {"const": "fixed"},
        {},
    ]
)


def _object(properties: dict[str, Schema], required: list[str]) -> Schema:
    names = sorted(set(required) & set(properties))
    return {"type": "object", "properties": properties, "required": names}


OBJECTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(_object, st.dictionaries(NAMES, inner, max_size=4), st.lists(NAMES)),
    ),
    max_leaves=8,
)
PARAMETERS = st.builds(_object, st.dictionaries(NAMES, OBJECTS, max_size=5), st.lists(NAMES))
REQUESTS = st.sampled_from(
    ["Call f", "f with city Paris, count 3, unit = red, when", 'use f: "quoted", a b, weird-name']
)


def _gateway_prompt(parameters: Schema | None, text: str) -> list[int]:
    options = RenderOptions(
        instructions="Example: namespace functions {\n\ntype g = () => any;",
        tools=(FunctionTool(name="f", description="Does f.", parameters=parameters),),
        effort="low",
        current_date=None,
        model_identity="You are a test.",
        knowledge_cutoff=None,
        commentary_without_tools=False,
    )
    return list(Renderer(vocabulary()).render([said("user", text)], options).ids)


@pytest.mark.slow
@given(PARAMETERS, REQUESTS)
@settings(max_examples=examples(150), deadline=None)
def test_arguments_are_valid_against_the_schema_a_gateway_rendered(
    parameters: Schema, text: str
) -> None:
    out = scripted_model().continuation(_gateway_prompt(parameters, text)).ids
    ((recipient, arguments),) = parsed(out).calls
    assert recipient == "functions.f"
    jsonschema.validate(json.loads(arguments), parameters)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "enum": ["a b", 'c"d']},
        {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}},
        {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "integer"}}}},
        {"type": "object", "description": "Nested.", "properties": {"a": {"type": "string"}}},
        {"type": ["string", "null"]},
        {"oneOf": [{"type": "string", "description": "One."}, {"type": "number", "default": 2}]},
    ],
)
def test_arguments_are_valid_against_what_openai_harmony_rendered(schema: Schema) -> None:
    parameters = _object({"value": schema, "other": {"type": "integer"}}, ["value", "other"])
    tool = ToolDescription.new("f", "Does f.", parameters)
    ((_, arguments),) = say(developer(tool), user("Call f")).calls
    jsonschema.validate(json.loads(arguments), parameters)


def test_a_function_without_parameters_gets_none() -> None:
    out = scripted_model().continuation(_gateway_prompt(None, "Call f")).ids
    assert parsed(out).calls == [("functions.f", "{}")]


def test_types_are_read_back() -> None:
    text = """namespace functions {

// Does f.
type f = (_: {
// A comment: with a colon
a: string,
"b c"?: "x" | "y" | 3 | null, // default: x
d: ("p" | "q")[],
e: Array<{
    g?: boolean,
    [key: string]: number,
    }>,
h:
 | string // one
 | [number, true] // two
,
}) => any;

} // namespace functions"""
    (tool,) = tools_of(text)
    assert (tool.name, tool.description) == ("f", "Does f.")
    assert tool.parameters == {
        "type": "object",
        "required": ["a", "d", "e", "h"],
        "properties": {
            "a": {"type": "string"},
            "b c": {"anyOf": [{"const": "x"}, {"const": "y"}, {"const": 3}, {"type": "null"}]},
            "d": {"type": "array", "items": {"anyOf": [{"const": "p"}, {"const": "q"}]}},
            "e": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"g": {"type": "boolean"}},
                    "required": [],
                    "additionalProperties": {"type": "number"},
                },
            },
            "h": {
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "prefixItems": [{"type": "number"}, {"const": True}]},
                ]
            },
        },
    }


@pytest.mark.slow
@given(st.text(alphabet='{}[]()<>|:;,?"/ \nab1ntypeArray_= '))
@settings(max_examples=examples(300), deadline=None)
def test_no_text_is_too_broken_to_be_read_as_tools(text: str) -> None:
    developer_text = (
        f"namespace functions {{\n\ntype f = (_: {text}) => any;\n\n}} // namespace functions"
    )
    for tool in tools_of(developer_text):
        assert isinstance(make_arguments(tool.parameters, "Call f"), dict)


@each(
    "schema",
    [
        {"type": "integer", "minimum": 5, "maximum": 6},
        {"type": "integer", "exclusiveMinimum": 10},
        {"type": "integer", "multipleOf": 7, "minimum": 15},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5},
        {"type": "number", "maximum": -3},
        {"type": "string", "minLength": 40, "maxLength": 41},
        {"type": "string", "maxLength": 2},
        {"type": "array", "items": {"type": "string"}, "minItems": 3, "uniqueItems": True},
        {"type": "array", "items": {"type": "string"}, "maxItems": 0},
        {"type": "array", "items": {"type": "string"}, "minItems": 2.0, "maxItems": 3.0},
        {"type": "string", "minLength": 7.0, "maxLength": 9.0},
        {"allOf": [{"type": "object", "required": ["a"]}, {"properties": {"a": {"const": 4}}}]},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"enum": ["x"]}}},
        {"oneOf": [{"type": "null"}, {"type": "array", "items": {"type": "boolean"}}]},
        {
            "$ref": "#/$defs/tree",
            "$defs": {
                "tree": {
                    "type": "object",
                    "properties": {
                        "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
                        "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
                    },
                    "required": ["children", "next"],
                    "additionalProperties": False,
                }
            },
        },
    ],
)
def test_values_keep_to_the_keywords_of_json_schema(schema: Schema) -> None:
    value = make_value(schema, "Give me 12 of them in Berlin")
    jsonschema.validate(value, schema)


def test_values_take_up_what_the_user_said() -> None:
    schema = _object(
        {"city": {"type": "string"}, "days": {"type": "integer"}, "why": {"type": "string"}},
        ["city", "days"],
    )
    wanted = {"city": "São Paulo", "days": 3}
    assert make_value(schema, "the weather in São Paulo over 3 days") == wanted
    assert make_value(schema, "the weather in São Paulo over 3 days, why: fun") == {
        **wanted,
        "why": "fun",
    }


@each(
    ("text", "number"),
    [
        ("Agent 007", 7),
        ("-05 degrees", -5),
        ("1.50 euros", 1.5),
        ("٣ apples", 1),
        ("9" * 5_000, 999_999_999_999_999),
    ],
)
def test_numbers_are_read_that_json_does_not_have(text: str, number: float) -> None:
    assert make_value({"type": "number"}, text) == number


@each("literal", ["007", "-05", "٣", "1.٣", "9" * 5_000])
def test_a_literal_that_is_no_number_is_skipped(literal: str) -> None:
    text = f"namespace functions {{\n\ntype f = (_: {{\na: {literal},\nb: string,\n}}) => any;\n\n"
    (tool,) = tools_of(f"{text}}} // namespace functions")
    assert tool.parameters["properties"]["b"] == {"type": "string"}


_MANY: Schema = {"type": "array", "items": {"type": "string"}, "minItems": 10**9}


@pytest.mark.parametrize(
    "schema",
    [
        _MANY,
        _MANY | {"uniqueItems": True},
        _MANY | {"items": _MANY | {"items": _MANY}},
        _MANY | {"minItems": 5000, "items": {"type": "string", "minLength": 5000}},
        {"type": "string", "minLength": 10**12},
        _object({"a": {"$ref": "#"}, "b": {"$ref": "#"}}, ["a", "b"]),
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
    ],
)
def test_no_schema_makes_a_value_long_without_bound(schema: Schema) -> None:
    assert len(json.dumps(make_value(schema, "Go"))) < 30 * SIZE_MAX


def test_bounds_below_the_greatest_size_are_kept() -> None:
    text = make_value({"type": "string", "minLength": SIZE_MAX}, "Go")
    assert len(text) == SIZE_MAX
    assert len(make_value(_MANY | {"minItems": SIZE_MAX}, "Go")) == SIZE_MAX
