"""A language of text, written down in GBNF as it looks inside of a JSON string.

There a quotation mark is two characters, and so is a line break. A set of characters therefore
falls into those that stand for themselves and those that are escaped, each in one way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

SIZE_MAX: Final = 256 * 1024
"""Characters of a grammar."""
WEIGHT_MAX: Final = 50_000
"""Characters and names in a grammar whose repetitions are written out."""
LAST: Final = 0x10FFFF
_SURROGATES: Final = (0xD800, 0xDFFF)
_SHORT: Final = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}
_ESCAPED: Final = (*range(0x20), 0x22, 0x5C)
_PLAIN_GAPS: Final = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, LAST))

Range = tuple[int, int]


class UntranslatableGrammar(ValueError):
    """The engines' notation, or this translation, cannot say it. The message says what."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of these ranges of code points, ends included."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """One after the other; of nothing, the empty text."""

    parts: tuple[Language, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Any one of these."""

    options: tuple[Language, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """So often at least, so often at most (None: no bound)."""

    part: Language
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Named:
    """What a rule of this name says."""

    name: str


Language = Chars | Chain | Choice | Times | Named


def text(characters: str) -> Chain:
    """Exactly these characters."""
    return Chain(tuple(Chars(((ord(one), ord(one)),)) for one in characters))


def inverted(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """All the other characters."""
    gaps, start = [], 0
    for low, high in sorted(ranges):
        if start < low:
            gaps.append((start, low - 1))
        start = max(start, high + 1)
    return (*gaps, (start, LAST)) if start <= LAST else tuple(gaps)


def wrapped(root: Language, rules: dict[str, Language]) -> str:
    """The grammar of the JSON object `{"input": "…"}` with such a text in it.

    Raises `UntranslatableGrammar` when it gets too long, or repeats too much.
    """
    if sum(map(_weight, (root, *rules.values()))) > WEIGHT_MAX:
        raise UntranslatableGrammar("it repeats too much")
    writer = _Writer()
    lines = [
        'root ::= "{" space "\\"input\\"" space ":" space "\\"" input "\\"" space "}"',
        "space ::= [ \\n]{0,4}",
        f"input ::= {writer.written(root)}",
    ]
    for name, rule in rules.items():
        lines.append(f"{_rule_name(name)} ::= {writer.written(rule)}")
        writer.add_size(len(lines[-1]))
    return "\n".join([*lines, *writer.extra, ""])


def _weight(language: Language) -> int:
    match language:
        case Chain(parts) | Choice(parts):
            return sum(map(_weight, parts), 1)
        case Times(part, least, most):
            return max(least, most or 1) * _weight(part)
        case _:
            return 1


def _rule_name(name: str) -> str:
    return f"rule-{name.replace('_', '-')}"


@dataclass(slots=True)
class _Writer:
    """Writes languages. Sets of characters become rules of their own, in `extra`."""

    extra: list[str] = field(default_factory=list)
    _names: dict[Chars, str] = field(default_factory=dict)
    _size: int = 0

    def add_size(self, size: int) -> None:
        self._size += size
        if self._size > SIZE_MAX:
            raise UntranslatableGrammar("it becomes too long")

    def written(self, language: Language) -> str:
        self.add_size(1)
        match language:
            case Chars():
                return self._chars(language)
            case Chain(parts):
                return self._chain(parts)
            case Choice(options):
                return f"({' | '.join(map(self.written, options))})"
            case Times(part, least, most):
                return self._times(part, least, most)
            case _:
                return _rule_name(language.name)

    def _times(self, part: Language, least: int, most: int | None) -> str:
        """What is repeated and is itself a repetition becomes a rule, for readers of GBNF that
        lose the brackets between the two.
        """
        if most is not None and most < least:
            raise UntranslatableGrammar("it repeats more often at least than at most")
        if most == 0:
            return '""'
        inner = self.written(part)
        if inner[-1] in "*+?}":
            name = f"part-{len(self.extra)}"
            self.extra.append(f"{name} ::= {inner}")
            inner = name
        return f"({inner}){_count(least, most)}"

    def _chain(self, parts: tuple[Language, ...]) -> str:
        """Single characters that stand together become one literal."""
        written: list[str] = []
        literal = ""
        for part in parts:
            character = _only(part)
            if character is not None:
                literal += _quoted(character)
                continue
            if literal:
                written.append(f'"{literal}"')
                literal = ""
            written.append(self.written(part))
        if literal or not written:
            written.append(f'"{literal}"')
        line = " ".join(written)
        self.add_size(len(line))
        return f"({line})" if len(written) > 1 else line

    def _chars(self, chars: Chars) -> str:
        only = _only(chars)
        if only is not None:
            return f'"{_quoted(only)}"'
        if chars not in self._names:
            self._names[chars] = f"set-{len(self._names)}"
            self.extra.append(f"{self._names[chars]} ::= {_set(chars)}")
            self.add_size(len(self.extra[-1]))
        return self._names[chars]


def _only(language: Language) -> int | None:
    """The character, where there is but one."""
    if isinstance(language, Chars) and len(language.ranges) == 1:
        [(low, high)] = language.ranges
        return low if low == high else None
    return None


def _set(chars: Chars) -> str:
    plain = [
        (max(low, first), min(high, last))
        for low, high in chars.ranges
        for first, last in _PLAIN_GAPS
        if max(low, first) <= min(high, last)
    ]
    escaped = [at for at in _ESCAPED if any(low <= at <= high for low, high in chars.ranges)]
    options = [f'"{_quoted(at)}"' for at in escaped]
    if plain:
        spans = "".join(f"{_in_set(low)}-{_in_set(high)}" for low, high in plain)
        options.insert(0, f"[{spans}]")
    if not options:
        raise UntranslatableGrammar("a set of characters is empty")
    return " | ".join(options)


def _quoted(point: int) -> str:
    """A character in a JSON string, as a piece of a GBNF literal."""
    if point in _SHORT:
        escaped = "\\" + _SHORT[point]
        return escaped.replace("\\", "\\\\").replace('"', '\\"')
    if point < 0x20:
        return f"\\\\u{point:04x}"
    if _SURROGATES[0] <= point <= _SURROGATES[1]:
        raise UntranslatableGrammar("half of a surrogate pair is no character")
    return chr(point) if point != 0x7F else _code(point)


def _in_set(point: int) -> str:
    return chr(point) if chr(point).isalnum() and point < 0x7F else _code(point)


def _code(point: int) -> str:
    """ASCII as its code, all else as itself: readers of GBNF disagree about longer codes."""
    return f"\\x{point:02x}" if point <= 0x7F else chr(point)


def _count(least: int, most: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    if short is not None:
        return short
    return f"{{{least},{'' if most is None else most}}}"
