"""Schemas that nothing can satisfy, as far as that shows without solving them.

A model that is bound to such a schema can say nothing that is right, so it is a mistake of the
request. What is found here is certain; `$ref` is not followed, and of what contradicts itself in
other ways (two patterns, for one) only a generation finds out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Schema = dict[str, Any]

_NUMBERS: Final = {"number", "integer"}
_BOUNDS: Final = (
    ({"string"}, "minLength", "maxLength"),
    ({"array"}, "minItems", "maxItems"),
    ({"object"}, "minProperties", "maxProperties"),
    (_NUMBERS, "minimum", "maximum"),
)
_OPEN_BOUNDS: Final = (
    ("minimum", "exclusiveMaximum"),
    ("exclusiveMinimum", "maximum"),
    ("exclusiveMinimum", "exclusiveMaximum"),
)
_OF_TYPE: Final[dict[str, Callable[[object], bool]]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
    ),
}


def impossible(schema: object, place: str = "") -> str | None:
    """Where a valid schema cannot be satisfied, as a JSON pointer; None: nowhere that shows."""
    if schema is False:
        return place or "/"
    if not isinstance(schema, dict):
        return None
    return next(_places(schema, place), None)


def _places(schema: Schema, place: str) -> Iterator[str]:
    types = _types(schema)
    yield from (f"{place}/{name}" for name in _contradictions(schema, types))
    yield from _parts(schema, place)
    if types == {"object"}:
        yield from _members(schema, place)
    if types == {"array"}:
        yield from _elements(schema, place)


def _types(schema: Schema) -> set[str]:
    """Those that it names; empty where any will do."""
    declared = schema.get("type", [])
    return {declared} if isinstance(declared, str) else set(declared)


def _contradictions(schema: Schema, types: set[str]) -> Iterator[str]:
    """The keywords of one schema that contradict another, or themselves."""
    values = schema.get("enum")
    if values is not None and not any(_is_of(value, types) for value in values):
        yield "enum"
    if "const" in schema and not _is_of(schema["const"], types):
        yield "const"
    if schema.get("not") in ({}, True):
        yield "not"
    for kinds, least, most in _BOUNDS:
        is_bound = types and types <= kinds and least in schema and most in schema
        if is_bound and schema[least] > schema[most]:
            yield least
    for least, most in _OPEN_BOUNDS if types and types <= _NUMBERS else ():
        if least in schema and most in schema and schema[least] >= schema[most]:
            yield least


def _is_of(value: object, types: set[str]) -> bool:
    return not types or any(_OF_TYPE[name](value) for name in types)


def _parts(schema: Schema, place: str) -> Iterator[str]:
    for number, part in enumerate(schema.get("allOf", ())):
        if found := impossible(part, f"{place}/allOf/{number}"):
            yield found
    for name in ("anyOf", "oneOf"):
        parts = schema.get(name, ())
        if parts and all(impossible(part) for part in parts):
            yield f"{place}/{name}"


def _members(schema: Schema, place: str) -> Iterator[str]:
    """Of an object: what it must have, and cannot."""
    properties = schema.get("properties", {})
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    for name in schema.get("required", ()):
        if name not in properties:
            if is_closed:
                yield f"{place}/required"
        elif found := impossible(properties[name], f"{place}/properties/{_step(name)}"):
            yield found


def _elements(schema: Schema, place: str) -> Iterator[str]:
    """The same of an array."""
    count = schema.get("minItems", 0)
    first = schema.get("prefixItems", ())
    for number, part in enumerate(first[: int(count)]):
        if found := impossible(part, f"{place}/prefixItems/{number}"):
            yield found
    if count > len(first) and (found := impossible(schema.get("items"), f"{place}/items")):
        yield found


def _step(name: str) -> str:
    """As a JSON pointer has it (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")
