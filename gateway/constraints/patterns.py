r"""Regular expressions, as far as they describe whole texts: no assertions, no back-references.

Classes such as `\w` mean their ASCII members: what is written by that is also right for an engine
that knows all of Unicode.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.constraints.gbnf import (
    LAST,
    Chain,
    Chars,
    Choice,
    Language,
    Range,
    Times,
    UntranslatableGrammar,
    inverted,
)

DEPTH_MAX: Final = 50
"""Of groups within groups."""

_DIGIT: Final = ((0x30, 0x39),)
_WORD: Final = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Final = ((0x09, 0x0D), (0x20, 0x20))
_ANY_SPACE: Final = (
    *_SPACE,
    (0x85, 0x85),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
)
_CLASSES: Final = {
    "d": _DIGIT,
    "D": inverted(_DIGIT),
    "w": _WORD,
    "W": inverted((*_WORD, (0x80, LAST))),
    "s": _SPACE,
    "S": inverted(_ANY_SPACE),
}
_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0", "a": "\a"}
_CODE: Final = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})")
_BRACED: Final = re.compile(r"[xuU]\{([0-9A-Fa-f]{1,6})\}")
_QUANTIFIER: Final = re.compile(r"(?:([*+?])|\{(\d{1,4})(,)?(\d{1,4})?\})\??")
_GROUP: Final = re.compile(r"\((?:\?:|\?P?<[A-Za-z_]\w*>|(?!\?))")
_COUNTS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def language_of(pattern: str, flags: str = "") -> Language:
    """Return the texts that a pattern matches as a whole. `flags`: `i` and `s` as in Lark.

    Anchors around all of it have no effect. Raises `UntranslatableGrammar`.
    """
    found = re.match(r"\(\?([is]+)\)", pattern)
    if found:
        pattern, flags = pattern[found.end() :], flags + found.group(1)
    pattern = unanchored(pattern)
    return _Reader(pattern, ignores_case="i" in flags, dot_is_all="s" in flags).read()


def found_by(pattern: str) -> Language:
    """Return the texts that contain a match of a pattern, as JSON Schema defines `pattern`.

    Raises `UntranslatableGrammar`.
    """
    anything = Times(Chars(((0, LAST),)), 0, None)
    starts, ends = pattern.startswith("^"), unanchored("^" + pattern) != pattern
    if (starts or ends) and _has_options(pattern):
        raise UntranslatableGrammar("an anchor stands in one of several options")
    inner = language_of(pattern)
    return Chain((*(() if starts else (anything,)), inner, *(() if ends else (anything,))))


def _has_options(pattern: str) -> bool:
    bare = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "", pattern, flags=re.DOTALL)
    while (shorter := re.sub(r"\([^()]*\)", "", bare)) != bare:
        bare = shorter
    return "|" in bare


def unanchored(pattern: str) -> str:
    pattern = pattern.removeprefix("^")
    backslashes = len(pattern) - 1 - len(pattern[:-1].rstrip("\\"))
    return pattern[:-1] if pattern.endswith("$") and backslashes % 2 == 0 else pattern


def cased(point: int) -> tuple[Range, ...]:
    """Return a character in its lower and upper case."""
    forms = {chr(point), chr(point).lower(), chr(point).upper()}
    return tuple(sorted((ord(form), ord(form)) for form in forms if len(form) == 1))


def unescaped(source: str, at: int) -> tuple[str, int]:
    """Return the character of the escape at `source[at:]`, after its backslash, and its end."""
    letter = source[at : at + 1]
    if found := _CODE.match(source, at) or _BRACED.match(source, at):
        point = int(next(filter(None, found.groups())), 16)
        if point > 0x10FFFF:
            raise UntranslatableGrammar("it holds the code of no character")
        return chr(point), found.end()
    if letter in _CONTROLS:
        return _CONTROLS[letter], at + 1
    if not letter or letter.isalnum():
        raise UntranslatableGrammar(f"it holds \\{letter}")
    return letter, at + 1


class _Reader:
    """Reader of one pattern from left to right."""

    def __init__(self, pattern: str, *, ignores_case: bool, dot_is_all: bool) -> None:
        self._pattern = pattern
        self._ignores_case = ignores_case
        self._dot = Chars(inverted(() if dot_is_all else ((0x0A, 0x0A),)))
        self._at = 0

    def read(self) -> Language:
        language = self._choice(DEPTH_MAX)
        if self._at < len(self._pattern):
            raise UntranslatableGrammar("a pattern has a `)` without its `(`")
        return language

    def _choice(self, depth: int) -> Language:
        options = [self._chain(depth)]
        while self._next() == "|":
            self._at += 1
            options.append(self._chain(depth))
        return Choice(tuple(options)) if len(options) > 1 else options[0]

    def _chain(self, depth: int) -> Language:
        parts: list[Language] = []
        while self._next() not in {"", "|", ")"}:
            parts.append(self._counted(depth))
        return Chain(tuple(parts))

    def _counted(self, depth: int) -> Language:
        part = self._atom(depth)
        found = _QUANTIFIER.match(self._pattern, self._at)
        if not found:
            return part
        self._at = found.end()
        if self._next() and self._next() in "*+?{":
            raise UntranslatableGrammar("it repeats a repetition")
        return Times(part, *_counts(found))

    def _atom(self, depth: int) -> Language:
        character = self._next()
        if character == "(":
            return self._group(depth)
        self._at += 1
        if character == "[":
            return self._set()
        if character == ".":
            return self._dot
        if character == "\\":
            return self._escape()
        if character in set("^$*+?{"):
            raise UntranslatableGrammar(f"it holds `{character}` where it means nothing sayable")
        return self._cased(Chars(((ord(character), ord(character)),)))

    def _group(self, depth: int) -> Language:
        found = _GROUP.match(self._pattern, self._at)
        if not found:
            raise UntranslatableGrammar("it holds an assertion or a group of a special kind")
        if not depth:
            raise UntranslatableGrammar("its groups are nested too deeply")
        self._at = found.end()
        inner = self._choice(depth - 1)
        if self._next() != ")":
            raise UntranslatableGrammar("a pattern has a `(` without its `)`")
        self._at += 1
        return inner

    def _escape(self) -> Language:
        letter = self._next()
        if letter in _CLASSES and letter:
            self._at += 1
            return Chars(_CLASSES[letter])
        character, self._at = unescaped(self._pattern, self._at)
        return self._cased(Chars(((ord(character), ord(character)),)))

    def _set(self) -> Language:
        inverts = self._next() == "^"
        self._at += inverts
        ranges: list[Range] = []
        first = True
        while first or self._next() != "]":
            first = False
            ranges += self._span()
        self._at += 1
        chars = self._cased(Chars(tuple(ranges)))
        return Chars(inverted(chars.ranges)) if inverts else chars

    def _span(self) -> tuple[Range, ...]:
        low = self._member()
        if not isinstance(low, str):
            return low
        if self._next() != "-" or self._pattern[self._at + 1 : self._at + 2] in {"]", ""}:
            return ((ord(low), ord(low)),)
        self._at += 1
        high = self._member()
        if not isinstance(high, str) or high < low:
            raise UntranslatableGrammar("a set holds a range without an end")
        return ((ord(low), ord(high)),)

    def _member(self) -> str | tuple[Range, ...]:
        character = self._next()
        self._at += 1
        if not character or character == "[" or self._pattern.startswith(("&&", "--"), self._at):
            raise UntranslatableGrammar("a set has no end, or holds another")
        if character != "\\":
            return character
        if self._next() in _CLASSES and self._next():
            self._at += 1
            return _CLASSES[self._pattern[self._at - 1]]
        if self._next() == "b":
            self._at += 1
            return "\b"
        character, self._at = unescaped(self._pattern, self._at)
        return character

    def _cased(self, chars: Chars) -> Chars:
        if not self._ignores_case:
            return chars
        ranges = list(chars.ranges)
        for low, high in chars.ranges:
            if low == high:
                ranges += cased(low)
            for first, last, shift in ((0x41, 0x5A, 32), (0x61, 0x7A, -32)):
                if max(low, first) <= min(high, last):
                    ranges.append((max(low, first) + shift, min(high, last) + shift))
        return Chars(tuple(sorted(set(ranges))))

    def _next(self) -> str:
        return self._pattern[self._at : self._at + 1]


def _counts(found: re.Match[str]) -> tuple[int, int | None]:
    short, least, comma, most = found.groups()
    if short:
        return _COUNTS[short]
    if not comma:
        return int(least), int(least)
    return int(least), int(most) if most else None
