"""Schemas that are none are refused wherever a schema is relied on, before anything reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jsonschema_rs
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.constraints.schemas import form_fault
from gateway.constraints.validation import Checker
from gateway.errors import InvalidRequest
from gateway.eventlog.fold.screen import Beginning
from gateway.models.harmony.tool_typescript import SchemaNormaliser, function_text
from gateway.protocol.call_items import call_fields
from gateway.protocol.chat_conversion import parse_chat
from gateway.protocol.responses.response_object import echo
from gateway.protocol.responses.response_rules import rules_of
from gateway.protocol.tool_types import FunctionTool, named
from tests.fakes.any_schemas import SCHEMAS
from tests.fakes.cases import each
from tests.fakes.create_bodies import LIMITS, parse, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]


def answer(schema: Any, **more: Any) -> Json:
    form = {"type": "json_schema", "name": "answer", "schema": schema}
    return {"input": "x", "text": {"format": {**form, **more}}}


def function(schema: Any, **more: Any) -> Json:
    return {
        "input": "x",
        "tools": [{"type": "function", "name": "f", "parameters": schema, **more}],
    }


def member(schema: Any, **more: Any) -> Json:
    space = {"type": "namespace", "name": "ns", "tools": function(schema, **more)["tools"]}
    return {"input": "x", "tools": [space]}


PLACES: dict[str, Callable[..., Json]] = {
    "text.format.schema": answer,
    "tools[0].parameters": function,
    "tools[0].tools[0].parameters": member,
}

MALFORMED: list[tuple[Json, str]] = [
    ({"type": {"a": 1}}, "/type"),
    ({"type": ["object", {"a": 1}]}, "/type"),
    ({"type": []}, "/type"),
    ({"type": "any"}, "/type"),
    ({"properties": {"a": {"items": {"type": 1}}}}, "/properties/a/items/type"),
    ({"anyOf": [{}, {"enum": {}}]}, "/anyOf/1/enum"),
    ({"anyOf": []}, "/anyOf"),
    ({"enum": []}, "/enum"),
    ({"required": True}, "/required"),
    ({"required": [1]}, "/required"),
    ({"properties": []}, "/properties"),
    ({"properties": {"a": 1}}, "/properties"),
    ({"items": [1]}, "/items"),
    ({"dependencies": {"a": 1}}, "/dependencies"),
    ({"dependencies": {"a": {"not": 1}}}, "/dependencies/a/not"),
    ({"minLength": -1}, "/minLength"),
    ({"minLength": 1.5}, "/minLength"),
    ({"maxItems": True}, "/maxItems"),
    ({"multipleOf": 0}, "/multipleOf"),
    ({"minimum": "1"}, "/minimum"),
    ({"description": 1}, "/description"),
    ({"dependentRequired": {"a": "b"}}, "/dependentRequired"),
]


@pytest.mark.requirement("error.malformed-schemas")
@each(("place", "strict"), [*((place, True) for place in PLACES), ("text.format.schema", False)])
@each(("schema", "pointer"), MALFORMED)
def test_a_schema_that_is_none_is_refused_wherever_it_stands(
    schema: Json, pointer: str, place: str, *, strict: bool
) -> None:
    code, param, message = refusal(**PLACES[place](schema, strict=strict))
    assert param == place
    is_answer = place.startswith("text")
    assert code == ("invalid_json_schema" if is_answer else "invalid_function_parameters")
    assert f"'#{pointer}' is not " in message


SEEN_IN_TOOLS: list[tuple[Json, str]] = [
    ({"type": "string", "required": True}, "string"),
    ({"type": "string", "enum": None, "format": None}, "string"),
    ({"type": "string", "enum": []}, "string"),
    ({"type": "string", "examples": "one", "deprecated": "use b"}, "string"),
    ({"type": "string", "title": 1, "description": ["one", "two"]}, "string"),
    ({"type": "number", "minimum": "0"}, "number"),
    ({"type": "any"}, "any"),
    ({"type": "float"}, "any"),
    ({"type": "object", "properties": []}, "{\n    }"),
    ({"type": "array", "items": {"type": "string", "uniqueItems": "true"}}, "string[]"),
    ({"anyOf": []}, "any"),
]
"""Parameters of tools as MCP servers and older frameworks write them, and what the model reads."""


@each("place", ["tools[0].parameters", "tools[0].tools[0].parameters"])
@each(("inner", "shown"), SEEN_IN_TOOLS)
def test_a_function_that_is_only_shown_is_shown_as_far_as_it_can_be_read(
    inner: Json, shown: str, place: str
) -> None:
    schema = {"type": "object", "properties": {"a": inner}, "required": {}}
    request = parse(**PLACES[place](schema))
    (tool,) = named(request.tools)
    assert isinstance(tool.tool, FunctionTool)
    assert tool.tool.parameters == schema
    text = function_text("f", SchemaNormaliser().normalise(schema, param="x"))
    assert f"a?: {shown}," in text
    assert refusal(**PLACES[place](schema, strict=True))[1] == place


def test_forms_of_older_drafts_are_admitted() -> None:
    older = {"items": [], "dependencies": {"a": ["b"]}, "exclusiveMinimum": True}
    assert form_fault({**older, "additionalItems": False, "definitions": {"a": True}}) is None


def test_a_long_pointer_is_told_by_its_end() -> None:
    schema: Json = {"type": 1}
    for _ in range(30):
        schema = {"properties": {"name": schema}}
    fault = form_fault(schema)
    assert fault is not None
    assert fault.startswith("'...")
    assert "properties/name/type' is not one or several of array" in fault


@pytest.mark.slow
@given(SCHEMAS)
def test_what_has_its_form_is_a_schema(schema: Json) -> None:
    if form_fault(schema) is None:
        draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
        lists = [value for value in [schema.get("items")] if isinstance(value, list)]
        assert lists or jsonschema_rs.meta.is_valid({**schema, **draft}) or _has_old_items(schema)


def _has_old_items(value: Any) -> bool:
    """A list of `items`, or a list that names something twice, which no validator minds."""
    if isinstance(value, list):
        return len({repr(one) for one in value}) < len(value) or any(map(_has_old_items, value))
    if not isinstance(value, dict):
        return False
    return isinstance(value.get("items"), list) or any(map(_has_old_items, value.values()))


@pytest.mark.slow
@given(SCHEMAS, st.sampled_from(sorted(PLACES)), st.booleans())
@example({"type": {"a": 1}}, "text.format.schema", False)
@example({"type": ["string", "integer"]}, "text.format.schema", False)
def test_any_schema_is_compiled_or_refused(schema: Json, place: str, strict: bool) -> None:
    found = refusal_of(PLACES[place](schema, strict=strict))
    assert found in {
        None,
        ("invalid_json_schema", "text.format.schema"),
        ("invalid_function_parameters", place),
    }


BROKEN: Json = {"name": "f", "parameters": {"type": 1}, "strict": True}


def refusal_of(fields: Json) -> tuple[str | None, str | None] | None:
    """Code and param of the refusal of a schema, None for one that all is well with."""
    try:
        request = parse(**fields)
        rules = rules_of(echo(request))
        paths = {tool.name: f"tools{tool.path}" for tool in named(request.tools)}
        Checker(rules, call_fields, paths=paths).compile()
    except InvalidRequest as error:
        return error.code, error.param
    if rules.answer is not None:
        Beginning(rules.answer).read("{")
    return None


@pytest.mark.requirement("error.malformed-schemas")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": BROKEN}]}, "tools[0].function.parameters"),
        ({"functions": [BROKEN]}, "functions[0].parameters"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"type": 1}},
                }
            },
            "response_format.json_schema.schema",
        ),
    ],
)
def test_chat_refuses_them_at_their_own_places(fields: Json, param: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(orjson.dumps(body), limits=LIMITS)
    assert caught.value.param == param
