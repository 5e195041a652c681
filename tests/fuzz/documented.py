"""Values of a documented type: whatever OpenAI's own client says that a request may hold."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
)

from typing_extensions import get_type_hints, is_typeddict

if TYPE_CHECKING:
    import random

DEPTH_MAX: Final = 7
ITEMS_MAX: Final = 3
OPTIONAL_SHARE: Final = 0.15
"""How often a key that may be left out is there."""
WORDS: Final = (
    *(
        "",
        "a",
        "hello",
        "San Francisco",
        "Привет",
        "日本語",
        "e\u0301",
        "👩‍👩‍👧",
        "x" * 70,
        "f",
        "call_1",
    ),
    *("gpt-oss-20b", "<|start|>assistant", "2026-01-01", "{}", '{"a":1}'),
)
NUMBERS: Final = (0, 1, 2, 16, 20, 0.5, 1.0, 64, 1000, -1)
_WRAPPERS: Final = (Required, NotRequired, Annotated)


class Maker:
    """Makes values as `dice` fall."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def value(self, kind: Any, depth: int = 0) -> Any:
        """One of `kind`, which is a type as annotations have it."""
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in _WRAPPERS:
            return self.value(arguments[0], depth)
        if origin is Literal:
            return self._dice.choice(arguments)
        if is_typeddict(kind):
            return self._mapping(kind, depth)
        return self._composed(origin or kind, arguments, depth)

    def _composed(self, origin: Any, arguments: tuple[Any, ...], depth: int) -> Any:
        if origin in {Union, UnionType}:
            return self._member(arguments, depth)
        if origin in {dict, Mapping}:
            return self._dictionary(arguments, depth)
        if arguments or origin is list:
            return self._array(arguments, depth)
        return self._plain(origin)

    def _member(self, members: tuple[Any, ...], depth: int) -> Any:
        if depth >= DEPTH_MAX:
            members = tuple(one for one in members if not is_typeddict(one)) or members
        return self.value(self._dice.choice(members), depth + 1)

    def _mapping(self, kind: Any, depth: int) -> dict[str, Any]:
        share = OPTIONAL_SHARE if depth < DEPTH_MAX else 0.0
        return {
            name: self.value(hint, depth + 1)
            for name, hint in hints(kind).items()
            if name in required_keys(kind) or self._dice.random() < share
        }

    def _dictionary(self, arguments: tuple[Any, ...], depth: int) -> dict[str, Any]:
        value = arguments[1] if len(arguments) > 1 else Any
        count = self._dice.randrange(ITEMS_MAX)
        return {self._dice.choice(WORDS): self.value(value, depth + 1) for _ in range(count)}

    def _array(self, arguments: tuple[Any, ...], depth: int) -> list[Any]:
        count = self._dice.randrange(ITEMS_MAX + 1) if depth < DEPTH_MAX else 0
        return [self.value(arguments[0] if arguments else Any, depth + 1) for _ in range(count)]

    def _plain(self, kind: Any) -> Any:
        dice = self._dice
        if kind is str:
            return dice.choice(WORDS)
        if kind is bool:
            return dice.random() < 0.5
        if kind is int:
            return int(dice.choice(NUMBERS))
        if kind is float:
            return dice.choice(NUMBERS)
        if kind is NoneType or kind is None:
            return None
        return dice.choice((None, True, 1, "x", [], {}, {"type": "object"}))


@cache
def hints(kind: Any) -> dict[str, Any]:
    """The annotations of a `TypedDict`, resolved."""
    return get_type_hints(kind, include_extras=True)


@cache
def required_keys(kind: Any) -> frozenset[str]:
    """The keys that a `TypedDict` must have. Of one whose annotations are strings, as those of the
    SDK are, Python itself does not know that they are `Required`.
    """
    marked = {name for name, hint in hints(kind).items() if get_origin(hint) is Required}
    return frozenset(kind.__required_keys__ | marked)
