"""Schemas that nothing can satisfy are found before anything is generated for them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gateway.constraints.output_rules import UnusableSchema
from gateway.constraints.validators import SchemaValidator, impossible
from tests.fakes.cases import each

Json = dict[str, Any]


def having(part: object, **more: object) -> Json:
    return {"type": "object", "properties": {"a/b": part}, "required": ["a/b"], **more}


@each(
    ("schema", "place"),
    [
        (False, "/"),
        ({"enum": []}, "/enum"),
        ({"type": "string", "enum": [1, None]}, "/enum"),
        ({"type": ["integer", "null"], "const": 1.5}, "/const"),
        ({"not": {}}, "/not"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "/minLength"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "/minimum"),
        ({"type": "number", "exclusiveMinimum": 2, "maximum": 2}, "/exclusiveMinimum"),
        ({"allOf": [{}, {"enum": []}]}, "/allOf/1/enum"),
        ({"anyOf": [False, {"enum": []}]}, "/anyOf"),
        (having(False), "/properties/a~1b"),
        (having({}, required=["c"], additionalProperties=False), "/required"),
        ({"type": "array", "items": False, "minItems": 1}, "/items"),
        ({"type": "array", "prefixItems": [{}, False], "minItems": 2}, "/prefixItems/1"),
    ],
)
def test_what_nothing_can_satisfy_is_named_by_its_place(schema: object, place: str) -> None:
    assert impossible(schema) == place


@each(
    "schema",
    [
        True,
        {},
        {"not": {"type": "string"}},
        {"minLength": 3, "maxLength": 2},
        {"type": ["string", "null"], "minLength": 3, "maxLength": 2},
        {"type": "integer", "const": 2.0},
        {"anyOf": [False, {"type": "null"}]},
        {"type": "object", "properties": {"a": False}},
        having({}, required=["c"]),
        {"type": "array", "items": False},
        {"type": "array", "prefixItems": [False]},
    ],
)
def test_what_something_satisfies_is_left_alone(schema: object) -> None:
    assert impossible(schema) is None


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(-3, 3), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=6,
)
SIZES = st.integers(0, 3)
TYPES = st.sampled_from(["string", "number", "integer", "object", "array", "null", "boolean"])
SCHEMAS: st.SearchStrategy[object] = st.recursive(
    st.booleans(),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": st.one_of(TYPES, st.lists(TYPES, min_size=1, max_size=2, unique=True)),
            "enum": st.lists(VALUES, max_size=2),
            "const": VALUES,
            "not": inner,
            **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), SIZES),
            **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), SIZES),
            **dict.fromkeys(("allOf", "anyOf", "oneOf"), st.lists(inner, min_size=1, max_size=2)),
            "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            "required": st.lists(st.sampled_from("ab"), max_size=2, unique=True),
            "additionalProperties": inner,
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
        },
    ),
    max_leaves=8,
)


@pytest.mark.slow
@given(SCHEMAS, VALUES)
def test_no_value_satisfies_what_is_found(schema: Any, value: Any) -> None:
    if impossible(schema) is not None:
        assert not Draft202012Validator(schema).is_valid(value)


def test_such_a_schema_cannot_be_used() -> None:
    with pytest.raises(UnusableSchema, match="nothing can satisfy what it demands at /minimum"):
        SchemaValidator({"type": "integer", "minimum": 3, "maximum": 2}, work_max=1000)
