"""The JSON texts that a schema describes, as a language.

Objects have their properties in the order of the schema, as the engines write them, then
undescribed ones. Rules that a language cannot express, such as unique items, are left out; then it
is not `exact`.
"""

from __future__ import annotations

import json
import math
from codecs import getincrementaldecoder
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from gateway.constraints.gbnf import (
    LAST,
    NEVER,
    NO_SPACE,
    PLAIN,
    Chain,
    Chars,
    Named,
    Quoted,
    Quotient,
    Space,
    Times,
    UntranslatableGrammar,
    chain,
    either,
    escapes,
    grammar_of,
    inverted,
    language_containing,
    language_of,
    maybe,
    quoted,
    text,
)
from gateway.constraints.schemas import MISSING, at_pointer, is_one_of
from gateway.generation import NOTHING, Ebnf, InOrder, OneOf, Token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.constraints.gbnf import Language, Rules
    from gateway.generation import Node


Schema = dict[str, Any]

DEPTH_MAX: Final = 100
"""Nesting of schemas, merged ones included."""
SCHEMAS_MAX: Final = 20_000
"""Schemas visited. A reference beside other keywords is merged into them wherever it stands, so a
few that lead to each other twice are any number."""
NAME_CHARS_MAX: Final = 32
"""An undescribed name that shares all of these with a described one is not allowed."""
NESTED_MAX: Final = 8
"""Nesting of groups that tell words apart: engines bound it."""
REPEATED_MAX: Final = 10_000
"""Engines' work grows with the bound of a repetition."""
INTEGER_MAX: Final = 10**20
"""A bound beyond it is left open: a language nests one level for each digit of a bound."""

_SPACE: Final = Space()
_COMMA: Final = Chain((text(","), _SPACE))
"""The white space before it belongs to the preceding value; an empty array has it once."""
_COLON: Final = Chain((_SPACE, text(":"), _SPACE))
_QUOTE: Final = text('"')
_EVERY: Final = ((0, LAST),)
_NUMBER: Final = language_of(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?")
_NATURAL: Final = language_of(r"(0|[1-9][0-9]*)(\.[0-9]+)?")
"""No engine writes a number that has a bound with an exponent."""

_ANY: Final = Named("any")
_CHARACTER: Final = Named("character")
_STRING: Final = Chain((_QUOTE, Times(_CHARACTER, 0, None), _QUOTE))

_ZERO: Final = ord("0")

_LITERALS: Final = {"boolean": either(text("true"), text("false")), "null": text("null")}
_TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")
_KEYWORDS: Final = {
    "object": {"properties", "required", "additionalProperties", "patternProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
}
_BOUNDS: Final[set[str]] = set().union(*_KEYWORDS.values())
_BINDING: Final = {"type", "enum", "const", "anyOf", "oneOf", "$ref", *_BOUNDS}
_LEFT_OPEN: Final = {
    "not",
    "if",
    "minProperties",
    "maxProperties",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedProperties",
    "contains",
    "uniqueItems",
    "unevaluatedItems",
    "multipleOf",
    "$dynamicRef",
}
_RESTS: Final = (
    ("additionalProperties", "properties"),
    ("additionalProperties", "patternProperties"),
    ("items", "prefixItems"),
)
_SIZES: Final = ((0xF0, 4), (0xE0, 3), (0xC0, 2))
"""Size of a UTF-8 character whose first byte is at least this."""
_FOLLOWING: Final = range(0x80, 0xC0)
_SECOND: Final = {0xE0: range(0xA0, 0xC0), 0xF0: range(0x90, 0xC0), 0xF4: range(0x80, 0x90)}
"""By first byte, where it is not `_FOLLOWING`."""
_HALF_SURROGATES: Final = 0xED


class JsonLanguage:
    """Texts of one schema. `exact`: each satisfies it. Raises `UntranslatableGrammar`."""

    def __init__(self, schema: object) -> None:
        self._schema = schema
        self._depth = 0
        self._count = 0
        self._references: dict[str, str] = {}
        self._names: dict[Language, str] = {}
        self.exact = True
        self.rules: Rules = {
            "any": _any_value(),
            "character": either(Chars(PLAIN), chain(text("\\"), escapes(_EVERY))),
        }
        self.root = self._value(schema)

    def _value(self, schema: object) -> Language:
        self._go_deeper("its schema is nested too deeply")
        if isinstance(schema, dict):
            language = self._rule(self._described(schema))
        else:
            language = NEVER if schema is False else _ANY
        self._depth -= 1
        return language

    def _go_deeper(self, fault: str) -> None:
        self._depth += 1
        self._count += 1
        if self._depth > DEPTH_MAX or self._count > SCHEMAS_MAX:
            raise UntranslatableGrammar(fault if self._depth > DEPTH_MAX else "it is too large")

    def _described(self, schema: Schema) -> Language:
        self.exact = self.exact and schema.keys().isdisjoint(_LEFT_OPEN)
        if "$ref" in schema and schema.keys().isdisjoint((_BINDING | {"allOf"}) - {"$ref"}):
            return self._referred(str(schema["$ref"]))
        schema = self._flat(schema)
        self.exact = self.exact and schema.keys().isdisjoint(_LEFT_OPEN)
        for union in ("anyOf", "oneOf"):
            if union in schema:
                # What more than one of the schemas describes would be wrong.
                self.exact = self.exact and (union == "anyOf" or len(schema[union]) == 1)
                outer = {key: value for key, value in schema.items() if key != union}
                return either(*(self._value(self._both(outer, one)) for one in schema[union]))
        types = _types(schema)
        if not types and "type" in schema:
            return NEVER
        if "const" in schema or "enum" in schema:
            values = [schema["const"]] if "const" in schema else schema["enum"]
            is_bound = not schema.keys().isdisjoint(_BOUNDS) or schema.keys() >= {"const", "enum"}
            self.exact = self.exact and not is_bound
            own = types if "type" in schema else ()
            return _any_of([one for one in values if is_one_of(one, own)])
        if not types and schema.keys().isdisjoint(_BINDING):
            return _ANY
        return either(*(self._typed(name, schema) for name in types or _TYPES))

    # References, and schemas that combine others --------------------------------------------------

    def _referred(self, reference: str) -> Language:
        if reference not in self._references:
            name = f"reference-{len(self._references)}"
            self._references[reference] = name
            self.rules[name] = self._value(self._target(reference))
        return Named(self._references[reference])

    def _target(self, reference: str) -> Any:
        if reference != "#" and not reference.startswith("#/"):
            raise UntranslatableGrammar(f"it refers to `{reference[:40]}`")
        target = at_pointer(self._schema, reference)
        if target is MISSING:
            raise UntranslatableGrammar(f"`{reference[:40]}` leads nowhere")
        return target

    def _flat(self, schema: Schema) -> Schema:
        self._go_deeper("its schema refers to itself without an end")
        parts = list(schema.get("allOf", ()))
        if "$ref" in schema:
            parts.append(self._target(str(schema["$ref"])))
        flat = {key: value for key, value in schema.items() if key not in {"$ref", "allOf"}}
        for part in parts:
            flat = self._both(flat, self._flat(part) if isinstance(part, dict) else part)
        self._depth -= 1
        return flat

    def _both(self, first: Schema, second: object) -> Schema:
        # An intersection that cannot be expressed is replaced by a schema that allows more.
        if not isinstance(second, dict):
            return first if second is True else {"enum": []}
        merged = {**second, **first}
        self.exact = self.exact and not (_reaches(first, second) or _reaches(second, first))
        for key in (first.keys() & second.keys()) & (_BINDING | _LEFT_OPEN | {"allOf"}):
            mine, other = first[key], second[key]
            if mine == other:
                continue
            match key:
                case "properties":
                    shared = mine.keys() & other.keys()
                    both = {name: {"allOf": [mine[name], other[name]]} for name in shared}
                    merged[key] = {**mine, **other, **both}
                case "required" | "allOf":
                    merged[key] = [*mine, *other]
                case "type":
                    both_types = _allowed_types(first) & _allowed_types(second)
                    merged[key] = [one for one in _TYPES if one in both_types]
                case _:
                    self.exact = False
        return merged

    # Values of one type -----------------------------------------------------------------------

    def _typed(self, name: str, schema: Schema) -> Language:
        made = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "number": self._number,
            "integer": self._integer,
        }
        return made[name](schema) if name in made else _LITERALS[name]

    def _string(self, schema: Schema) -> Language:
        least, most = _count(schema, "minLength") or 0, _count(schema, "maxLength")
        if "pattern" not in schema:
            return chain(_QUOTE, self._times(_CHARACTER, least, most), _QUOTE)
        self.exact = self.exact and not least and most is None
        return chain(_QUOTE, quoted(language_containing(schema["pattern"])), _QUOTE)

    def _number(self, schema: Schema) -> Language:
        bounds = schema.keys() & _KEYWORDS["number"]
        if bounds == {"minimum"} and not schema["minimum"]:
            return _NATURAL
        self.exact = self.exact and not bounds
        return _NUMBER

    def _integer(self, schema: Schema) -> Language:
        low = [math.ceil(schema["minimum"])] if "minimum" in schema else []
        low += [math.floor(schema["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in schema else []
        high = [math.floor(schema["maximum"])] if "maximum" in schema else []
        high += [math.ceil(schema["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in schema else []
        if any(abs(bound) > INTEGER_MAX for bound in (*low, *high)):
            self.exact = False
            low, high = [], []
        return between(max(low, default=None), min(high, default=None))

    def _array(self, schema: Schema) -> Language:
        least, most = _count(schema, "minItems") or 0, _count(schema, "maxItems")
        first = [self._value(one) for one in schema.get("prefixItems", ())]
        is_longer = most is None or most > len(first)
        other = self._value(schema.get("items", True)) if is_longer else NEVER
        first, other = [_spaced(one) for one in first], _spaced(other)
        rest = self._times(
            chain(_COMMA, other),
            max(0, least - max(len(first), 1)),
            None if most is None else max(0, most - max(len(first), 1)),
        )
        if not first:
            first = [other]
        items: Language = rest
        for at in reversed(range(len(first))):
            is_over = most is not None and at >= most
            item = (
                NEVER
                if is_over
                else chain(first[at] if not at else chain(_COMMA, first[at]), items)
            )
            items = item if at < least else maybe(item)
        return chain(text("["), _SPACE, items, text("]"))

    def _times(self, part: Language, least: int, most: int | None) -> Language:
        # Large bounds are left open, to keep the grammar small.
        if part == NEVER or (most is not None and most < least):
            return NEVER if least else Chain(())
        if least > REPEATED_MAX or (most is not None and most > REPEATED_MAX):
            self.exact = False
            return Times(part, min(least, REPEATED_MAX), None)
        return Times(part, least, most)

    def _object(self, schema: Schema) -> Language:
        properties = dict(schema.get("properties", {}))
        required = dict.fromkeys(schema.get("required", ()))
        other = schema.get("additionalProperties", True)
        # A required property without a schema has that of all undescribed properties.
        properties |= {name: other for name in required if name not in properties}
        members = [
            (_member(name, self._value(one)), name in required) for name, one in properties.items()
        ]
        others = self._others(schema, list(properties), other)
        return chain(text("{"), _SPACE, self._members(members, others), text("}"))

    def _members(self, members: Sequence[tuple[Language, bool]], other: Language) -> Language:
        # Two rules from each member on: one that begins with it, one for after another member.
        following: Language = Times(chain(_COMMA, other), 0, None) if other != NEVER else Chain(())
        beginning = maybe(chain(other, following))
        for member, is_required in reversed(members):
            behind = self._rule(following)
            first, then = chain(member, behind), chain(_COMMA, member)
            beginning = first if is_required else either(first, self._rule(beginning))
            following = chain(then if is_required else maybe(then), behind)
        return beginning

    def _rule(self, language: Language) -> Language:
        # What is written twice is compiled twice, and engines take the square of the time for it.
        if language == NEVER or language == Chain(()) or isinstance(language, Named):
            return language
        if language not in self._names:
            self._names[language] = name = f"part-{len(self._names)}"
            self.rules[name] = language
        return Named(self._names[language])

    def _others(self, schema: Schema, names: list[str], other: object) -> Language:
        patterns = schema.get("patternProperties", {})
        matched = [
            _spaced(chain(_QUOTE, quoted(name), _QUOTE, _COLON, self._value(one)))
            for name, one in ((language_containing(key), value) for key, value in patterns.items())
        ]
        if patterns:
            self.exact = False
        value = self._value(other)
        if value != NEVER:
            matched.append(_spaced(chain(_QUOTE, self._except(names), _QUOTE, _COLON, value)))
        return either(*matched)

    def _except(self, words: list[str], depth: int = 0) -> Language:
        anything = Times(_CHARACTER, 0, None)
        if not words:
            return anything
        by_first = _by_first(words)
        firsts = tuple((ord(first), ord(first)) for first in by_first)
        other = chain(Quoted(Chars(inverted(firsts))), anything)
        branches = [
            chain(quoted(text(first)), self._except(rest, depth + 1))
            for first, rest in by_first.items()
            if depth < NAME_CHARS_MAX
        ]
        every = either(*branches, other, *(() if "" in words else (Chain(()),)))
        return self._rule(every) if depth and not depth % NESTED_MAX else every


def _any_value() -> Language:
    member, item = _spaced(chain(_STRING, _COLON, _ANY)), _spaced(_ANY)
    pairs = maybe(chain(member, Times(chain(_COMMA, member), 0, None)))
    items = maybe(chain(item, Times(chain(_COMMA, item), 0, None)))
    return either(
        chain(text("{"), _SPACE, pairs, text("}")),
        chain(text("["), _SPACE, items, text("]")),
        _STRING,
        _NUMBER,
        *map(text, ("true", "false", "null")),
    )


def _member(name: str, value: Language) -> Language:
    return _spaced(chain(_exactly(name), _COLON, value))


def _spaced(value: Language) -> Language:
    return chain(value, _SPACE)


def _exactly(value: object) -> Language:
    # Without white space, as engines write it; a checked answer may still contain it.
    match value:
        case str():
            return chain(_QUOTE, quoted(text(value)), _QUOTE)
        case dict():
            members = [
                chain(_exactly(name), _no_space(":"), _exactly(one)) for name, one in value.items()
            ]
            return chain(_no_space("{"), *_joined(members), _no_space("}"))
        case list():
            return chain(_no_space("["), *_joined([*map(_exactly, value)]), _no_space("]"))
        case float() if value.is_integer():
            return either(text(json.dumps(value)), text(str(int(value))))
        case _:
            return text(json.dumps(value))


def _joined(parts: Sequence[Language]) -> list[Language]:
    return [one for part in parts for one in (_no_space(","), part)][1:]


def _no_space(mark: str) -> Language:
    before = () if mark in "{[" else (NO_SPACE,)
    behind = () if mark in "}]" else (NO_SPACE,)
    return Chain((*before, text(mark), *behind))


def _by_first(words: list[str]) -> dict[str, list[str]]:
    by_first: dict[str, list[str]] = {}
    for word in filter(None, words):
        by_first.setdefault(word[0], []).append(word[1:])
    return by_first


def _any_of(values: list[Any]) -> Language:
    # Words that begin alike are followed together: there may be thousands.
    words = [value for value in values if isinstance(value, str)]
    others = [_exactly(value) for value in values if not isinstance(value, str)]
    return either(chain(_QUOTE, _one_of(words), _QUOTE) if words else NEVER, *others)


def _one_of(words: list[str], depth: int = NESTED_MAX) -> Language:
    if len(words) == 1 or not depth:
        return either(*(quoted(text(word)) for word in words))
    first, last = min(words), max(words)  # what these begin with, all do
    differ = (at for at, both in enumerate(zip(first, last, strict=False)) if both[0] != both[1])
    size = next(differ, min(len(first), len(last)))
    rests = [word[size:] for word in words]
    branches = [
        chain(quoted(text(mark)), _one_of(rest, depth - 1))
        for mark, rest in _by_first(rests).items()
    ]
    return chain(
        quoted(text(first[:size])), either(*branches, *((Chain(()),) if "" in rests else ()))
    )


def _types(schema: Schema) -> tuple[str, ...]:
    named = schema.get("type", ())
    names = (named,) if isinstance(named, str) else tuple(named)
    if "type" not in schema:
        names = tuple(name for name, keys in _KEYWORDS.items() if not keys.isdisjoint(schema))
    return tuple(name for name in names if not (name == "integer" and "number" in names))


def _allowed_types(schema: Schema) -> set[str]:
    types = set(_types(schema))
    return types | {"integer"} if "number" in types else types


def _reaches(one: Schema, other: Schema) -> bool:
    # A keyword for all undescribed members does not apply to those that another schema describes.
    return any(
        one.get(rest, True) is not True
        and other.get(described, one.get(described)) != one.get(described)
        for rest, described in _RESTS
    )


def _count(schema: Schema, key: str) -> int | None:
    return int(schema[key]) if key in schema else None


def between(low: int | None, high: int | None) -> Language:
    natural = NEVER if high is not None and high < 0 else _natural(max(low or 0, 0), high)
    if low is not None and low >= 0:
        return natural
    nearest = 0 if high is None or high >= 0 else -high
    return either(natural, chain(text("-"), _natural(nearest, None if low is None else -low)))


def _natural(low: int, high: int | None) -> Language:
    first = str(low)
    if high is None:
        longer = chain(_digits(1, 9), Times(_digits(0, 9), len(first), None))
        return either(_as_long(first, "9" * len(first)), longer)
    if high < low:
        return NEVER
    last = str(high)
    return either(
        *(
            _as_long(
                first if size == len(first) else "1" + "0" * (size - 1),
                last if size == len(last) else "9" * size,
            )
            for size in range(len(first), len(last) + 1)
        )
    )


def _as_long(first: str, last: str) -> Language:
    if not first:
        return Chain(())
    low, high, size = int(first[0]), int(last[0]), len(first) - 1
    if low == high:
        return chain(_digits(low, low), _as_long(first[1:], last[1:]))
    options = []
    if first[1:] != "0" * size:
        options.append(chain(_digits(low, low), _as_long(first[1:], "9" * size)))
        low += 1
    if last[1:] != "9" * size:
        options.append(chain(_digits(high, high), _as_long("0" * size, last[1:])))
        high -= 1
    if low <= high:
        options.append(chain(_digits(low, high), Times(_digits(0, 9), size, size)))
    return either(*options)


def _digits(low: int, high: int) -> Language:
    return Chars(((_ZERO + low, _ZERO + high),))


@dataclass(frozen=True, slots=True)
class Body:
    """Texts that a body may be. `exact`: none of them is wrong."""

    root: Language
    rules: Rules
    exact: bool


@dataclass(frozen=True, slots=True)
class Remainder:
    """Grammar of the texts that may follow. `exact`: each makes the body valid."""

    node: Node
    exact: bool


def body_of(schema: object) -> Body:
    try:
        documents = JsonLanguage(schema)
    except UntranslatableGrammar:
        return ANY_JSON
    return Body(documents.root, documents.rules, documents.exact)


ANY_JSON: Final = replace(body_of({}), exact=False)


def remainder_of(body: Body, begun: bytes, byte_ids: Sequence[int]) -> Remainder | None:
    """Return what may follow this beginning; `byte_ids[b]` is the id of the single byte `b`.

    Falls back to any JSON, then to None.
    """
    for candidate in (body, ANY_JSON):
        try:
            return Remainder(_behind(candidate, begun, byte_ids), candidate.exact)
        except UntranslatableGrammar:
            continue
    return None


def _behind(body: Body, beginning: bytes, byte_ids: Sequence[int]) -> Node:
    decoder = getincrementaldecoder("utf-8")()
    try:
        whole = decoder.decode(beginning)
    except UnicodeDecodeError:
        raise UntranslatableGrammar("it is not UTF-8") from None
    begun, _ = decoder.getstate()
    quotient = Quotient(body.root, body.rules)
    if not begun:
        rest = quotient.behind(whole)
        return NOTHING if rest == Chain(()) else Ebnf(grammar_of(rest, body.rules))
    missing = _missing(begun)
    first, last = (begun + bytes(one[end] for one in missing) for end in (0, -1))
    rest = quotient.behind(whole + first.decode())
    if rest != quotient.behind(whole + last.decode()):
        raise UntranslatableGrammar("not all characters that begin so may stand there")
    return InOrder((*_spelled(missing, byte_ids), Ebnf(grammar_of(rest, body.rules))))


def _missing(begun: bytes) -> list[range]:
    # xgrammar (0.2.8) confuses two id sets of equal size in one position (see `structural_tags`),
    # so there is none for the half of the values that follows 0xED.
    if begun[0] == _HALF_SURROGATES and len(begun) == 1:
        raise UntranslatableGrammar("as many other bytes may follow another one")
    size = next(size for first, size in _SIZES if begun[0] >= first)
    missing = [_FOLLOWING] * (size - len(begun))
    return [_SECOND.get(begun[0], _FOLLOWING), *missing[1:]] if len(begun) == 1 else missing


def _spelled(missing: list[range], byte_ids: Sequence[int]) -> list[Node]:
    return [OneOf(tuple(Token(byte_ids[byte]) for byte in bytes_)) for bytes_ in missing]
