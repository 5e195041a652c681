"""What is left of a language behind the beginning of a text: again a language.

Every way to read the beginning is followed, one character after the other. A way is a stack of
languages, the innermost first: what is left of a string, then of the object around it, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from gateway.constraints.gbnf import (
    LAST,
    PLAIN,
    Chain,
    Chars,
    Choice,
    Named,
    Quoted,
    Space,
    Times,
    UntranslatableGrammar,
    chain,
    common,
    either,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gateway.constraints.gbnf import Language, Range

    _Single = Chars | Quoted | Space

OPENED_MAX: Final = 5_000
"""Languages that are looked into for one character: one that begins with itself has no end."""
OPENED_IN_ALL_MAX: Final = 300_000
"""About two seconds' work, of which a text in an ordinary format takes little: what follows in the
same place is known. Only what is nested ever deeper, or counted, is new with each character."""
WAYS_MAX: Final = 200
"""To read one text."""
WHITE: Final = " \n\r\t"
_BACKSLASH: Final = "\\"
_SHORT: Final = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x2F: "/"}
_ESCAPES: Final = _SHORT | {ord(_BACKSLASH): _BACKSLASH}
_HEX: Final = ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66))
_BEYOND: Final = (0x10000, LAST)
_SURROGATES: Final = (0xD800, 0xDC00)
"""The first of each half of a pair."""
_CODES: Final = ((0, 0xD7FF), (0xE000, 0xFFFF))
"""What one escape with a code can stand for."""


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """A language, and what follows it: None for the end of the text."""

    head: Language
    tail: _Way | None


_Ways = tuple[_Way | None, ...]


@dataclass(slots=True)
class Quotient:
    """Reads a text of a language from its beginning."""

    root: Language
    rules: Mapping[str, Language]
    _known: dict[tuple[int, _Way | None], _Way] = field(default_factory=dict)
    _fewer: dict[tuple[int, int, int | None], Times] = field(default_factory=dict)
    _opened_in_all: int = 0
    _steps: dict[tuple[_Ways, str], _Ways] = field(default_factory=dict)

    def behind(self, beginning: str) -> Language:
        """All that may follow this; a chain without parts, where nothing may.

        Raises `UntranslatableGrammar` where no text begins so, or it cannot be followed.
        """
        ways: _Ways = (self._way(self.root, None),)
        for number, character in enumerate(beginning):
            step = (ways, character)
            if step not in self._steps:
                self._steps[step] = self._read(ways, character)
            ways = self._steps[step]
            if not 0 < len(ways) <= WAYS_MAX:
                raise UntranslatableGrammar(f"no text of it, or too many, begin so (at {number})")
        return either(*(Chain(tuple(_languages(way))) for way in ways))

    def _read(self, ways: _Ways, character: str) -> _Ways:
        """The ways behind one character more."""
        point = ord(character)
        found: dict[_Way | None, None] = {}
        for head, way in self._opened(ways):
            match head:
                case Space():
                    if character in WHITE:
                        found[way] = None
                case Quoted(chars):
                    if character == _BACKSLASH:
                        found[self._way(escapes(chars.ranges), way.tail)] = None
                    elif _holds(chars.ranges, point) and _holds(PLAIN, point):
                        found[way.tail] = None
                case _:
                    if _holds(head.ranges, point):
                        found[way.tail] = None
        return tuple(found)

    def _opened(self, ways: _Ways) -> Iterator[tuple[_Single, _Way]]:
        """The same ways, each with what a single character may be in front."""
        seen: set[_Way] = set()
        todo = [way for way in reversed(ways) if way is not None]
        while todo:
            way = todo.pop()
            if way in seen:
                continue
            seen.add(way)
            self._opened_in_all += 1
            if len(seen) > OPENED_MAX or self._opened_in_all > OPENED_IN_ALL_MAX:
                raise UntranslatableGrammar("it begins with itself, or is too ambiguous")
            if isinstance(way.head, Chars | Quoted | Space):
                yield way.head, way
            todo += filter(None, self._within(way.head, way.tail))

    def _within(self, head: Language, tail: _Way | None) -> Iterator[_Way | None]:
        """What a way that begins with this stands for, the last first."""
        match head:
            case Chain(parts):
                for part in reversed(parts):
                    tail = self._way(part, tail)
                yield tail
            case Choice(options):
                for option in reversed(options):
                    yield self._way(option, tail)
            case Times(part, least, most):
                if not least:
                    yield tail
                if most != 0:
                    yield self._way(part, self._way(self._once_less(head), tail))
            case Space():
                yield tail
            case Named(name):
                yield self._way(self.rules[name], tail)
            case _:
                pass

    def _once_less(self, times: Times) -> Times:
        least, most = max(times.least - 1, 0), None if times.most is None else times.most - 1
        key = (id(times.part), least, most)
        if key not in self._fewer:
            self._fewer[key] = Times(times.part, least, most)
        return self._fewer[key]

    def _way(self, head: Language, tail: _Way | None) -> _Way:
        """One object for each way, so that those that are the same are found to be."""
        key = (id(head), tail)
        if key not in self._known:
            self._known[key] = _Way(head, tail)
        return self._known[key]


def _languages(way: _Way | None) -> Iterator[Language]:
    while way is not None:
        yield way.head
        way = way.tail


def _holds(ranges: tuple[Range, ...], point: int) -> bool:
    return any(low <= point <= high for low, high in ranges)


@lru_cache(maxsize=256)
def escapes(ranges: tuple[Range, ...]) -> Language:
    """What may follow a backslash in a JSON string to stand for one of these characters."""
    short = (text(letter) for point, letter in _ESCAPES.items() if _holds(ranges, point))
    code = _codes(common(ranges, _CODES), 0, 4)
    beyond = common(ranges, (_BEYOND,))
    pairs = [_pair(*map(_halves, one)) for one in beyond if one == _BEYOND or one[0] == one[1]]
    return either(*short, chain(text("u"), either(code, *pairs)))


def _halves(point: int) -> tuple[int, int]:
    """The surrogates of a character."""
    high, low = divmod(point - _BEYOND[0], 0x400)
    return _SURROGATES[0] + high, _SURROGATES[1] + low


def _pair(first: tuple[int, int], last: tuple[int, int]) -> Language:
    """The codes of two surrogates, each between these."""
    high, low = (_codes((ends,), 0, 4) for ends in zip(first, last, strict=True))
    return chain(high, text(_BACKSLASH + "u"), low)


def _codes(ranges: tuple[Range, ...], low: int, digits: int) -> Language:
    """The hexadecimal numbers of so many digits, from `low` on, that are in these ranges."""
    size = 16**digits
    covered = sum(high - first + 1 for first, high in common(ranges, ((low, low + size - 1),)))
    if covered == size:
        return Times(Chars(_HEX), digits, digits)
    if not covered:
        return either()
    by_rest: dict[Language, list[str]] = {}
    for digit in range(16):
        rest = _codes(ranges, low + digit * size // 16, digits - 1)
        by_rest.setdefault(rest, []).extend({f"{digit:x}", f"{digit:X}"})
    return either(*(chain(_one_of(digits), rest) for rest, digits in by_rest.items()))


def _one_of(characters: list[str]) -> Chars:
    """As few ranges as there can be."""
    ranges: list[Range] = []
    for point in sorted(map(ord, characters)):
        low = ranges.pop()[0] if ranges and ranges[-1][1] == point - 1 else point
        ranges.append((low, point))
    return Chars(tuple(ranges))
