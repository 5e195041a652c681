"""What is looked at in a JSON Schema before anything compiles it.

A schema that binds the output is given to a validator and to the grammar compilers of backends.
None of them may be made to fetch anything, to recurse without end, or to work for minutes.
Every keyword must have the form that JSON Schema 2020-12 gives it; of drafts 4 to 7 this admits
what clients still send: a list of `items`, `additionalItems`, `dependencies`, and booleans for
`exclusiveMinimum` and `exclusiveMaximum`. Keywords that nobody knows may hold anything.
Faults are told as the part of a sentence that follows "Invalid schema for ...:".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import orjson

from gateway.pacing import paced
from gateway.protocol.json_body import inside
from gateway.protocol.refusals import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gateway.protocol.limits import InputLimits

    Schema = Mapping[str, Any]
    Form = tuple[str, Callable[[Any], bool]]

TYPE_NAMES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")
_PLACE_CHARS_MAX: Final = 128


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return is_whole and not isinstance(value, bool) and value >= 0


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    # One after the other: what is in the list need not be hashable.
    return bool(names) and all(name in TYPE_NAMES for name in names)


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
"""What a keyword holds, in words, and whether a value is that."""
_ONE: Final = frozenset(key for key, form in _FORMS.items() if form is _SCHEMA) | {"items"}
_LISTS: Final = frozenset(key for key, form in _FORMS.items() if form is _SCHEMAS) | {"items"}
_MAPS: Final = frozenset(key for key, form in _FORMS.items() if form is _MAP)
"""Keywords that hold one schema, a list of them, and an object of them."""
_OF_SCHEMAS: Final = _ONE | _LISTS | _MAPS | {"dependencies"}
_BESIDE: Final = ("if", "then", "else", "not")
_CHOICES: Final = ("allOf", "anyOf", "oneOf")
"""Schemas of these look at the same value, and so may lead in a circle."""
_REFERENCES: Final = frozenset({"$ref", "$dynamicRef"})
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")
_INDEX_CHARS_MAX: Final = 9
_MISSING: Final = object()


def schema_fault(schema: Schema, limits: InputLimits, *, of_objects: bool) -> str | None:
    """Why output cannot be held to it, None if it can. `of_objects`: it must be one of objects."""
    fault = size_fault(schema, limits) or shape_fault(schema, limits) or form_fault(schema)
    if fault is None and of_objects and schema.get("type") != "object":
        found = shown(str(schema.get("type")))
        return f"""schema must be a JSON Schema of 'type: "object"', got 'type: "{found}"'."""
    return fault


def size_fault(schema: Schema, limits: InputLimits) -> str | None:
    """Why it is too large, None if it is not."""
    size = len(orjson.dumps(schema))
    if size > limits.schema_bytes_max:
        return f"it has {size} bytes. Expected at most {limits.schema_bytes_max} bytes."
    return None


def form_fault(schema: Schema) -> str | None:
    """The first keyword of another form, None if there is none."""
    for place, part in paced(_placed(schema)):
        for keyword, value in part.items():
            form = _FORMS.get(keyword)
            if form is not None and not form[1](value):
                return f"'{_short(f'{place}/{keyword}')}' is not {form[0]}."
    return None


def _short(place: str) -> str:
    """The end of a JSON pointer tells more than its beginning."""
    return place if len(place) <= _PLACE_CHARS_MAX else f"...{place[-_PLACE_CHARS_MAX:]}"


def _placed(root: Schema) -> Iterator[tuple[str, Schema]]:
    """The schema and all in it, with their JSON pointers."""
    waiting: list[tuple[str, Any]] = [("#", root)]
    while waiting:
        place, part = waiting.pop()
        if isinstance(part, dict):
            yield place, part
            for keyword in filter(_OF_SCHEMAS.__contains__, part):
                waiting += _members(f"{place}/{keyword}", keyword, part[keyword])


def _members(place: str, keyword: str, value: Any) -> list[tuple[str, Any]]:
    """The schemas that a keyword holds."""
    if isinstance(value, list):
        return [(f"{place}/{index}", one) for index, one in enumerate(value)]
    if keyword in _MAPS | {"dependencies"} and isinstance(value, dict):
        return [(f"{place}/{shown(name)}", one) for name, one in value.items()]
    return [(place, value)]


def shape_fault(schema: Schema, limits: InputLimits) -> str | None:
    """Why it cannot be compiled within bounds, None if nothing speaks against it."""
    if _depth(schema) > limits.schema_depth_max:
        return (
            f"it is nested too deeply. Expected at most {limits.schema_depth_max} levels of "
            "objects and arrays."
        )
    schemas = list(paced(_schemas(schema)))
    referring = [part for part in schemas if "$ref" in part or "$dynamicRef" in part]
    targets = _targets(schemas) if referring else {}
    for part in schemas:
        fault = _pattern_fault(part, limits) or (
            _reference_fault(schema, part, targets) if referring else None
        )
        if fault is not None:
            return fault
    return _circle_fault(schema, schemas, targets) if referring else None


def _targets(schemas: list[Schema]) -> dict[str, Schema]:
    """Schemas by the references that lead to their anchors."""
    return {
        f"#{part[key]}": part
        for part in schemas
        for key in _ANCHORS
        if isinstance(part.get(key), str)
    }


def _depth(schema: Schema) -> int:
    """Nested objects and arrays, the schema itself included; level by level, nothing recurses."""
    depth = 0
    level: list[Any] = [schema]
    while level:
        depth += 1
        level = inside(level)
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
        for key in filter(_OF_SCHEMAS.__contains__, part):
            inner = part[key]
            if isinstance(inner, list):
                waiting += inner if key in _LISTS else ()
            elif key in _MAPS and isinstance(inner, dict):
                waiting += inner.values()
            elif key in _ONE:
                waiting.append(inner)
        waiting += [_at_pointer(root, reference) for reference in _references(part)]


def _references(part: Schema) -> list[str]:
    found = _REFERENCES.intersection(part)
    return [part[key] for key in sorted(found) if isinstance(part[key], str)] if found else []


def _at_pointer(root: Schema, reference: str) -> object:
    """What a JSON Pointer (RFC 6901) in a fragment leads to."""
    path = unquote(reference).removeprefix("#")
    place: object = root
    for step in path.split("/")[1:] if path.startswith("/") else [path] * bool(path):
        key = step.replace("~1", "/").replace("~0", "~")
        match place:
            case dict():
                place = place.get(key, _MISSING)
            case list() if (
                len(key) <= _INDEX_CHARS_MAX and key.isdecimal() and int(key) < len(place)
            ):
                place = place[int(key)]
            case _:
                return _MISSING
    return place


def _pattern_fault(part: Schema, limits: InputLimits) -> str | None:
    if "pattern" not in part and "patternProperties" not in part:
        return None
    properties = part.get("patternProperties")
    for pattern in (part.get("pattern"), *(properties if isinstance(properties, dict) else ())):
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
        return _MISSING
    return (
        targets.get(reference, _MISSING) if reference in targets else _at_pointer(root, reference)
    )


def _circle_fault(root: Schema, schemas: list[Schema], targets: dict[str, Schema]) -> str | None:
    """A schema that says of a value no more than that it must satisfy the schema.

    Schemas are taken away as long as there is one that leans on none that is left.
    """
    leans = {id(part): set(_beside(root, part, targets)) for part in paced(schemas)}
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
