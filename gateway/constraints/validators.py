"""Validators of texts: JSON against a schema, any text against a grammar.

Apart from `validation`, because the libraries are slow to import.

The work of compiling a custom tool's grammar is estimated from its text. llguidance makes one
expression of each terminal, with the terminals that it names written out. Its time grows with the
square of the number of parts that may be empty, and with the length, which a few lines that name
each other twice make millions. Its extensions of Lark (intersection and negation of terminals,
nested grammars) take exponential time.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import jsonschema_rs
import orjson
from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationError
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from gateway.constraints.output_rules import UnusableGrammar, UnusableSchema
from gateway.constraints.schemas import (
    BESIDE,
    CHOICES,
    as_dict,
    as_list,
    at_pointer,
    count_references,
    is_one_of,
    objects_in,
    patterns_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.constraints.output_rules import TextGrammar

    Schema = dict[str, Any]

WORK_MAX: Final = 500_000
"""Sum over a grammar's expressions of the squares of their parts that may be empty or repeat."""
CHARS_MAX: Final = 200_000
"""Characters of all terminals of a grammar, written out."""
NAMES_DEPTH_MAX: Final = 100
_EMPTY: Final = re.compile(r"[*?{]|(?<=[(|])(?=[|)])")
"""A part may be empty or repeated."""
_DEFINITION: Final = re.compile(r"^[ \t]*[?!]*+([A-Za-z_]\w*+)[^:\"/|\n]*+\s*+:", re.MULTILINE)
_PART: Final = re.compile(
    r"""(?P<skip>//[^\n]*+|\#[^\n]*+)
    |(?P<string>"(?:[^"\\\n]|\\.)*+"i?)
    |(?P<pattern>/(?:[^/\\]|\\.)++/)
    |(?P<open>["/])
    |(?P<name>[A-Za-z_]\w*+)
    |(?P<beyond>&|~(?!\s*+\d)|%(?!(?:import|ignore|declare|extend|override)\b)[a-z]++)
    |(?P<empty>[*?]|~)
    """,
    re.VERBOSE,
)


def check_work(grammar: TextGrammar) -> None:
    if grammar.syntax == "regex":
        works = [_empty_parts(grammar.definition) ** 2]
    else:
        works = list(_works(_definitions(grammar.definition)))
    if sum(works) > WORK_MAX:
        raise UnusableGrammar("its patterns have too many parts that may be empty or repeat")


@dataclass(slots=True)
class _Definition:
    """Rule or terminal; `empty` and `patterns` count parts that may be empty."""

    empty: int = 0
    """Parts outside of patterns."""
    chars: int = 0
    patterns: list[int] = field(default_factory=list)
    """Parts of each pattern."""
    names: list[str] = field(default_factory=list)


def _definitions(source: str) -> dict[str, _Definition]:
    heads = list(_DEFINITION.finditer(source))
    ends = [head.start() for head in heads[1:]] + [len(source)]
    made: dict[str, _Definition] = {}
    for head, end in zip(heads, ends, strict=False):
        definition = made.setdefault(head[1], _Definition())
        for part in _PART.finditer(source, head.end(), end):
            _add(definition, str(part.lastgroup), part[0])
    return made


def _add(definition: _Definition, kind: str, part: str) -> None:
    definition.chars += len(part)
    if kind == "beyond":
        raise UnusableGrammar(f"it holds `{part}`, which is not of Lark")
    if kind == "open":
        # To search behind it would take the square of its length.
        raise UnusableGrammar("a string or a pattern in it has no end")
    if kind == "pattern":
        definition.patterns.append(_empty_parts(part))
    elif kind == "name":
        definition.names.append(part)
    elif kind == "empty":
        definition.empty += 1


def _works(definitions: dict[str, _Definition]) -> Iterator[int]:
    sizes: dict[str, tuple[int, int]] = {}
    chars_left = CHARS_MAX
    for name, definition in definitions.items():
        if not _is_terminal(name):
            yield from (empty**2 for empty in definition.patterns)
            continue
        empty, chars = _terminal_size(name, definitions, sizes, NAMES_DEPTH_MAX)
        chars_left -= chars
        if chars_left < 0:
            raise UnusableGrammar("its terminals, written out, are too long")
        yield empty**2


def _terminal_size(
    name: str, definitions: dict[str, _Definition], sizes: dict[str, tuple[int, int]], depth: int
) -> tuple[int, int]:
    definition = definitions.get(name)
    if definition is None or not _is_terminal(name):
        return 0, 0
    if not depth:
        raise UnusableGrammar("its terminals name each other too deeply")
    if name not in sizes:
        sizes[name] = 0, 0  # one that names itself is refused by whoever compiles it
        inner = [_terminal_size(other, definitions, sizes, depth - 1) for other in definition.names]
        empty = definition.empty + sum(definition.patterns) + sum(one for one, _ in inner)
        sizes[name] = empty, definition.chars + sum(chars for _, chars in inner)
    return sizes[name]


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _empty_parts(pattern: str) -> int:
    return sum(1 for _ in _EMPTY.finditer(pattern))


_OF_EACH_MEMBER: Final = ("additionalProperties", "unevaluatedProperties")
_OF_EACH_ITEM: Final = ("items", "contains", "unevaluatedItems")
Pair = tuple[Any, Any]
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
PART_BYTES: Final = 16 * 1024
"""Bytes of a schema that take about a millisecond to compile."""
PATTERN_BYTES: Final = 4 * 1024
"""Bytes of a schema that take as long to compile as one regular expression."""
_DRAFT: Final = "$schema"
PATTERNS_MAX: Final = 256
"""In a schema: the library compiles them without letting other threads run."""
REFERENCES_MAX: Final = 2_000
"""In a schema, for the same reason."""
_REGEX_BYTES: Final = range(16 * 1024, 4 * 1024 * 1024)
"""Bytes of one compiled pattern: the more patterns there are, the fewer."""
_ALL_REGEX_BYTES_MAX: Final = 8 * 1024 * 1024
_BEYOND_LINEAR: Final = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9]|\\k<")
"""Look-around and back-references."""
_EXPLAINED_MAX: Final = 1_000
"""Explaining a fault takes the library the square of the check's time."""
_NO_REGEX: Final = 'is not a "regex"'
_TOO_MUCH: Final = "it is too large to be checked against its schema"
_END: Final = 256
_PIECE_BYTES: Final = 16
"""Other threads can run between pieces; a hostile grammar takes a millisecond for a byte."""
_LIMITS: Final = LLParserLimits(
    max_items_in_row=200,
    initial_lexer_fuel=1_000_000,
    max_lexer_states=10_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)


class TooMuchWork(Exception):
    """Refusal of a check beyond its work limit."""


class ForeignReference(Exception):
    """Reference that is not counted."""


@dataclass(slots=True)
class _Counts:
    """Counts by `id()` of schemas and values."""

    costs: dict[tuple[int, int], int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)


class Cost:
    """Work of checking values against a schema, counted before it is done.

    Small schemas can hang a validator: where references fork at every step, the paths double with
    each. Each application of a schema to a value counts, as if nothing short-circuits, each pair
    once. Raises `ForeignReference`.
    """

    def __init__(self, schema: dict[str, Any], work_max: int) -> None:
        self._root = schema
        self._work_max = work_max
        self._anchors = _anchors(schema)

    def count(self, value: object) -> int:
        # Raises `TooMuchWork`, also for values nested too deeply to count.
        try:
            return self._count(self._root, value, _Counts())
        except RecursionError:
            raise TooMuchWork from None

    def _count(self, schema: Any, value: Any, counts: _Counts) -> int:
        if not isinstance(schema, dict):
            return 1
        pair = (id(schema), id(value))
        if pair in counts.costs:
            return counts.costs[pair]
        counts.costs[pair] = 0  # a circle of references ends here, and in the validator
        total = _own(schema, value, counts.sizes)
        for part, of in self._parts(schema, value):
            total += self._count(part, of, counts)
            if total > self._work_max:
                raise TooMuchWork
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            total *= 2  # what is evaluated already is found out by doing it once more
        counts.costs[pair] = total
        return total

    def _parts(self, schema: dict[str, Any], value: Any) -> Iterator[Pair]:
        if isinstance(reference := schema.get("$ref"), str):
            yield self._target(reference), value
        for word in BESIDE:
            if word in schema:
                yield schema[word], value
        for word in CHOICES:
            for part in as_list(schema.get(word)):
                yield part, value
        for part in as_dict(schema.get("dependentSchemas")).values():
            yield part, value
        if isinstance(value, dict):
            yield from _member_parts(schema, value)
        elif isinstance(value, list):
            yield from _item_parts(schema, value)

    def _target(self, reference: str) -> Any:
        anchor = unquote(reference.removeprefix("#"))
        if anchor in self._anchors:
            return self._anchors[anchor]
        return at_pointer(self._root, reference)


def _own(schema: dict[str, Any], value: Any, sizes: dict[int, int]) -> int:
    own = 1 + len(as_list(schema.get("required")))
    if isinstance(value, str) and "pattern" in schema:
        own += len(value)
    constants = [*as_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    own += sum(_size(constant, sizes) for constant in constants)
    if schema.get("uniqueItems") is True and isinstance(value, list):
        own += _size(value, sizes)
    if isinstance(value, dict):
        own += sum(map(len, value)) * len(as_dict(schema.get("patternProperties")))
    return own


def _anchors(root: dict[str, Any]) -> dict[str, Any]:
    anchors: dict[str, Any] = {}
    for node in objects_in(root):
        _refuse_foreign(node, is_root=node is root)
        if isinstance(name := node.get("$anchor"), str):
            anchors[name] = node
    return anchors


def _size(value: Any, sizes: dict[int, int]) -> int:
    if isinstance(value, str):
        return 1 + len(value)
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in sizes:
        parts = value.values() if isinstance(value, dict) else value
        names = sum(map(len, value)) if isinstance(value, dict) else 0
        sizes[id(value)] = 1 + names + sum(_size(part, sizes) for part in parts)
    return sizes[id(value)]


def _refuse_foreign(node: dict[str, Any], *, is_root: bool) -> None:
    for word in ("$dynamicRef", "$recursiveRef", *(() if is_root else ("$id",))):
        if isinstance(node.get(word), str):
            raise ForeignReference(f"`{word}` is not supported")
    reference = node.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        raise ForeignReference(f"`{reference}` is outside of the schema")


def _member_parts(schema: dict[str, Any], value: dict[str, Any]) -> Iterator[Pair]:
    properties = as_dict(schema.get("properties"))
    for_each = [schema[word] for word in _OF_EACH_MEMBER if word in schema]
    for_each += as_dict(schema.get("patternProperties")).values()
    for name, member in value.items():
        if name in properties:
            yield properties[name], member
        for part in for_each:
            yield part, member
        if "propertyNames" in schema:
            yield schema["propertyNames"], name


def _item_parts(schema: dict[str, Any], value: list[Any]) -> Iterator[Pair]:
    yield from zip(as_list(schema.get("prefixItems")), value, strict=False)
    for_each = [schema[word] for word in _OF_EACH_ITEM if word in schema]
    for item in value:
        for part in for_each:
            yield part, item


def impossible(schema: object, place: str = "") -> str | None:
    """Return the JSON pointer of a contradiction: nothing satisfies the schema.

    There are no false positives; `$ref` is not followed.
    """
    if schema is False:
        return place or "/"
    if not isinstance(schema, dict):
        return None
    return next(_places(schema, place), None)


def _places(schema: Schema, place: str) -> Iterator[str]:
    types = _types(schema)
    yield from (f"{place}/{name}" for name in _contradictions(schema, types))
    yield from _combined(schema, place)
    if types == {"object"}:
        yield from _members(schema, place)
    if types == {"array"}:
        yield from _elements(schema, place)


def _types(schema: Schema) -> set[str]:
    declared = schema.get("type", [])
    return {declared} if isinstance(declared, str) else set(declared)


def _contradictions(schema: Schema, types: set[str]) -> Iterator[str]:
    values = schema.get("enum")
    if values is not None and not any(is_one_of(value, types) for value in values):
        yield "enum"
    if "const" in schema and not is_one_of(schema["const"], types):
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


def _combined(schema: Schema, place: str) -> Iterator[str]:
    for number, part in enumerate(schema.get("allOf", ())):
        if fault := impossible(part, f"{place}/allOf/{number}"):
            yield fault
    for name in ("anyOf", "oneOf"):
        parts = schema.get(name, ())
        if parts and all(impossible(part) for part in parts):
            yield f"{place}/{name}"


def _members(schema: Schema, place: str) -> Iterator[str]:
    properties = schema.get("properties", {})
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    for name in schema.get("required", ()):
        if name not in properties:
            if is_closed:
                yield f"{place}/required"
        elif fault := impossible(properties[name], f"{place}/properties/{_step(name)}"):
            yield fault


def _elements(schema: Schema, place: str) -> Iterator[str]:
    count = schema.get("minItems", 0)
    first = schema.get("prefixItems", ())
    for number, part in enumerate(first[: int(count)]):
        if fault := impossible(part, f"{place}/prefixItems/{number}"):
            yield fault
    if count > len(first) and (fault := impossible(schema.get("items"), f"{place}/items")):
        yield fault


def _step(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


class SchemaValidator:
    """Validator of JSON texts, which fetches nothing. Raises `UnusableSchema`."""

    def __init__(self, schema: dict[str, Any], *, work_max: int) -> None:
        # With patterns, memory use cannot be estimated from the length of the schema.
        try:
            self._cost = Cost(schema, work_max)
            patterns = len(patterns_in(schema))
            self.has_patterns = patterns > 0
            options = _regex_options(patterns)
            self._validators = [
                Draft202012Validator(part, offline=True, mask="it", pattern_options=options)
                for part in parts_of(schema)
            ]
            self._cost.count(None)
            if (place := impossible(schema)) is not None:
                raise UnusableSchema(f"nothing can satisfy what it demands at {place}")
            if count_references(schema) > REFERENCES_MAX:
                raise UnusableSchema(f"it has more than {REFERENCES_MAX} references")
        except TooMuchWork:
            raise UnusableSchema("its references fork too often") from None
        except ForeignReference as error:
            raise UnusableSchema(str(error)) from None
        except ValidationError as error:
            raise UnusableSchema(f"{_place(error)}: {_meant(error)}") from None
        except (jsonschema_rs.ReferencingError, ValueError) as error:
            raise UnusableSchema(_line(str(error))) from None

    def fault(self, text: str) -> str | None:
        try:
            value = orjson.loads(text)
        except ValueError as error:  # also half of a surrogate pair
            return f"it is not JSON ({_line(str(error))})"
        try:
            if _names_twice(text):
                return "it gives a member of an object twice"
            work = self._cost.count(value)
            broken = (each for each in self._validators if not each.is_valid(value))
            first = next(broken, None)
        except (TooMuchWork, RecursionError, ValueError):
            return _TOO_MUCH
        if first is None:
            return None
        return (
            _explained(first, value) if work <= _EXPLAINED_MAX else "it does not match its schema"
        )


def _explained(validator: Draft202012Validator, value: object) -> str:
    error = next(validator.iter_errors(value))
    return f"{_place(error)}: {_line(error.message)}"


def _meant(error: ValidationError) -> str:
    if not error.message.endswith(_NO_REGEX):
        return error.message
    if _BEYOND_LINEAR.search(str(error.instance)):
        return "look-around and back-references are not supported"
    return "it is no regular expression, or one that repeats too much"


def _regex_options(patterns: int) -> RegexOptions:
    # Linear in time and bounded in memory. Raises `UnusableSchema` for too many patterns.
    if patterns > PATTERNS_MAX:
        raise UnusableSchema(f"it has {patterns} patterns, and {PATTERNS_MAX} are the most")
    share = _ALL_REGEX_BYTES_MAX // max(patterns, 1)
    size = min(max(share, _REGEX_BYTES.start), _REGEX_BYTES.stop)
    return RegexOptions(size, size)


def _names_twice(text: str) -> bool:
    # JSON readers differ in which of two equal names counts.
    is_twice = False

    def note(members: list[tuple[str, object]]) -> None:
        nonlocal is_twice
        is_twice = is_twice or len({name for name, _ in members}) < len(members)

    json.loads(text, object_pairs_hook=note)
    return is_twice


def _place(error: ValidationError) -> str:
    return "".join(f"/{step}" for step in error.instance_path) or "as a whole"


def _line(text: str) -> str:
    return text.partition("\n")[0]


def parts_of(schema: Schema) -> Iterator[Schema]:
    """Yield smaller schemas whose conjunction is this one; one with references is not split."""
    try:
        is_one = _weight(schema) <= PART_BYTES or count_references(schema) > 0
    except orjson.JSONEncodeError:
        is_one = True
    if is_one:
        yield schema
        return
    draft = {_DRAFT: schema[_DRAFT]} if _DRAFT in schema else {}
    for part in _parts(schema):
        yield draft | part


def _parts(schema: Any) -> Iterator[Schema]:
    members = schema.get("properties") if isinstance(schema, dict) else None
    items = schema.get("items") if isinstance(schema, dict) else None
    if _weight(schema) <= PART_BYTES:
        yield schema
    elif isinstance(members, dict) and members:
        yield schema | {"properties": dict.fromkeys(members, True)}
        yield from _groups(members)
    elif isinstance(items, dict) and "prefixItems" not in schema:
        yield schema | {"items": True}
        yield from ({"items": part} for part in _parts(items))
    else:
        yield schema


def _groups(members: dict[str, Any]) -> Iterator[Schema]:
    group: dict[str, Any] = {}
    room = PART_BYTES
    for name, member in members.items():
        weight = _weight(member)
        if weight > PART_BYTES:
            yield from ({"properties": {name: part}} for part in _parts(member))
            continue
        if weight > room:
            yield {"properties": group}
            group, room = {}, PART_BYTES
        group[name] = member
        room -= weight
    if group:
        yield {"properties": group}


def _weight(schema: Any) -> int:
    return len(orjson.dumps(schema)) + PATTERN_BYTES * len(patterns_in(schema))


class _Bytes:
    eos_token_id = _END
    bos_token_id = None
    tokens: Final = [*(bytes([byte]) for byte in range(256)), b"<end>"]
    special_token_ids: Final = [_END]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


_TOKENIZER: Final = LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])


class GrammarValidator:
    """Validator of texts against a grammar. Raises `UnusableGrammar`.

    A text whose check takes longer than `seconds_max` counts as wrong.
    """

    def __init__(self, grammar: TextGrammar, *, seconds_max: float) -> None:
        check_work(grammar)
        self._seconds_max = seconds_max
        definition = (
            LLMatcher.grammar_from_lark(grammar.definition)
            if grammar.syntax == "lark"
            else LLMatcher.grammar_from_regex(grammar.definition)
        )
        self._matcher = LLMatcher(_TOKENIZER, definition, log_level=0, limits=_LIMITS)
        if self._matcher.is_error():
            raise UnusableGrammar(self._matcher.get_error().partition("\n")[0])

    def fault(self, text: str) -> str | None:
        try:
            content = text.encode()
        except UnicodeEncodeError:
            return "it is not valid Unicode"
        matcher = self._matcher.deep_copy()
        give_up = time.monotonic() + self._seconds_max
        for start in range(0, len(content), _PIECE_BYTES):
            if time.monotonic() > give_up:
                return "it takes too long to be checked against its grammar"
            piece = content[start : start + _PIECE_BYTES]
            accepted = matcher.try_consume_tokens(list(piece))
            if matcher.is_error():
                return "it is too ambiguous to be checked against its grammar"
            if accepted < len(piece):
                return f"its grammar does not allow byte {start + accepted}"
        return None if matcher.is_accepting() else "it ends too early for its grammar"
