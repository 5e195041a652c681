"""A schema is the same schema in parts."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator

from gateway.constraints import validators
from gateway.constraints.output_rules import UnusableSchema
from gateway.constraints.validators import PART_BYTES, SchemaValidator, parts_of
from tests.fakes.cases import each
from tests.fakes.examples import examples

Schema = dict[str, Any]
NAMES = st.sampled_from(["a", "b", "c", "d"])
LEAVES: st.SearchStrategy[Schema] = st.sampled_from(
    [{"type": "integer"}, {"type": "string"}, {"enum": [1, "x"]}, {"pattern": "^x"}, {}]
)
VALUES = st.recursive(
    st.sampled_from([1, "x", "y", None]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def objects(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(NAMES, inner, max_size=4)},
        optional={
            "required": st.lists(NAMES, unique=True, max_size=2),
            "additionalProperties": st.booleans() | LEAVES,
            "unevaluatedProperties": st.just(False),
            "minProperties": st.just(1),
        },
    )


def lists(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.fixed_dictionaries(
        {"items": inner},
        optional={"type": st.just("array"), "prefixItems": st.lists(LEAVES, min_size=1)},
    )


SCHEMAS = st.recursive(LEAVES, lambda inner: objects(inner) | lists(inner), max_leaves=12)


NUMBERS = {"items": {"type": "integer"}, "minItems": 1}
"""What is inside is small."""


@each("value", [[1], ["x"], {"a": [1]}, {"a": ["x"]}, {"a": [], "b": 1}])
@each("schema", [NUMBERS, {"properties": {"b": {}, "a": NUMBERS}}, {"properties": {"a": NUMBERS}}])
def test_parts_within_parts_allow_what_the_whole_allows(schema: Schema, value: Any) -> None:
    check_parts(schema, value, 30)


@pytest.mark.slow
@settings(max_examples=examples(400))
@given(SCHEMAS, VALUES, st.integers(2, 120))
def test_all_parts_allow_what_the_whole_allows(schema: Schema, value: Any, size: int) -> None:
    check_parts(schema, value, size)


def check_parts(schema: Schema, value: Any, size: int) -> None:
    """A value fits all parts of this size, or neither them nor the whole."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validators, "PART_BYTES", size)
        pieces = list(parts_of(schema))
    allowed = all(Draft202012Validator(piece).is_valid(value) for piece in pieces)
    assert allowed == Draft202012Validator(schema).is_valid(value)


def wide(members: int, **fields: Any) -> Schema:
    described = {f"m{at}": {"type": "string", "description": "x" * 40} for at in range(members)}
    return {"type": "object", "properties": described, "required": [*described], **fields}


@pytest.mark.parametrize(
    "schema",
    [
        wide(2_000),
        {"type": "object", "properties": {"inner": wide(2_000), "other": {}}},
        {"type": "array", "items": wide(2_000)},
    ],
)
def test_no_part_of_a_wide_schema_is_large(schema: Schema) -> None:
    sizes = [len(orjson.dumps(part)) for part in parts_of(schema)]
    # What stands around the members still has their names.
    assert max(sizes) < 4 * PART_BYTES
    assert len(sizes) > len(orjson.dumps(schema)) // PART_BYTES


def test_patterns_count_as_what_they_take() -> None:
    members = {f"m{at}": {"pattern": f"^x{{{at}}}"} for at in range(1, 100)}
    assert len(list(parts_of({"properties": members}))) > 20


def test_a_schema_that_refers_to_itself_stays_whole() -> None:
    schema = wide(2_000, allOf=[{"$ref": "#/properties/m1"}])
    assert list(parts_of(schema)) == [schema]


def test_every_part_is_of_the_draft_that_the_schema_names() -> None:
    draft = "http://json-schema.org/draft-07/schema#"
    schema = {"$schema": draft} | wide(1_000)
    assert all(part["$schema"] == draft for part in parts_of(schema))


def test_a_wide_schema_is_checked_as_any() -> None:
    document = SchemaValidator(wide(600, additionalProperties=False), work_max=50_000)
    value = {f"m{at}": "x" for at in range(600)}
    assert document.fault(orjson.dumps(value).decode()) is None
    assert document.fault(orjson.dumps(value | {"m599": 1}).decode()) is not None
    assert document.fault(orjson.dumps(value | {"more": 1}).decode()) is not None
    del value["m0"]
    assert document.fault(orjson.dumps(value).decode()) is not None


def test_a_mistake_in_a_wide_schema_is_told_where_it_is() -> None:
    schema = wide(1_000)
    schema["properties"]["m900"] = {"type": "strong"}
    with pytest.raises(UnusableSchema, match="/properties/m900/type"):
        SchemaValidator(schema, work_max=50_000)
