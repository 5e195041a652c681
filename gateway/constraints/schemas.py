"""Checks of a JSON Schema before validators and engines compile it.

No schema may make them fetch anything, recurse without end, or work for minutes. A fault is the
part of a sentence that follows "Invalid schema for ...:".

Keywords must have the form of JSON Schema 2020-12, also where an answer is not strict: OpenAI
refuses others as well. Of drafts 4 to 7, clients still send lists of `items`, `additionalItems`,
`dependencies`, and booleans for `exclusiveMinimum` and `exclusiveMaximum`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import orjson

from gateway.errors import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    Schema = Mapping[str, Any]
    Form = tuple[str, Callable[[Any], bool]]
    Path = tuple[Any, ...]

BESIDE: Final = ("if", "then", "else", "not")
"""Their schemas apply to the same value, and so may form a circle, like `CHOICES`."""
CHOICES: Final = ("allOf", "anyOf", "oneOf")
_REFERENCES: Final = ("$ref", "$dynamicRef")
_SHAPING: Final = (b'"pattern":', b'"patternProperties":', b'"$ref":', b'"$dynamicRef":')
"""A schema without these has no pattern and no reference."""
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")
_CONTAINERS: Final = (dict, list)
_SCHEMA_TYPES: Final = (dict, bool)
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
TYPE_NAMES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")
_PLACE_CHARS_MAX: Final = 128
ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}
MISSING: Final = object()
"""Target of a pointer to nothing; null is something."""


@dataclass(frozen=True, slots=True)
class SchemaBounds:
    """Bounds of a schema that binds the output; depth counts objects and arrays."""

    schema_bytes_max: int = 256 * 1024
    schema_depth_max: int = 32
    pattern_chars_max: int = 1024


def size_fault(schema: Schema, limits: SchemaBounds) -> str | None:
    return _length_fault(orjson.dumps(schema), limits)


def schema_fault(schema: Schema, limits: SchemaBounds, *, of_objects: bool) -> str | None:
    spelled = orjson.dumps(schema)
    return (
        _length_fault(spelled, limits)
        or _depth_fault(schema, spelled, limits)
        or _shape_fault(schema, spelled, limits)
        or form_fault(schema)
        or (_root_fault(schema) if of_objects else None)
    )


def _length_fault(spelled: bytes, limits: SchemaBounds) -> str | None:
    if len(spelled) > limits.schema_bytes_max:
        return f"it has {len(spelled)} bytes. Expected at most {limits.schema_bytes_max} bytes."
    return None


def _depth_fault(schema: Schema, spelled: bytes, limits: SchemaBounds) -> str | None:
    depth_max = limits.schema_depth_max
    # Most schemas have fewer brackets than may be open at once.
    if spelled.count(b"{") + spelled.count(b"[") > depth_max and _depth(schema) > depth_max:
        return (
            f"it is nested too deeply. Expected at most {depth_max} levels of objects and arrays."
        )
    return None


def _root_fault(schema: Schema) -> str | None:
    kind = schema.get("type")
    if kind == "object":
        return None
    shown_kind = shown(str(kind))
    return f"""schema must be a JSON Schema of 'type: "object"', got 'type: "{shown_kind}"'."""


def _shape_fault(schema: Schema, spelled: bytes, limits: SchemaBounds) -> str | None:
    if not any(keyword in spelled for keyword in _SHAPING):
        return None
    schemas = list(subschemas(schema))
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
    # Level by level, because schemas may nest deeper than Python recurses.
    depth = 0
    level: list[Any] = [schema]
    while level:
        depth += 1
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, _CONTAINERS)
        ]
    return depth


def subschemas(root: Schema) -> Iterator[Schema]:
    # The root, and every schema in it or referred to by it, once.
    seen: set[int] = set()
    waiting: list[object] = [root]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        for keyword, value in part.items():
            if keyword in _SUBSCHEMAS:
                waiting += [inner for inner, _ in _members((), keyword, value)]
        waiting += [at_pointer(root, reference) for reference in _references(part)]


def _references(part: Schema) -> Iterator[str]:
    for key in _REFERENCES:
        if isinstance(reference := part.get(key), str):
            yield reference


def at_pointer(root: object, reference: str) -> object:
    """Return the target of a JSON Pointer (RFC 6901) in a fragment, or `MISSING`."""
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
    for python_type, names in _VALUE_TYPES:
        if isinstance(value, python_type):
            return names
    return _NUMBER if isinstance(value, float) and not value.is_integer() else _WHOLE_NUMBER


def object_schema(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def as_dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def is_one_of(value: object, types: Collection[str]) -> bool:
    return not types or not types_of(value).isdisjoint(types)


def objects_in(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    waiting: list[Any] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def patterns_in(root: dict[str, Any]) -> set[str]:
    patterns: set[str] = set()
    for node in objects_in(root):
        patterns.update(as_dict(node.get("patternProperties")))
        if isinstance(pattern := node.get("pattern"), str):
            patterns.add(pattern)
    return patterns


def count_references(root: dict[str, Any]) -> int:
    return sum(isinstance(node.get("$ref"), str) for node in objects_in(root))


def _pattern_fault(part: Schema, limits: SchemaBounds) -> str | None:
    for pattern in (part.get("pattern"), *as_dict(part.get("patternProperties"))):
        if isinstance(pattern, str) and len(pattern) > limits.pattern_chars_max:
            return (
                f"a pattern in it has {len(pattern)} characters. Expected at most "
                f"{limits.pattern_chars_max} characters."
            )
    return None


def _reference_fault(root: Schema, part: Schema, targets: dict[str, Schema]) -> str | None:
    for reference in _references(part):
        if not _is_schema(_target(root, reference, targets)):
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
    # Remove schemas that depend on no remaining one, until none is left or only circles are.
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
    others: list[object] = [_target(root, reference, targets) for reference in _references(part)]
    others += [part.get(key) for key in BESIDE]
    for key in CHOICES:
        others += as_list(part.get(key))
    yield from (id(other) for other in others if isinstance(other, dict))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return is_whole and not isinstance(value, bool) and value >= 0


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_schema(value: Any) -> bool:
    return isinstance(value, _SCHEMA_TYPES)


def _is_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _is_type(value: Any) -> bool:
    if not isinstance(value, list):
        return value in TYPE_NAMES  # a tuple: the value need not be hashable
    return bool(value) and all(name in TYPE_NAMES for name in value)


def _is_map_of(is_member: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(is_member, value.values()))


_TEXT: Final[Form] = ("a string", lambda value: isinstance(value, str))
_FLAG: Final[Form] = ("a boolean", lambda value: isinstance(value, bool))
_COUNT: Final[Form] = ("an integer that is not negative", _is_count)
_BOUND: Final[Form] = ("a number", _is_number)
_LIMIT: Final[Form] = ("a number", lambda value: _is_number(value) or isinstance(value, bool))
_SCHEMA: Final[Form] = ("a schema: an object or a boolean", _is_schema)
_SCHEMAS: Final[Form] = ("an array of one or more schemas", _is_schemas)
_MAP: Final[Form] = ("an object of schemas", _is_map_of(_is_schema))

_FORMS: Final[Mapping[str, Form]] = {
    "type": (f"one or several of {', '.join(TYPE_NAMES)}", _is_type),
    "enum": (
        "an array of one or more values",
        lambda value: isinstance(value, list) and value != [],
    ),
    "examples": ("an array", lambda value: isinstance(value, list)),
    "required": ("an array of strings", _is_texts),
    "multipleOf": ("a number above 0", lambda value: _is_number(value) and value > 0),
    "items": ("a schema", lambda value: _is_schema(value) or _is_schemas(value) or value == []),
    "dependentRequired": ("an object of arrays of strings", _is_map_of(_is_texts)),
    "dependencies": (
        "an object of schemas or arrays of strings",
        _is_map_of(lambda value: _is_schema(value) or _is_texts(value)),
    ),
    **dict.fromkeys(("minimum", "maximum"), _BOUND),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _LIMIT),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _COUNT),
    **dict.fromkeys(("minProperties", "maxProperties", "minContains", "maxContains"), _COUNT),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _FLAG),
    **dict.fromkeys(("title", "description", "pattern", "format", "$comment"), _TEXT),
    **dict.fromkeys(("$id", "$schema", "$ref", "$dynamicRef", "$anchor", "$dynamicAnchor"), _TEXT),
    **dict.fromkeys(("contentEncoding", "contentMediaType"), _TEXT),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _SCHEMAS),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions"), _MAP),
    "dependentSchemas": _MAP,
    **dict.fromkeys(("additionalItems", "additionalProperties", "contains", "not"), _SCHEMA),
    **dict.fromkeys(("if", "then", "else", "propertyNames", "contentSchema"), _SCHEMA),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), _SCHEMA),
}
_OF_SCHEMAS: Final = frozenset(
    keyword for keyword, form in _FORMS.items() if form in {_SCHEMA, _SCHEMAS, _MAP}
) | {"items", "dependencies"}
_SUBSCHEMAS: Final = _OF_SCHEMAS - {"dependencies"}
"""Keywords of 2020-12 that hold schemas."""
_FORM_MAPS: Final = frozenset(keyword for keyword, form in _FORMS.items() if form is _MAP) | {
    "dependencies"
}


def form_fault(schema: Schema) -> str | None:
    waiting: list[tuple[Any, Path]] = [(schema, ())]
    while waiting:
        part, path = waiting.pop()
        if not isinstance(part, dict):
            continue
        for keyword, value in part.items():
            form = _FORMS.get(keyword)
            if form is None:
                continue
            words, is_formed = form
            if not is_formed(value):
                return f"'{_pointer((path, keyword))}' is not {words}."
            if keyword in _OF_SCHEMAS:
                waiting += _members((path, keyword), keyword, value)
    return None


def _members(path: Path, keyword: str, value: Any) -> list[tuple[Any, Path]]:
    if isinstance(value, list):
        return [(one, (path, index)) for index, one in enumerate(value)]
    if keyword in _FORM_MAPS and isinstance(value, dict):
        return [(one, (path, name)) for name, one in value.items()]
    return [(value, path)]


def _pointer(path: Path) -> str:
    # A long path is cut at its beginning, because its end says more.
    steps: list[str] = []
    while path:
        path, step = path
        steps.append(f"/{shown(str(step))}")
    place = f"#{''.join(reversed(steps))}"
    return place if len(place) <= _PLACE_CHARS_MAX else f"...{place[-_PLACE_CHARS_MAX:]}"
