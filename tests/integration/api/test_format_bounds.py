"""What a format may not be: it is refused with what to do about it, before a token is spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.controlled import NONE, TURN, site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.controlled import Site
    from tests.fakes.postgres import PostgresServer

Json = dict[str, Any]


@pytest.fixture(scope="module")
async def where(postgres: PostgresServer, template: str) -> AsyncIterator[Site]:
    """Over backends with and without grammars."""
    async with site(postgres, template, TURN, NONE) as running:
        yield running


def of(schema: Any, **fields: Any) -> Json:
    """A format of this schema."""
    return {"type": "json_schema", "name": "n", "schema": schema, "strict": True, **fields}


def holding(value: Json) -> Json:
    """A schema of an object with one member."""
    return {
        "type": "object",
        "properties": {"a": value},
        "required": ["a"],
        "additionalProperties": False,
    }


def nested(levels: int) -> Json:
    value: Json = {"type": "string"}
    for _ in range(levels):
        value = holding(value)
    return value


SCHEMA = "text.format.schema"


@pytest.mark.parametrize(
    ("shape", "param", "words"),
    [
        (of(holding({"const": "x" * 300_000})), SCHEMA, "262144 bytes"),
        (of(nested(40)), SCHEMA, "nested too deeply"),
        (of(holding({"$ref": "https://example.com/s.json"})), SCHEMA, "ref"),
        (of(holding({"$ref": "file:///etc/passwd"})), SCHEMA, "ref"),
        (of(holding({"$ref": "#/$defs/missing"})), SCHEMA, "missing"),
        (of({**holding({}), "allOf": [{"$ref": "#"}]}), SCHEMA, "itself"),
        (of(holding({"type": "string", "pattern": "a" * 1025})), SCHEMA, "1024"),
        (of(holding({"type": "string", "pattern": "("})), SCHEMA, "pattern"),
        (of(holding({"type": "string", "pattern": r"(a)\1"})), SCHEMA, "pattern"),
        (of(holding({"type": "string", "pattern": "(?=a)b"})), SCHEMA, "pattern"),
        (of({"type": "array", "items": {}}), SCHEMA, "object"),
        (of({"type": "object", "properties": 7}), SCHEMA, ""),
        (of(holding({"type": "text"})), SCHEMA, ""),
        (of(True), SCHEMA, ""),
        (of(holding({}), name="a b"), "text.format.name", "pattern"),
        (of(holding({}), name="n" * 65), "text.format.name", "64"),
        (of(holding({}), name=""), "text.format.name", "empty"),
        ({"type": "json_schema", "schema": holding({})}, "text.format.name", "Missing"),
        ({"type": "json_schema", "name": "n"}, SCHEMA, "Missing"),
        ({"type": "yaml"}, "text.format.type", "json_object"),
    ],
)
async def test_a_format_that_cannot_be_used_is_refused(
    where: Site, shape: Json, param: str, words: str
) -> None:
    error = await where.refused(input="hi", text={"format": shape})
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert words in error["message"]
    assert len(error["message"]) < 1_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "schema",
    [
        holding({"enum": [f"value {number}" for number in range(1000)]}),
        nested(9),
        {
            **holding({"$ref": "#/$defs/node"}),
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                    "required": ["next"],
                    "additionalProperties": False,
                }
            },
        },
        holding({"type": "string", "pattern": r"^\d{3}-[a-z]+$"}),
        holding({"type": "string", "format": "date"}),
        holding({"type": ["integer", "null"], "minimum": -5}),
    ],
    ids=["large enum", "deep", "recursive", "pattern", "format", "nullable"],
)
async def test_a_schema_within_the_bounds_is_kept(where: Site, schema: Json) -> None:
    shown = await where.everywhere(
        input="Go on. [[sim think=none]]", text={"format": of(schema)}, max_output_tokens=2000
    )
    assert shown.status == "completed"
    assert shown.response["text"]["format"]["schema"] == schema


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
async def test_a_stop_cannot_cut_json(where: Site, kind: str) -> None:
    shape = {"type": kind} if kind == "json_object" else of(holding({}))
    error = await where.refused(input="hi", text={"format": shape}, stop=["}"])
    assert (error["code"], error["param"]) == ("unsupported_parameter", "stop")
    assert kind in error["message"]


async def test_nothing_was_generated_for_what_was_refused(where: Site) -> None:
    await where.forget()
    await where.refused(input="hi", text={"format": of(nested(40))})
    assert await where.backends.seen() == []
