from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gateway.errors import InvalidRequest
from gateway.models.harmony import tool_typescript
from gateway.models.harmony.tool_typescript import DEPTH_MAX, SchemaNormaliser, type_text
from tests.fakes.cases import each

if TYPE_CHECKING:
    from gateway.models.harmony.tool_typescript import Schema

PARAM = "tools[3].parameters"
STRING = {"type": "string"}


def normalise(schema: Schema) -> Schema:
    return SchemaNormaliser().normalise(schema, param=PARAM)


def written(schema: Schema) -> str:
    return type_text(normalise(schema))


def refused(schema: Schema) -> str:
    with pytest.raises(InvalidRequest) as caught:
        normalise(schema)
    assert caught.value.code == "invalid_function_parameters"
    assert caught.value.param == PARAM
    return caught.value.message


@each(
    ("ref", "text"),
    [
        ("#/$defs/a~1b~0c%25", "string"),
        ("#/$defs/list/0", "number"),
        ("#/$defs/list/7", "any"),
        ("#/$defs/list/x", "any"),
        ("#/$defs/missing/deeper", "any"),
        ("#anchor", "any"),
        ("https://example.com/schema.json", "any"),
        ("#/$defs/flag", "any"),
    ],
)
def test_a_ref_is_a_json_pointer_into_the_schema(ref: str, text: str) -> None:
    definitions = {"a/b~c%": STRING, "list": [{"type": "number"}], "flag": True}
    assert written({"$defs": definitions, "$ref": ref}) == text


def test_what_stands_beside_a_ref_wins() -> None:
    schema = {
        "$defs": {"P": {"type": "string", "description": "of P", "title": "P"}},
        "$ref": "#/$defs/P",
        "description": "mine",
    }
    assert normalise(schema) == {"type": "string", "description": "mine", "title": "P"}


def test_a_recursive_definition_is_any_inside_of_itself() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#"}, "value": STRING}}
    assert written(node) == (
        "{\nnext?: {\n    next?: any,\n    value?: string,\n    },\nvalue?: string,\n}"
    )


@pytest.mark.parametrize(
    "definitions",
    [
        {"A": {"$ref": "#/$defs/A"}},
        {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}},
        {"A": {"allOf": [{"$ref": "#/$defs/A"}]}},
        {"A": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}},
    ],
)
def test_a_definition_that_is_only_itself_is_any(definitions: Schema) -> None:
    assert written({"$defs": definitions, "$ref": "#/$defs/A"}) in {"any", "any | null"}


def test_definitions_that_explode_are_followed_less_deep() -> None:
    names = [f"T{i}" for i in range(7)]
    all_of_them = {name: {"$ref": f"#/$defs/{name}"} for name in names}
    definitions = {name: {"type": "object", "properties": all_of_them} for name in names}
    text = written({"$defs": definitions, "$ref": "#/$defs/T0"})
    assert "T6?: {" in text
    assert len(text) < 20_000


def test_a_schema_that_explodes_leaves_the_budget_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tool_typescript, "NODES_MAX", 300)
    twice = {
        f"T{i}": {"allOf": [{"$ref": f"#/$defs/T{i + 1}"}, {"$ref": f"#/$defs/U{i + 1}"}]}
        for i in range(20)
    }
    twice |= {name.replace("T", "U"): schema for name, schema in twice.items()}
    normaliser = SchemaNormaliser()
    for _ in range(3):
        schema = {"$defs": twice, "$ref": "#/$defs/T0"}
        assert normaliser.normalise(schema, param=PARAM) == {}


def test_properties_that_two_branches_share_are_merged() -> None:
    schema = {
        "allOf": [
            {"properties": {"x": {"type": "string"}, "y": STRING}},
            {"properties": {"x": {"description": "d"}, "y": STRING}},
        ]
    }
    assert normalise(schema) == {
        "type": "object",
        "properties": {"x": {"type": "string", "description": "d"}, "y": STRING},
        "required": [],
    }


@each(
    ("schema", "text"),
    [
        ({"anyOf": [{"type": "array", "items": STRING}, {"type": "null"}]}, "string[] | null"),
        ({"oneOf": [{"const": None}, STRING]}, "string | null"),
        ({"anyOf": [{"type": "null"}, {"type": ["null"]}]}, "\n | null\n | null"),
        ({"anyOf": [{"anyOf": [STRING, {"type": "number"}]}, {"type": "null"}]},
         "\n | string\n | number\n | null"),
        ({"anyOf": [STRING, {"type": "null"}], "nullable": True}, "string | null"),
        ({"oneOf": [STRING, {"type": "number"}, {"type": "null"}], "nullable": True},
         "\n | string\n | number\n | null"),
        ({"type": "string", "oneOf": [{"const": "a"}, {"const": "b"}]}, '\n | "a"\n | "b"'),
        ({"type": "string", "anyOf": [{"format": "date"}, {"format": "time"}]}, "string"),
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, "\n | any\n | any"),
        ({"enum": [None]}, "null"),
        ({"enum": []}, "any"),
        ({"enum": ["a"], "nullable": True}, '"a" | null'),
        ({"enum": [True, 1.5, [1], {"a": "é"}]}, 'true | 1.5 | [1] | {"a":"é"}'),
        ({"type": "number", "enum": [1, 2.5, "x", True]}, "1 | 2.5"),
        ({"type": "integer", "enum": [1, 2.0, 2.5]}, "1 | 2.0"),
        ({"type": "string", "enum": [1]}, "string"),
        ({"type": ["object", "array"], "enum": [[], {}]}, "[] | {}"),
        ({"items": [STRING, {"type": "number"}]}, "[string, number]"),
        ({"type": ["object", "null"], "additionalProperties": STRING},
         "{\n[key: string]: string,\n} | null"),
        ({"type": ["array", "string"]}, "\n | Array<any>\n | string"),
        ({"type": "object", "properties": ["x"], "required": "x"}, "{\n}"),
        ({"type": "object", "additionalProperties": True}, "{\n}"),
        ({"properties": {"a": False, "b": 5}}, "{\na?: any,\nb?: any,\n}"),
        ({"nullable": True}, "any | null"),
        ({"type": 5, "title": 5, "description": None, "examples": []}, "any"),
    ],
)  # fmt: skip
def test_no_type_is_lost(schema: Schema, text: str) -> None:
    assert written(schema) == text


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = STRING
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def test_a_schema_may_be_as_deep_as_the_limit() -> None:
    assert type_text(normalise(nested(DEPTH_MAX))).startswith("string[]")
    assert f"more than {DEPTH_MAX} levels" in refused(nested(DEPTH_MAX + 1))


def test_nodes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"type": "object", "properties": {str(i): {} for i in range(100)}}
    assert normalise(schema)
    monkeypatch.setattr(tool_typescript, "NODES_MAX", 50)
    assert "more than 50 nodes" in refused(schema)


def test_characters_are_counted_as_often_as_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tool_typescript, "CHARACTERS_MAX", 50_000)
    properties = {str(i): {"$ref": "#/$defs/P"} for i in range(100)}
    schema = {
        "$defs": {"P": {"type": "string", "description": "x" * 1000}},
        "type": "object",
        "properties": properties,
    }
    assert normalise(schema)["properties"]["7"] == {}
    schema |= {"description": "x" * 50_000}
    assert "more than 50000 characters" in refused(schema)


def test_the_limits_hold_for_all_schemas_of_a_request_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tool_typescript, "NODES_MAX", 6)
    normaliser = SchemaNormaliser()
    schema: Schema = {"type": "array", "items": STRING}
    normaliser.normalise(schema, param="tools[0].parameters")
    normaliser.normalise(schema, param="tools[1].parameters")
    with pytest.raises(InvalidRequest) as caught:
        normaliser.normalise(schema, param="tools[2].parameters")
    assert caught.value.param == "tools[2].parameters"


@pytest.mark.parametrize("value", [1 << 70, "\ud83d", {1: 2}])
def test_a_default_that_is_no_json_is_refused(value: object) -> None:
    assert "is not JSON" in refused({"type": "string", "default": value})


def test_a_default_nested_too_deep_is_refused() -> None:
    value: list[Any] = []
    for _ in range(900):
        value = [value]
    assert "is not JSON" in refused({"default": value})
