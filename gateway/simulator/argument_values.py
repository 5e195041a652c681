"""Arguments of calls, valid by the TypeScript that describes tools in a prompt.

What cannot be read becomes the schema of anything, or an absent property; line breaks and unescaped
quotes in descriptions do occur, and are read.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Final

from gateway.constraints.schemas import at_pointer

Schema = dict[str, Any]

TYPE_DEPTH_MAX: Final = 64
_TYPE: Final = re.compile(r"^type (\S+) = \((?:_: (?=\S)|\) => any;)", re.MULTILINE)
_BLANK: Final = re.compile(r"(?:\s+|//[^\n]*)*")
_KEY: Final = re.compile(r"""("(?:\\.|[^"\\\n])*"|[^\s:?{}|,;"]+)(\??)\s*:""")
_INDEX: Final = re.compile(r"\[key: string\]\s*:")
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_NUMBER_LITERAL: Final = re.compile(
    r"-?(?:0|[1-9][0-9]{0,307})(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?"
)
_STRING: Final = re.compile(r'"([^\n]*?)"(?=\s*(?:[|,;\])}>\[]|//|\n|\Z))')
_LINE: Final = re.compile(r"[^\n]*\n?")
_NAMED: Final[dict[str, Schema]] = {
    "string": {"type": "string"},
    "number": {"type": "number"},
    "integer": {"type": "integer"},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "object": {"type": "object"},
    "true": {"const": True},
    "false": {"const": False},
}


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    parameters: Schema


def tools_of(message: str, namespace: str = "functions") -> list[Tool]:
    """Return the tools of a namespace in a developer's or system message.

    The last one of that name counts: instructions before it may quote one.
    """
    begin, end = f"namespace {namespace} {{", f"}} // namespace {namespace}"
    whole = rf"^{re.escape(begin)}$(.*?)^{re.escape(end)}$"
    namespaces = re.findall(whole, message, re.MULTILINE | re.DOTALL)
    if not namespaces:
        return []
    text = namespaces[-1]
    return [_tool(text, match) for match in _TYPE.finditer(text)]


def _tool(text: str, match: re.Match[str]) -> Tool:
    above = text[: match.start()].rpartition("\n\n")[2]
    description = "\n".join(
        line.removeprefix("//").removeprefix(" ") for line in above.splitlines()
    )
    takes_nothing = match[0].endswith("any;")
    parameters = {"type": "object"} if takes_nothing else _Reader(text, match.end()).union(0)
    return Tool(name=match[1], description=description, parameters=parameters)


class _Reader:
    """Parser by recursive descent; `position` only ever grows, so it ends."""

    def __init__(self, text: str, position: int) -> None:
        self._text = text
        self._position = position

    def union(self, depth: int) -> Schema:
        leading = self._accept("|")
        members = [self._postfix(depth)]
        while self._accept("|"):
            members.append(self._postfix(depth))
        if len(members) == 1:
            return members[0]
        return _array_of_union(members) if not leading else {"anyOf": members}

    def _postfix(self, depth: int) -> Schema:
        schema = self._primary(depth)
        while self._accept("[]"):
            schema = {"type": "array", "items": schema}
        return schema

    def _primary(self, depth: int) -> Schema:
        if depth > TYPE_DEPTH_MAX:
            return {}
        if self._accept("{"):
            return self._object(depth)
        if self._accept("["):
            return {"type": "array", "prefixItems": self._list("]", depth)}
        if self._accept("("):
            return self._list(")", depth)[0]
        if word := self._match(_WORD):
            return self._generic(word[0], depth)
        return self._literal()

    def _literal(self) -> Schema:
        if text := self._match(_STRING):
            return {"const": _unescape(text[1])}
        if number := self._match(_NUMBER_LITERAL):
            return {"const": json.loads(number[0])}
        return {}

    def _generic(self, name: str, depth: int) -> Schema:
        if not self._accept("<"):
            return dict(_NAMED.get(name, {}))
        arguments = self._list(">", depth)
        if name == "Array":
            return {"type": "array", "items": arguments[0]}
        if name == "Record":
            return {"type": "object", "additionalProperties": arguments[-1]}
        return {}

    def _list(self, end: str, depth: int) -> list[Schema]:
        # Takes `end`, too; at least one type.
        members = [self.union(depth + 1)]
        while self._accept(","):
            members.append(self.union(depth + 1))
        self._accept(end)
        return members

    def _object(self, depth: int) -> Schema:
        properties: dict[str, Schema] = {}
        required: list[str] = []
        schema: Schema = {"type": "object", "properties": properties, "required": required}
        while not self._accept("}") and self._position < len(self._text):
            if self._match(_INDEX):
                schema["additionalProperties"] = self.union(depth + 1)
                self._accept(",")
                continue
            key = self._match(_KEY)
            if key is None:
                self._match(_LINE)
                continue
            name = _unescape(key[1][1:-1]) if key[1].startswith('"') else key[1]
            properties[name] = self.union(depth + 1)
            if not key[2]:
                required.append(name)
            self._accept(",") or self._accept(";")
        return schema

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        self._skip_blank()
        match = pattern.match(self._text, self._position)
        if match:
            self._position = match.end()
        return match

    def _accept(self, mark: str) -> bool:
        self._skip_blank()
        is_next = self._text.startswith(mark, self._position)
        self._position += len(mark) * is_next
        return is_next

    def _skip_blank(self) -> None:
        blank = _BLANK.match(self._text, self._position)
        self._position = blank.end() if blank else self._position


def _array_of_union(members: list[Schema]) -> Schema:
    # `"a" | "b"[]` and `string | null[]` mean an array of the union, though without parentheses.
    # openai-harmony writes them so; read strictly they would be types that no schema has.
    last = members[-1].get("items")
    if last is not None and ("const" in last or last == {"type": "null"}):
        return {"type": "array", "items": {"anyOf": [*members[:-1], last]}}
    return {"anyOf": members}


def _unescape(literal: str) -> str:
    try:
        return str(json.loads(f'"{literal}"'))
    except ValueError:
        return literal


DEPTH_MAX: Final = 24
"""Beyond it a value is empty: the schema has no finite one."""
DEPTH_SHORT: Final = 4
"""From here on the shortest way out is taken: null, the empty array."""
SIZE_MAX: Final = 10_000
"""Members and characters; a client's `minItems` has no maximum."""
_QUOTED: Final = re.compile(r"""["'`“]([^"'`“”]{1,200})["'`”]""")
_PLACE: Final = re.compile(r"\b(?:in|at|for|to|from)\s+((?:[^\W\d_a-z][\w'.\-]*\s?)+)")
_NUMBER: Final = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?")
_FORMATS: Final = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "someone@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_STRING_CHARS_MAX: Final = 120


def make_value(schema: Schema, request: str) -> Any:
    # The references of `schema` resolve within it; `request` is the user's message. Deterministic.
    # `pattern` and `not` are not honoured, nor are bounds that need more than `SIZE_MAX`.
    return _Maker(schema, request).value(schema, "", 0)


def make_arguments(schema: Schema, request: str) -> dict[str, Any]:
    value = make_value(schema, request)
    return value if isinstance(value, dict) else {}


class _Maker:
    def __init__(self, root: Schema, request: str) -> None:
        self._root = root
        self._request = request
        # Not as JSON, which has no leading zeros.
        numbers = _NUMBER.findall(_plain(request))
        self._numbers = [float(one) if "." in one else int(one) for one in numbers]
        self._names = [*_QUOTED.findall(request), *_PLACE.findall(request)]
        self._room = SIZE_MAX
        self._made = 0
        self._resolved = 0

    def value(self, schema: Any, key: str, depth: int) -> Any:
        schema = self._resolve(schema)
        self._made += 1
        if depth > DEPTH_MAX or self._made > SIZE_MAX:
            return {}
        if constants := [schema["const"]] if "const" in schema else schema.get("enum"):
            return self._choose(constants)
        if members := schema.get("anyOf") or schema.get("oneOf"):
            return self._one_of(members, key, depth)
        return self._typed(_type_of(schema), schema, key, depth)

    def _resolve(self, schema: Any, depth: int = 0) -> Schema:
        # True and False stand for the schema of anything; so does one that leads back to itself.
        for _ in range(DEPTH_MAX):
            self._resolved += 1
            if not isinstance(schema, dict) or depth > DEPTH_MAX or self._resolved > SIZE_MAX:
                return {}
            if "$ref" in schema:
                schema = at_pointer(self._root, str(schema["$ref"]))
            elif "allOf" in schema:
                schema = self._merge(schema, depth)
            else:
                return schema
        return {}

    def _merge(self, schema: Schema, depth: int) -> Schema:
        merged = {key: value for key, value in schema.items() if key != "allOf"}
        for member in schema["allOf"]:
            for key, value in self._resolve(member, depth + 1).items():
                merged[key] = _joined(merged.get(key), value)
        return merged

    def _typed(self, kind: str, schema: Schema, key: str, depth: int) -> Any:
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, key, depth)
            case "integer" | "number":
                return self._number(schema)
            case "boolean" | "null":
                return True if kind == "boolean" else None
            case _:
                return self._string(schema, key)

    def _one_of(self, members: list[Any], key: str, depth: int) -> Any:
        resolved = list(map(self._resolve, members))
        constants = [member["const"] for member in resolved if "const" in member]
        if constants:
            return self._choose(constants)
        kinds = [_type_of(member) for member in resolved]
        flat = [i for i, kind in enumerate(kinds) if kind not in {"object", "array", "null"}]
        if not flat and "null" in kinds and depth >= DEPTH_SHORT:
            return None
        some = [i for i, kind in enumerate(kinds) if kind != "null"]
        return self.value(resolved[(flat or some or [0])[0]], key, depth + 1)

    def _choose(self, values: list[Any]) -> Any:
        # The first that the user mentions, else the first that is not null.
        mentioned = [
            value for value in values if isinstance(value, str) and self._mentions(value, 0)
        ]
        return next((value for value in [*mentioned, *values] if value is not None), None)

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        properties = schema.get("properties") or {}
        required = schema.get("required") or []
        wanted = [key for key in properties if key in required or self._mentions(key, depth)]
        missing = [key for key in required if key not in properties]
        return {
            key: self.value(properties.get(key, {}), key, depth + 1) for key in [*wanted, *missing]
        }

    def _array(self, schema: Schema, key: str, depth: int) -> list[Any]:
        if "prefixItems" in schema:
            return [self.value(item, key, depth + 1) for item in schema["prefixItems"]]
        least = int(schema.get("minItems", 0))
        wanted = max(least, 1) if depth < DEPTH_SHORT else least
        room = self._room
        count = min(wanted, int(schema.get("maxItems", wanted)), room)
        self._room = room // max(count, 1)  # what is in a member is there `count` times
        first = self.value(schema.get("items", {}), key, depth + 1) if count else None
        self._room = room
        if schema.get("uniqueItems") and isinstance(first, str):
            return [first, *(f"{first} {number}" for number in range(2, count + 1))]
        return [first] * count

    def _number(self, schema: Schema) -> int | float:
        # The first number of the user that fits, else 1, else one within the bounds.
        whole = _type_of(schema) == "integer"
        for number in [*self._numbers, 1, 0, *_candidates(schema)]:
            if _fits(number, schema) and (not whole or number == int(number)):
                return int(number) if number == int(number) else number
        return 1

    def _string(self, schema: Schema, key: str) -> str:
        if schema.get("format") in _FORMATS:
            return _FORMATS[schema["format"]]
        text = self._text_for(key)
        least = min(int(schema.get("minLength", 0)), self._room)
        most = int(schema.get("maxLength", max(least, _STRING_CHARS_MAX)))
        return text[:most].ljust(least, "x")

    def _text_for(self, key: str) -> str:
        stated = key and re.search(rf"\b{re.escape(key)}\s*(?:=|:|is)\s*(\S+)", self._request)
        if stated:
            return stated[1].strip(".,;\"'")
        if self._names:
            return str(self._names[0]).strip().rstrip(".,;!?")
        return self._request or "example"

    def _mentions(self, name: str, depth: int) -> bool:
        match = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", self._request, re.IGNORECASE)
        return match is not None and depth < DEPTH_SHORT


def _plain(text: str) -> str:
    return _QUOTED.sub(" ", text)[:10_000]


def _type_of(schema: Schema) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        return next((str(one) for one in kind if one != "null"), "null")
    if kind is not None:
        return str(kind)
    if "properties" in schema or "required" in schema:
        return "object"
    return "array" if "items" in schema else "string"


def _joined(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return old | new
    if isinstance(old, list) and isinstance(new, list):
        return [*old, *(one for one in new if one not in old)]
    return new


def _candidates(schema: Schema) -> list[float]:
    # Numbers at, just inside of and between the bounds, and the multiples next to them.
    bounds = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    ends = [schema[bound] for bound in bounds if bound in schema]
    near = [one for end in ends for one in (end, math.floor(end) + 1, math.ceil(end) - 1)]
    between = [sum(ends) / len(ends)] if ends else []
    step = schema.get("multipleOf")
    multiples = (
        [end // step * step + step * n for end in ends or [0] for n in (0, 1)] if step else []
    )
    return [*near, *between, *multiples]


def _fits(number: float, schema: Schema) -> bool:
    step = schema.get("multipleOf")
    return (
        number >= schema.get("minimum", -math.inf)
        and number <= schema.get("maximum", math.inf)
        and number > schema.get("exclusiveMinimum", -math.inf)
        and number < schema.get("exclusiveMaximum", math.inf)
        and (step is None or number % step == 0)
    )
