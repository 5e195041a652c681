"""How much work it is to check a value against a schema, counted before it is done.

Schemas can be small and yet hang a validator: where references fork at every step, the paths double
with each. This counts the applications of one schema to one value, as if nothing short-circuits,
without walking the same pair twice. The schema has to be one; what else it may hold is not checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from gateway.constraints.schemas import at_pointer

if TYPE_CHECKING:
    from collections.abc import Iterator

_IN_PLACE: Final = ("not", "if", "then", "else")
_IN_PLACE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_OF_EACH_MEMBER: Final = ("additionalProperties", "unevaluatedProperties")
_OF_EACH_ITEM: Final = ("items", "contains", "unevaluatedItems")

Pair = tuple[Any, Any]


class TooMuchWork(Exception):
    """More than was allowed."""


class ForeignReference(Exception):
    """A way of referring to another schema that is not counted."""


@dataclass(slots=True)
class _Known:
    """What was counted already, by the identity of what it was counted of."""

    costs: dict[tuple[int, int], int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)


class Cost:
    """Of checks against one schema, of `work_max` applications at most.

    Raises `ForeignReference`.
    """

    def __init__(self, schema: dict[str, Any], work_max: int) -> None:
        self._root = schema
        self._work_max = work_max
        self._anchors = _anchors(schema)

    def of(self, value: object) -> int:
        """Raises `TooMuchWork`, also for what is nested too deeply to be counted."""
        try:
            return self._count(self._root, value, _Known())
        except RecursionError:
            raise TooMuchWork from None

    def _count(self, schema: Any, value: Any, known: _Known) -> int:
        if not isinstance(schema, dict):
            return 1
        pair = (id(schema), id(value))
        if pair in known.costs:
            return known.costs[pair]
        known.costs[pair] = 0  # a circle of references ends here, and in the validator
        total = _own(schema, value, known.sizes)
        for part, of in self._parts(schema, value):
            total += self._count(part, of, known)
            if total > self._work_max:
                raise TooMuchWork
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            total *= 2  # what is evaluated already is found out by doing it once more
        known.costs[pair] = total
        return total

    def _parts(self, schema: dict[str, Any], value: Any) -> Iterator[Pair]:
        """What else is applied, and to what."""
        if isinstance(reference := schema.get("$ref"), str):
            yield self._target(reference), value
        for word in _IN_PLACE:
            if word in schema:
                yield schema[word], value
        for word in _IN_PLACE_LISTS:
            for part in _list(schema, word):
                yield part, value
        for part in _dict(schema, "dependentSchemas").values():
            yield part, value
        if isinstance(value, dict):
            yield from _member_parts(schema, value)
        elif isinstance(value, list):
            yield from _item_parts(schema, value)

    def _target(self, reference: str) -> Any:
        """What an anchor or a JSON pointer points at; `MISSING`, where there is nothing."""
        anchor = unquote(reference.removeprefix("#"))
        if anchor in self._anchors:
            return self._anchors[anchor]
        return at_pointer(self._root, reference)


def _own(schema: dict[str, Any], value: Any, sizes: dict[int, int]) -> int:
    """What the keywords of this schema cost that apply no other one."""
    own = 1 + len(_list(schema, "required"))
    if isinstance(value, str) and "pattern" in schema:
        own += len(value)
    constants = [*_list(schema, "enum"), *([schema["const"]] if "const" in schema else [])]
    own += sum(_size(constant, sizes) for constant in constants)
    if schema.get("uniqueItems") is True and isinstance(value, list):
        own += _size(value, sizes)
    if isinstance(value, dict):
        own += sum(map(len, value)) * len(_dict(schema, "patternProperties"))
    return own


def patterns_in(root: dict[str, Any]) -> set[str]:
    """The regular expressions that it takes to check against this schema."""
    patterns: set[str] = set()
    for node in _objects(root):
        patterns.update(_dict(node, "patternProperties"))
        if isinstance(pattern := node.get("pattern"), str):
            patterns.add(pattern)
    return patterns


def count_references(root: dict[str, Any]) -> int:
    """How often it refers to a part of itself."""
    return sum(isinstance(node.get("$ref"), str) for node in _objects(root))


def _anchors(root: dict[str, Any]) -> dict[str, Any]:
    """The schemas that have a name of their own."""
    anchors: dict[str, Any] = {}
    for node in _objects(root):
        _refuse_foreign(node, is_root=node is root)
        if isinstance(name := node.get("$anchor"), str):
            anchors[name] = node
    return anchors


def _objects(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All JSON objects in it, whatever they stand for."""
    waiting: list[Any] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _size(value: Any, sizes: dict[int, int]) -> int:
    """How much there is to compare: values, and the characters of texts."""
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


def _list(schema: dict[str, Any], word: str) -> list[Any]:
    found = schema.get(word)
    return found if isinstance(found, list) else []


def _dict(schema: dict[str, Any], word: str) -> dict[str, Any]:
    found = schema.get(word)
    return found if isinstance(found, dict) else {}


def _member_parts(schema: dict[str, Any], value: dict[str, Any]) -> Iterator[Pair]:
    properties = _dict(schema, "properties")
    for_each = [schema[word] for word in _OF_EACH_MEMBER if word in schema]
    for_each += _dict(schema, "patternProperties").values()
    for name, member in value.items():
        if name in properties:
            yield properties[name], member
        for part in for_each:
            yield part, member
        if "propertyNames" in schema:
            yield schema["propertyNames"], name


def _item_parts(schema: dict[str, Any], value: list[Any]) -> Iterator[Pair]:
    yield from zip(_list(schema, "prefixItems"), value, strict=False)
    for_each = [schema[word] for word in _OF_EACH_ITEM if word in schema]
    for item in value:
        for part in for_each:
            yield part, item
