"""What is looked at in a JSON Schema before anything compiles it.

A schema that binds the output is given to a validator and to the grammar compilers of backends.
None of them may be made to fetch anything, to recurse without end, or to work for minutes.
Faults are told as the part of a sentence that follows "Invalid schema for ...:".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote

import orjson

from gateway.errors import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Schema = Mapping[str, Any]

_MAPS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
_BESIDE: Final = ("if", "then", "else", "not")
"""Their schemas look at the same value, and so may lead in a circle; so do those of `_CHOICES`."""
_ONE: Final = frozenset(
    {
        *_BESIDE,
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "items",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
_CHOICES: Final = ("allOf", "anyOf", "oneOf")
_LISTS: Final = frozenset({*_CHOICES, "prefixItems", "items"})
_REFERENCES: Final = ("$ref", "$dynamicRef")
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")
_INDEX_CHARS_MAX: Final = 9
_NUMBER: Final = frozenset({"number"})
_WHOLE_NUMBER: Final = frozenset({"number", "integer"})
_VALUE_TYPES: Final = (
    (type(None), frozenset({"null"})),
    (bool, frozenset({"boolean"})),
    (str, frozenset({"string"})),
    (list, frozenset({"array"})),
    (dict, frozenset({"object"})),
)
MISSING: Final = object()
"""Where a pointer leads to nothing; null is something."""


class SchemaBounds(Protocol):
    """How large a schema may be: bytes of JSON, nested containers, characters of a pattern."""

    @property
    def schema_bytes_max(self) -> int: ...

    @property
    def schema_depth_max(self) -> int: ...

    @property
    def pattern_chars_max(self) -> int: ...


def size_fault(schema: Schema, limits: SchemaBounds) -> str | None:
    """Why it is too large, None if it is not."""
    size = len(orjson.dumps(schema))
    if size > limits.schema_bytes_max:
        return f"it has {size} bytes. Expected at most {limits.schema_bytes_max} bytes."
    return None


def root_fault(schema: Schema) -> str | None:
    """Why it is not a schema of objects, None if it is."""
    kind = schema.get("type")
    if kind == "object":
        return None
    found = shown(str(kind))
    return f"""schema must be a JSON Schema of 'type: "object"', got 'type: "{found}"'."""


def shape_fault(schema: Schema, limits: SchemaBounds) -> str | None:
    """Why it cannot be compiled within bounds, None if nothing speaks against it."""
    if _depth(schema) > limits.schema_depth_max:
        return (
            f"it is nested too deeply. Expected at most {limits.schema_depth_max} levels of "
            "objects and arrays."
        )
    schemas = list(_schemas(schema))
    targets = {
        f"#{part[key]}": part
        for part in schemas
        for key in _ANCHORS
        if isinstance(part.get(key), str)
    }
    for part in schemas:
        fault = _pattern_fault(part, limits) or _reference_fault(schema, part, targets)
        if fault is not None:
            return fault
    refers = any(key in part for part in schemas for key in _REFERENCES)
    return _circle_fault(schema, schemas, targets) if refers else None


def _depth(schema: Schema) -> int:
    """Nested objects and arrays, the schema itself included; level by level, nothing recurses."""
    depth = 0
    level: list[Any] = [schema]
    while level:
        depth += 1
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, dict | list)
        ]
    return depth


def _schemas(root: Schema) -> Iterator[Schema]:
    """The schema and all in it, each once; those that only a pointer leads to as well."""
    seen: set[int] = set()
    waiting: list[object] = [root]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        waiting += _children(part)
        waiting += [at_pointer(root, reference) for reference in _references(part)]


def _children(part: Schema) -> Iterator[object]:
    for key, inner in part.items():
        if isinstance(inner, list):
            yield from inner if key in _LISTS else ()
        elif key in _MAPS and isinstance(inner, dict):
            yield from inner.values()
        elif key in _ONE:
            yield inner


def _references(part: Schema) -> Iterator[str]:
    for key in _REFERENCES:
        if isinstance(reference := part.get(key), str):
            yield reference


def at_pointer(root: object, reference: str) -> object:
    """What a JSON Pointer (RFC 6901) in a fragment leads to, or `MISSING`."""
    path = unquote(reference).removeprefix("#")
    if path and not path.startswith("/"):
        return MISSING
    place = root
    for step in path.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        match place:
            case dict():
                place = place.get(key, MISSING)
            case list() if (
                len(key) <= _INDEX_CHARS_MAX and key.isdecimal() and int(key) < len(place)
            ):
                place = place[int(key)]
            case _:
                return MISSING
    return place


def types_of(value: object) -> frozenset[str]:
    """The names under which JSON Schema knows a value."""
    for known, names in _VALUE_TYPES:
        if isinstance(value, known):
            return names
    return _NUMBER if isinstance(value, float) and not value.is_integer() else _WHOLE_NUMBER


def _pattern_fault(part: Schema, limits: SchemaBounds) -> str | None:
    properties = part.get("patternProperties")
    patterns = [*properties] if isinstance(properties, dict) else []
    for pattern in (part.get("pattern"), *patterns):
        if isinstance(pattern, str) and len(pattern) > limits.pattern_chars_max:
            return (
                f"a pattern in it has {len(pattern)} characters. Expected at most "
                f"{limits.pattern_chars_max} characters."
            )
    return None


def _reference_fault(root: Schema, part: Schema, targets: dict[str, Schema]) -> str | None:
    for reference in _references(part):
        if not isinstance(_target(root, reference, targets), dict | bool):
            return (
                f"'{shown(reference)}' leads to no schema. Expected a reference into the schema "
                "itself, such as '#/$defs/name'."
            )
    return None


def _target(root: Schema, reference: str, targets: dict[str, Schema]) -> object:
    if not reference.startswith("#"):
        return MISSING
    return targets.get(reference, MISSING) if reference in targets else at_pointer(root, reference)


def _circle_fault(root: Schema, schemas: list[Schema], targets: dict[str, Schema]) -> str | None:
    """A schema that says of a value no more than that it must satisfy the schema.

    Schemas are taken away as long as there is one that leans on none that is left.
    """
    leans = {id(part): set(_beside(root, part, targets)) for part in schemas}
    leant_on: dict[int, list[int]] = {}
    for part, others in leans.items():
        for other in others:
            leant_on.setdefault(other, []).append(part)
    free = [part for part, others in leans.items() if not others]
    while free:
        part = free.pop()
        del leans[part]
        for other in leant_on.get(part, ()):
            leans[other].discard(part)
            if not leans[other]:
                free.append(other)
    if leans:
        return "a reference in it leads back to itself without a property or an item in between."
    return None


def _beside(root: Schema, part: Schema, targets: dict[str, Schema]) -> Iterator[int]:
    """The schemas that look at the same value, by identity."""
    others: list[object] = [_target(root, reference, targets) for reference in _references(part)]
    others += [part.get(key) for key in _BESIDE]
    for key in _CHOICES:
        others += inner if isinstance(inner := part.get(key), list) else []
    yield from (id(other) for other in others if isinstance(other, dict))
