"""Arguments that a model writes as tags with a key and a value, put together as a JSON object.

A value has no type (`5` may be a number or a text): the first type of its schema that fits counts,
in the order null, integer, number, boolean, object, array, string. A value that may be text is a
number only if the number spells the same. Text streams, any other value waits for its end.
"""

from __future__ import annotations

import json
import math
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gateway.constraints.schemas import CHOICES, TYPE_NAMES, at_pointer
from gateway.models.json_values import DEPTH_MAX, ValueScanner, escaped, no_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

STRING: Final = frozenset({"string"})
ANY: Final = frozenset(TYPE_NAMES)
REFERENCES_MAX: Final = 16
"""Nesting of `$ref`s, `anyOf`s and the like that are followed."""
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_LITERAL: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
"""A number of JSON."""
INTEGER_DIGITS_MAX: Final = 4000
"""Python converts no longer ones."""
_ESCAPED: Final = r"""\\(?:[\\'"nrtbf]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})"""
_PYTHON: Final = re.compile(
    rf"""'(?:[^'\\\n]|{_ESCAPED})*+'|"(?:[^"\\\n]|{_ESCAPED})*+"|(?:True|False|None)\b"""
    r"""|[-+.0-9eE]+|[\[\]{}:]|,(?P<last>(?=[ \t\r\n]*[\]}]))?|[ \t\r\n]+"""
)
"""Literals of Python, with the escapes that `repr` writes."""
_PYTHON_SIGN: Final = re.compile(r"""\\x|\\.|\"""")
_AS_JSON: Final[Mapping[str, str]] = {
    "True": "true",
    "False": "false",
    "None": "null",
    "\\x": "\\u00",
    "\\'": "'",
    '"': '\\"',
}
_LITERALS: Final = frozenset({"integer", "number", "boolean"})
_TYPE_NAMES: Final[Mapping[type, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


class TaggedArguments:
    """Writer of one object, whose values come between `begin` and `end`. Where the schema names no
    type it is one of the `untyped`.
    """

    def __init__(self, schema: Mapping[str, Any], untyped: frozenset[str] = STRING) -> None:
        self._schema = schema
        self._untyped = untyped
        self._is_empty = True
        self._is_text = False
        self._types = STRING
        self._value: list[str] = []

    def begin(self, key: str) -> str:
        front = "{" if self._is_empty else ", "
        self._is_empty = False
        properties = self._schema.get("properties")
        schema = properties.get(key) if isinstance(properties, dict) else None
        self._types = types_of(schema, self._schema, self._untyped)
        self._is_text, self._value = self._types == STRING, []
        quote = '"' if self._is_text else ""
        return f"{front}{_quoted(key)}: {quote}"

    def text(self, text: str) -> str:
        if self._is_text:
            return _quoted(text)[1:-1]
        self._value.append(text)
        return ""

    def end(self) -> str:
        if self._is_text:
            self._is_text = False
            return '"'
        return as_json("".join(self._value), self._types)

    def finish(self) -> str:
        return "{}" if self._is_empty else "}"


def types_of(
    schema: Any, root: Mapping[str, Any], untyped: frozenset[str] = STRING
) -> frozenset[str]:
    """Return the types that a JSON Schema and its alternatives name, else `untyped`."""
    return frozenset(_types(schema, root, REFERENCES_MAX)) or untyped


def _types(schema: Any, root: Mapping[str, Any], left: int) -> Iterator[str]:
    if not isinstance(schema, dict) or not left:
        return
    named = schema.get("type")
    for one in named if isinstance(named, list) else [named]:
        if isinstance(one, str):
            yield one
    values = schema.get("enum")
    for value in values if isinstance(values, list) else ():
        yield _TYPE_NAMES[type(value)]
    if "const" in schema:
        yield _TYPE_NAMES[type(schema["const"])]
    for choice in CHOICES:
        options = schema.get(choice)
        for option in options if isinstance(options, list) else ():
            yield from _types(option, root, left - 1)
    if isinstance(reference := schema.get("$ref"), str) and reference.startswith("#"):
        yield from _types(at_pointer(root, reference), root, left - 1)


def as_json(value: str, types: frozenset[str]) -> str:
    is_bound = "string" not in types
    for name, read in _READERS:
        if name not in types or (literal := read(value)) is None:
            continue
        if is_bound or name not in _LITERALS or _says_all(literal, value.strip()):
            return literal
    # It is of none of the types. JSON is passed on as it is: the arguments are checked later.
    other = _nested(value) if is_bound else None
    return _quoted(value) if other is None else other


def _says_all(literal: str, written: str) -> bool:
    if literal in {"true", "false"}:
        return literal == written.lower()
    return literal == written and literal in {_integer(literal), repr(float(literal))}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _null(value: str) -> str | None:
    return "null" if value.strip().lower() == "null" else None


def _integer(value: str) -> str | None:
    digits = value.strip()
    fits = len(digits) <= INTEGER_DIGITS_MAX and _INTEGER.fullmatch(digits)
    return str(int(digits)) if fits else None


def _number(value: str) -> str | None:
    text = value.strip()
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    if _LITERAL.fullmatch(text):
        return text
    return _integer(text) or repr(number)


def _boolean(value: str) -> str | None:
    word = value.strip().lower()
    if word in {"true", "1"}:
        return "true"
    return "false" if word in {"false", "0"} else None


def _nested(value: str) -> str | None:
    # The JSON as written, except control characters in its strings.
    text, scanner = value.strip(), ValueScanner()
    scanner.end(text)
    text = escaped(text, scanner.controls)
    if scanner.deepest > DEPTH_MAX:
        return None
    try:
        json.loads(text, parse_int=_short, parse_float=_finite, parse_constant=no_number)
    except ValueError:
        return None
    return text


def _container(opening: str, value: str) -> str | None:
    text = value.strip()
    if not text.startswith(opening):
        return None
    nested = _nested(text)
    if nested is None and (translated := _from_python(text)) is not None:
        nested = _nested(translated)
    return nested


def _from_python(text: str) -> str | None:
    # Python's own parser is not used: its nesting limit depends on the caller's stack.
    parts: list[str] = []
    at = 0
    while at < len(text):
        if (match := _PYTHON.match(text, at)) is None:
            return None
        at, sign = match.end(), match.group()
        if sign[0] in "'\"":
            content = _PYTHON_SIGN.sub(
                lambda one: _AS_JSON.get(one.group(), one.group()), sign[1:-1]
            )
            parts.append(f'"{content}"')
        elif match["last"] is None:  # no comma behind the last of several
            parts.append(_AS_JSON.get(sign, sign))
    return "".join(parts)


def _short(number: str) -> str:
    if len(number) > INTEGER_DIGITS_MAX:
        raise ValueError("too many digits")
    return number


def _finite(number: str) -> float:
    if math.isfinite(value := float(number)):
        return value
    raise ValueError(number)


_READERS: Final[tuple[tuple[str, Callable[[str], str | None]], ...]] = (
    ("null", _null),
    ("integer", _integer),
    ("number", _number),
    ("boolean", _boolean),
    ("object", partial(_container, "{")),
    ("array", partial(_container, "[")),
)
