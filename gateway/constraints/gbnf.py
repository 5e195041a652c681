"""A language of text, written down in GBNF.

Inside of a JSON string a quotation mark is two characters, and so is a line break. There a set of
characters falls into those that stand for themselves and those that are escaped, each in one way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

SIZE_MAX: Final = 256 * 1024
"""Characters of a grammar."""
WEIGHT_MAX: Final = 50_000
"""Characters and names in a grammar whose repetitions are written out."""
LAST: Final = 0x10FFFF
_SURROGATES: Final = (0xD800, 0xDFFF)
_SHORT: Final = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}
_ESCAPED: Final = (*range(0x20), 0x22, 0x5C)
PLAIN: Final = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, LAST))
"""What may stand for itself inside of a JSON string."""
_SPACES_MAX: Final = 12
"""White space between two marks; a model that indents deeply needs so much, one that is lost in it
would never end."""

Range = tuple[int, int]


class UntranslatableGrammar(ValueError):
    """The engines' notation, or this translation, cannot say it. The message says what."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of these ranges of code points, ends included."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Quoted:
    """The same inside of a JSON string."""

    chars: Chars


@dataclass(frozen=True, slots=True)
class Space:
    """White space between the marks of JSON, or none."""


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


Language = Chars | Quoted | Space | Chain | Choice | Times | Named
Rules = dict[str, "Language"]

NEVER: Final = Choice(())
"""No text at all, not even the empty one."""


def text(characters: str) -> Chain:
    """The language of one text: these characters, raw, one after the other."""
    return Chain(tuple(Chars(((ord(one), ord(one)),)) for one in characters))


def chain(*parts: Language) -> Language:
    """One after the other; never, if one of them is."""
    return NEVER if NEVER in parts else Chain(parts)


def either(*options: Language) -> Language:
    """Any one of these, without those that are never."""
    some = tuple(option for option in options if option != NEVER)
    return some[0] if len(some) == 1 else Choice(some)


def maybe(part: Language) -> Language:
    """The part or nothing."""
    return Chain(()) if part == NEVER else Times(part, 0, 1)


def quoted(language: Language) -> Language:
    """The language as it looks inside of a JSON string."""
    match language:
        case Chars():
            return Quoted(language)
        case Chain(parts):
            return Chain(tuple(map(quoted, parts)))
        case Choice(options):
            return Choice(tuple(map(quoted, options)))
        case Times(part, least, most):
            return Times(quoted(part), least, most)
        case _:
            return language


def inverted(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """All the other characters."""
    gaps, start = [], 0
    for low, high in sorted(ranges):
        if start < low:
            gaps.append((start, low - 1))
        start = max(start, high + 1)
    return (*gaps, (start, LAST)) if start <= LAST else tuple(gaps)


def grammar_of(root: Language, rules: Mapping[str, Language]) -> str:
    """The grammar whose first rule is `root`, with those of the rules that it needs.

    Raises `UntranslatableGrammar` when it gets too long, or repeats too much.
    """
    writer = _Writer()
    lines: dict[str, str] = {}
    weight = 0
    todo = [("root", root)]
    while todo:
        name, rule = todo.pop()
        weight += _weight(rule)
        if weight > WEIGHT_MAX:
            raise UntranslatableGrammar("it repeats too much")
        lines[name] = f"{name} ::= {writer.written(rule)}"
        writer.add_size(len(lines[name]))
        for wanted in writer.wanted:
            written = _rule_name(wanted)
            if written not in lines:
                lines[written] = ""
                todo.append((written, rules[wanted]))
        writer.wanted.clear()
    ordered = [lines[name] for name in ("root", *map(_rule_name, rules)) if name in lines]
    return "\n".join([*ordered, *writer.extra, ""])


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
    """Writes languages. Sets of characters become rules of their own, in `extra`; `wanted` are the
    rules that what was written refers to.
    """

    extra: list[str] = field(default_factory=list)
    wanted: dict[str, None] = field(default_factory=dict)
    _names: dict[Chars | Quoted | Space, str] = field(default_factory=dict)
    _size: int = 0

    def add_size(self, size: int) -> None:
        self._size += size
        if self._size > SIZE_MAX:
            raise UntranslatableGrammar("it becomes too long")

    def written(self, language: Language) -> str:
        self.add_size(1)
        match language:
            case Chars() | Quoted() | Space():
                return self._chars(language)
            case Chain(parts):
                return self._chain(parts)
            case Choice(options):
                if not options:
                    raise UntranslatableGrammar("nothing can be said")
                return f"({' | '.join(map(self.written, options))})"
            case Times(part, least, most):
                return self._times(part, least, most)
            case _:
                self.wanted[language.name] = None
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
            if character:
                literal += character
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

    def _chars(self, chars: Chars | Quoted | Space) -> str:
        if only := _only(chars):
            return f'"{only}"'
        if chars not in self._names:
            self._names[chars] = f"set-{len(self._names)}"
            self.extra.append(f"{self._names[chars]} ::= {_set(chars)}")
            self.add_size(len(self.extra[-1]))
        return self._names[chars]


def _only(language: Language) -> str:
    """A piece of a GBNF literal, where there is but one character; else nothing."""
    match language:
        case Chars(((low, high),)) if low == high:
            return _literal(low)
        case Quoted(Chars(((low, high),))) if low == high:
            return _quoted(low)
        case _:
            return ""


def _set(chars: Chars | Quoted | Space) -> str:
    match chars:
        case Space():
            return f"[ \\n\\t]{{0,{_SPACES_MAX}}}"
        case Chars(ranges):
            options = [_spans(ranges)]
        case _:
            ranges = chars.chars.ranges
            escaped = [at for at in _ESCAPED if any(low <= at <= high for low, high in ranges)]
            options = [_spans(common(ranges, PLAIN)), *(f'"{_quoted(at)}"' for at in escaped)]
    options = [option for option in options if option]
    if not options:
        raise UntranslatableGrammar("a set of characters is empty")
    return " | ".join(options)


def _spans(ranges: tuple[Range, ...]) -> str:
    spans = "".join(f"{_in_set(low)}-{_in_set(high)}" for low, high in ranges)
    return f"[{spans}]" if spans else ""


def common(ranges: tuple[Range, ...], others: tuple[Range, ...]) -> tuple[Range, ...]:
    """What is in both."""
    return tuple(
        (max(low, first), min(high, last))
        for low, high in ranges
        for first, last in others
        if max(low, first) <= min(high, last)
    )


def _literal(point: int) -> str:
    """A character, as a piece of a GBNF literal."""
    if chr(point) in '"\\':
        return "\\" + chr(point)
    return chr(point) if 0x20 <= point != 0x7F else _code(point)


def _quoted(point: int) -> str:
    """A character in a JSON string, as a piece of a GBNF literal."""
    if point in _SHORT:
        escaped = "\\" + _SHORT[point]
        return escaped.replace("\\", "\\\\").replace('"', '\\"')
    if point < 0x20:
        return f"\\\\u{point:04x}"
    if _SURROGATES[0] <= point <= _SURROGATES[1]:
        raise UntranslatableGrammar("half of a surrogate pair is no character")
    return _literal(point)


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
