"""Whether every keyword of a JSON Schema has the form that it must have (JSON Schema 2020-12).

That of an answer which is not strict has to be one, too: what it says is read when the answer
begins, and OpenAI refuses it as well. Of drafts 4 to 7 this admits what clients still send: a list
of `items`, `additionalItems`, `dependencies`, and booleans for `exclusiveMinimum` and
`exclusiveMaximum`.

Keywords that nobody knows may hold anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.errors import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Schema = Mapping[str, Any]
    Form = tuple[str, Callable[[Any], bool]]
    Place = tuple[str, Any]

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
_OF_SCHEMAS: Final = frozenset(
    keyword for keyword, form in _FORMS.items() if form in {_SCHEMA, _SCHEMAS, _MAP}
) | {"items", "dependencies"}
_MAPS: Final = frozenset(keyword for keyword, form in _FORMS.items() if form is _MAP) | {
    "dependencies"
}


def form_fault(schema: Schema) -> str | None:
    """The first keyword of another form, None if there is none."""
    for place, part in _schemas(schema):
        for keyword, value in part.items():
            form = _FORMS.get(keyword)
            if form is not None and not form[1](value):
                return f"'{_short(f'{place}/{keyword}')}' is not {form[0]}."
    return None


def _short(place: str) -> str:
    """The end of a JSON pointer tells more than its beginning."""
    return place if len(place) <= _PLACE_CHARS_MAX else f"...{place[-_PLACE_CHARS_MAX:]}"


def _schemas(root: Schema) -> Iterator[Place]:
    """The schema and all in it, with their JSON pointers; what a fault is in is not looked into."""
    waiting: list[Place] = [("#", root)]
    while waiting:
        place, part = waiting.pop()
        if isinstance(part, dict):
            yield place, part
            inner = ((f"{place}/{key}", key, value) for key, value in part.items())
            waiting += [
                found
                for at, key, value in inner
                if key in _OF_SCHEMAS
                for found in _members(at, key, value)
            ]


def _members(place: str, keyword: str, value: Any) -> list[Place]:
    """The schemas that a keyword holds."""
    if isinstance(value, list):
        return [(f"{place}/{index}", one) for index, one in enumerate(value)]
    if keyword in _MAPS and isinstance(value, dict):
        return [(f"{place}/{shown(name)}", one) for name, one in value.items()]
    return [(place, value)]
