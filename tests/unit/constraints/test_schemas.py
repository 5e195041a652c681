"""Schemas that bind the output: what is looked at before anything compiles them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.cases import each
from tests.fakes.create_bodies import SCHEMA, STRICT, parse, refusal

NO_TARGET = (
    "leads to no schema. Expected a reference into the schema itself, such as '#/$defs/name'."
)
CIRCLE = "a reference in it leads back to itself without a property or an item in between."
DEEP = "it is nested too deeply. Expected at most 32 levels of objects and arrays."


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"description": "x" * 16_384}, "it has 16402 bytes. Expected at most 16384 bytes."),
    (nested(33), DEEP),
    (
        {"properties": {"a": {"pattern": "x" * 1_025}}},
        "a pattern in it has 1025 characters. Expected at most 1024 characters.",
    ),
    (
        {"patternProperties": {"x" * 1_025: {}}},
        "a pattern in it has 1025 characters. Expected at most 1024 characters.",
    ),
    ({"$ref": "https://example.com/s.json"}, f"'https://example.com/s.json' {NO_TARGET}"),
    ({"$ref": "file:///etc/passwd"}, f"'file:///etc/passwd' {NO_TARGET}"),
    ({"$ref": "other"}, f"'other' {NO_TARGET}"),
    ({"$ref": "#/$defs/a"}, f"'#/$defs/a' {NO_TARGET}"),
    ({"$ref": "#name"}, f"'#name' {NO_TARGET}"),
    ({"x": {"a": []}, "$ref": "#/x/a/0"}, f"'#/x/a/0' {NO_TARGET}"),
    ({"allOf": [{}], "$ref": "#/allOf/1"}, f"'#/allOf/1' {NO_TARGET}"),
    ({"allOf": [{}], "$ref": f"#/allOf/{'1' * 5_000}"}, f"'#/allOf/{'1' * 120}...' {NO_TARGET}"),
    ({"title": "t", "$ref": "#/title"}, f"'#/title' {NO_TARGET}"),
    ({"title": "t", "$ref": "#/title/x"}, f"'#/title/x' {NO_TARGET}"),
    ({"anyOf": [{"items": {"$ref": "#/x"}}]}, f"'#/x' {NO_TARGET}"),
    ({"$dynamicRef": "#x"}, f"'#x' {NO_TARGET}"),
    ({"$ref": "#"}, CIRCLE),
    ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, CIRCLE),
    ({"properties": {"a": {"allOf": [{"not": {"$ref": "#/properties/a"}}]}}}, CIRCLE),
    ({"$defs": {"a": {"$anchor": "n", "anyOf": [{"$ref": "#n"}]}}}, CIRCLE),
]
FINE: list[dict[str, Any]] = [
    {},
    nested(32),
    {"pattern": "x" * 1_024, "patternProperties": {"a": {"pattern": ""}}},
    {"$defs": {"a": {}}, "properties": {"b": {"$ref": "#/$defs/a"}}},
    {"$defs": {"a/b~c d": True}, "$ref": "#/$defs/a~1b~0c%20d"},
    {"prefixItems": [{"type": "string"}], "items": {"$ref": "#/prefixItems/0"}},
    {"$defs": {"a": {"$anchor": "n"}}, "items": {"$ref": "#n"}},
    {"$defs": {"a": {"$dynamicAnchor": "n"}}, "items": {"$dynamicRef": "#n"}},
    {"items": {"$ref": "#"}, "anyOf": [{"type": "array"}, {"type": "null"}]},
    {"components": {"a": {"type": "string"}}, "$ref": "#/components/a"},
    {"properties": {"$ref": {"type": "string"}, "pattern": {"type": "string"}}},
    {"const": {"$ref": "https://example.com"}, "default": {"$ref": "#/x"}},
    {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"if": {}}}},
    {"x-properties": 1, "x": {"type": 1}, "default": {"type": 1}, "const": None, "enum": [1]},
]


def answer(schema: dict[str, Any], *, strict: bool = False) -> dict[str, Any]:
    return {"text": {"format": {**SCHEMA, "schema": schema, "strict": strict}}}


def function(schema: dict[str, Any], *, strict: bool = True) -> dict[str, Any]:
    return {"tools": [{**STRICT, "parameters": schema, "strict": strict}]}


@pytest.mark.requirement("control.format-is-checked")
@each(("schema", "fault"), FAULTS)
def test_a_schema_of_the_answer_that_cannot_bind_it_is_refused(
    schema: dict[str, Any], fault: str
) -> None:
    assert refusal(**answer(schema)) == (
        "invalid_json_schema",
        "text.format.schema",
        f"Invalid schema for response_format 'answer': {fault}",
    )


@pytest.mark.requirement("error.schemas")
@each(("schema", "fault"), FAULTS)
def test_so_is_that_of_a_strict_function(schema: dict[str, Any], fault: str) -> None:
    assert refusal(**function(schema)) == (
        "invalid_function_parameters",
        "tools[0].parameters",
        f"Invalid schema for function 's': {fault}",
    )


@each("schema", FINE)
def test_other_schemas_are_left_to_whoever_compiles_them(schema: dict[str, Any]) -> None:
    parse(**answer(schema))
    parse(**function({**schema, "type": "object"}))


@each("schema", [schema for schema, _ in FAULTS[1:]])
def test_a_function_that_is_not_strict_is_shown_whatever_schema_it_has(
    schema: dict[str, Any],
) -> None:
    parse(**function(schema, strict=False))


@pytest.mark.parametrize(
    ("schema", "kind"),
    [({}, "None"), ({"type": "array"}, "array"), ({"anyOf": [{"type": "object"}]}, "None")],
)
def test_what_is_strict_is_an_object(schema: dict[str, Any], kind: str) -> None:
    fault = f"""schema must be a JSON Schema of 'type: "object"', got 'type: "{kind}"'."""
    assert refusal(**answer(schema, strict=True))[2].endswith(fault)
    assert refusal(**function(schema))[2].endswith(fault)
    parse(**answer({"type": "object"}, strict=True))


def test_a_strict_function_may_have_no_parameters() -> None:
    parse(tools=[{"type": "function", "name": "f", "strict": True}])


@pytest.mark.requirement("control.format-is-checked")
@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "json_schema", "schema": {}}, "text.format.name"),
        ({"type": "json_schema", "name": "n"}, "text.format.schema"),
        ({"name": "n"}, "text.format.type"),
    ],
)
def test_a_format_has_a_type_a_name_and_a_schema(form: dict[str, Any], param: str) -> None:
    code, where, _ = refusal(text={"format": form})
    assert (code, where) == ("missing_required_parameter", param)


def test_a_schema_is_an_object() -> None:
    code, param, _ = refusal(text={"format": {**SCHEMA, "schema": True}})
    assert (code, param) == ("invalid_type", "text.format.schema")
