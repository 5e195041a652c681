r"""Languages of text: their form in GBNF, and their rest behind the beginning of a text.

The rest of a language is again a language (`Quotient`). All ways to read the beginning are
followed; a way is a stack of languages, the innermost first: the rest of a string, then of the
object around it, and so on.

In regular expressions, classes such as `\w` mean their ASCII members, which are also valid for an
engine that knows all of Unicode.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from string import hexdigits
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


SIZE_MAX: Final = 256 * 1024
"""Characters of a grammar."""
WEIGHT_MAX: Final = 50_000
"""Characters and names in a grammar, with repetitions written out."""
LAST: Final = 0x10FFFF
_SURROGATES: Final = (0xD800, 0xDFFF)
_SHORT: Final = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}
_ESCAPED: Final = (*range(0x20), 0x22, 0x5C)
PLAIN: Final = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, LAST))
"""Characters that a JSON string may hold unescaped."""
SPACES_MAX: Final = 1
"""A model that is lost in white space between marks of JSON would never end."""
Range = tuple[int, int]
OPENED_MAX: Final = 5_000
"""Languages opened for one character; left recursion has no end."""
OPENED_IN_ALL_MAX: Final = 300_000
"""For one `Quotient`: about two seconds' work. Results are cached by position, so only deep nesting
and counting open many."""
WAYS_MAX: Final = 1_000
WHITE: Final = " \n\r\t"
_BACKSLASH: Final = "\\"
_ESCAPES: Final = _SHORT | {0x2F: "/"}
"""Short escapes that a model may write."""
_HEX: Final = ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66))
_BEYOND: Final = (0x10000, LAST)
_HALVES: Final = (0xD800, 0xDC00)
_CODES: Final = ((0, 0xD7FF), (0xE000, 0xFFFF))
r"""Characters that one `\uXXXX` can stand for."""


class UntranslatableGrammar(ValueError):
    """Refusal of a grammar that GBNF or this translation cannot express."""


@dataclass(frozen=True, slots=True)
class Chars:
    """Character out of ranges of code points, ends included."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Quoted:
    """Character out of `chars`, as written inside a JSON string."""

    chars: Chars


@dataclass(frozen=True, slots=True)
class Space:
    """White space between marks of JSON; `most` limits what is written, not what is read."""

    most: int = SPACES_MAX


@dataclass(frozen=True, slots=True)
class Chain:
    """Sequence; without parts, the empty text."""

    parts: tuple[Language, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple[Language, ...]


@dataclass(frozen=True, slots=True)
class Times:
    part: Language
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Named:
    name: str


Language = Chars | Quoted | Space | Chain | Choice | Times | Named
Rules = dict[str, "Language"]
_Single = Chars | Quoted | Space
NO_SPACE: Final = Space(0)
NEVER: Final = Choice(())
"""Not even the empty text."""


def text(characters: str) -> Chain:
    return Chain(tuple(Chars(((ord(one), ord(one)),)) for one in characters))


def chain(*parts: Language) -> Language:
    return NEVER if NEVER in parts else Chain(parts)


def either(*options: Language) -> Language:
    some = tuple(option for option in options if option != NEVER)
    return some[0] if len(some) == 1 else Choice(some)


def maybe(part: Language) -> Language:
    return Chain(()) if part == NEVER else Times(part, 0, 1)


def quoted(language: Language) -> Language:
    """Return the language as written inside a JSON string."""
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
    gaps, start = [], 0
    for low, high in sorted(ranges):
        if start < low:
            gaps.append((start, low - 1))
        start = max(start, high + 1)
    return (*gaps, (start, LAST)) if start <= LAST else tuple(gaps)


def grammar_of(root: Language, rules: Mapping[str, Language]) -> str:
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
    """Writer of languages. Sets of characters are rules in `extra`; `wanted` are the rules referred
    to.
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
        # Some readers of GBNF lose the brackets of nested repetitions, so the inner one is a rule.
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
        written: list[str] = []
        literal = ""
        for part in parts:
            character = _only(part)
            if character:
                is_digit = literal[-4:-2] == "\\x" and character in hexdigits
                literal += _code(ord(character)) if is_digit else character
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
        if chars == NO_SPACE:
            return '""'
        if chars not in self._names:
            self._names[chars] = f"set-{len(self._names)}"
            self.extra.append(f"{self._names[chars]} ::= {_set(chars)}")
            self.add_size(len(self.extra[-1]))
        return self._names[chars]


def _only(language: Language) -> str:
    match language:
        case Chars(((low, high),)) if low == high:
            return _literal(low)
        case Quoted(Chars(((low, high),))) if low == high:
            return _quoted(low)
        case _:
            return ""


def _set(chars: Chars | Quoted | Space) -> str:
    match chars:
        case Space(most):
            return f"[ \\n\\t]{{0,{most}}}"
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
    return tuple(
        (max(low, first), min(high, last))
        for low, high in ranges
        for first, last in others
        if max(low, first) <= min(high, last)
    )


def _literal(point: int) -> str:
    if chr(point) in '"\\':
        return "\\" + chr(point)
    return chr(point) if 0x20 <= point != 0x7F else _code(point)


def _quoted(point: int) -> str:
    if point in _SHORT:
        escaped = "\\" + _SHORT[point]
        return escaped.replace("\\", "\\\\").replace('"', '\\"')
    if point < 0x20:
        return f"\\\\u{point:04x}"
    if _SURROGATES[0] <= point <= _SURROGATES[1]:
        raise UntranslatableGrammar("half of a surrogate pair is no character")
    return _literal(point)


def _in_set(point: int) -> str:
    is_plain = point < 0x7F and chr(point).isalnum() and chr(point) not in hexdigits
    return chr(point) if is_plain else _code(point)


def _code(point: int) -> str:
    # Readers of GBNF disagree about codes beyond ASCII, so those characters stand as themselves.
    # xgrammar takes all hexadecimal digits behind `\x` for the code: there they are codes, too.
    return f"\\x{point:02x}" if point <= 0x7F else chr(point)


def _count(least: int, most: int | None) -> str:
    for sign, counts in COUNTS.items():
        if counts == (least, most):
            return sign
    return f"{{{least},{'' if most is None else most}}}"


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """A language and what follows it; None is the end of the text."""

    head: Language
    tail: _Way | None


_Ways = tuple[_Way | None, ...]


@dataclass(slots=True)
class Quotient:
    root: Language
    rules: Mapping[str, Language]
    _interned: dict[tuple[int, _Way | None], _Way] = field(default_factory=dict)
    _fewer: dict[tuple[int, int, int | None], Times] = field(default_factory=dict)
    _opened_in_all: int = 0
    _steps: dict[tuple[_Ways, str], _Ways] = field(default_factory=dict)

    def behind(self, beginning: str) -> Language:
        """Return what may follow this beginning; an empty chain if nothing may.

        Raises `UntranslatableGrammar` if no text begins so, or if it cannot be followed.
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
        point = ord(character)
        next_ways: dict[_Way | None, None] = {}
        for head, way in self._opened(ways):
            match head:
                case Space(most):
                    if character in WHITE:
                        next_ways[self._way(_space(most - 1), way.tail)] = None
                case Quoted(chars):
                    if character == _BACKSLASH:
                        next_ways[self._way(escapes(chars.ranges), way.tail)] = None
                    elif _holds(chars.ranges, point) and _holds(PLAIN, point):
                        next_ways[way.tail] = None
                case _:
                    if _holds(head.ranges, point):
                        next_ways[way.tail] = None
        return tuple(next_ways)

    def _opened(self, ways: _Ways) -> Iterator[tuple[_Single, _Way]]:
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
        # Equal ways are one object, because they are compared by identity.
        key = (id(head), tail)
        if key not in self._interned:
            self._interned[key] = _Way(head, tail)
        return self._interned[key]


def _languages(way: _Way | None) -> Iterator[Language]:
    while way is not None:
        yield way.head
        way = way.tail


def _holds(ranges: tuple[Range, ...], point: int) -> bool:
    return any(low <= point <= high for low, high in ranges)


@lru_cache(maxsize=SPACES_MAX + 1)
def _space(most: int) -> Space:
    # One object for each, because `Quotient` compares by identity.
    return Space(most) if most >= 0 else NO_SPACE


@lru_cache(maxsize=256)
def escapes(ranges: tuple[Range, ...]) -> Language:
    """Return what may follow a backslash in a JSON string to encode one of these characters."""
    short = (text(letter) for point, letter in _ESCAPES.items() if _holds(ranges, point))
    code = _codes(common(ranges, _CODES), 0, 4)
    beyond = common(ranges, (_BEYOND,))
    pairs = [_pair(*map(_halves, one)) for one in beyond if one == _BEYOND or one[0] == one[1]]
    return either(*short, chain(text("u"), either(code, *pairs)))


def _halves(point: int) -> tuple[int, int]:
    high, low = divmod(point - _BEYOND[0], 0x400)
    return _HALVES[0] + high, _HALVES[1] + low


def _pair(first: tuple[int, int], last: tuple[int, int]) -> Language:
    high, low = (_codes((ends,), 0, 4) for ends in zip(first, last, strict=True))
    return chain(high, text(_BACKSLASH + "u"), low)


def _codes(ranges: tuple[Range, ...], low: int, digits: int) -> Language:
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
    ranges: list[Range] = []
    for point in sorted(map(ord, characters)):
        low = ranges.pop()[0] if ranges and ranges[-1][1] == point - 1 else point
        ranges.append((low, point))
    return Chars(tuple(ranges))


GROUP_DEPTH_MAX: Final = 50
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
    (0xFEFF, 0xFEFF),
)
_ANY_WORD: Final = (*_WORD, (0x80, LAST))
_WIDEST: Final = {_SPACE: _ANY_SPACE, _WORD: _ANY_WORD}
_CLASSES: Final = {
    "d": _DIGIT,
    "D": inverted(_DIGIT),
    "w": _WORD,
    "W": inverted(_ANY_WORD),
    "s": _SPACE,
    "S": inverted(_ANY_SPACE),
}
_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0", "a": "\a"}
_FLAGS: Final = re.compile(r"\A\(\?([is]+)\)")
_CODE: Final = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})")
_BRACED: Final = re.compile(r"[xuU]\{([0-9A-Fa-f]{1,6})\}")
_QUANTIFIER: Final = re.compile(r"(?:([*+?])|\{(\d{1,4})(,)?(\d{1,4})?\})\??")
_GROUP: Final = re.compile(r"\((?:\?:|\?P?<[A-Za-z_]\w*>|(?!\?))")
COUNTS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def language_of(pattern: str, flags: str = "") -> Language:
    """Return the texts that a pattern matches as a whole, whatever its outer anchors.

    `flags`: `i` and `s` as in Lark.
    """
    if match := _FLAGS.match(pattern):
        pattern, flags = pattern[match.end() :], flags + match[1]
    pattern = unanchored(pattern)
    return _Reader(pattern, ignores_case="i" in flags, dot_is_all="s" in flags).read()


def language_containing(pattern: str) -> Language:
    """Return the texts that contain a match, as `pattern` of JSON Schema."""
    anything = Times(Chars(((0, LAST),)), 0, None)
    bare = _FLAGS.sub("", pattern)
    starts, ends = bare.startswith("^"), unanchored("^" + bare) != bare
    if (starts or ends) and _has_options(bare):
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
    forms = {chr(point), chr(point).lower(), chr(point).upper()}
    return tuple(sorted((ord(form), ord(form)) for form in forms if len(form) == 1))


def unescaped(source: str, at: int) -> tuple[str, int]:
    letter = source[at : at + 1]
    if match := _CODE.match(source, at) or _BRACED.match(source, at):
        point = int(next(filter(None, match.groups())), 16)
        if point > 0x10FFFF:
            raise UntranslatableGrammar("it holds the code of no character")
        return chr(point), match.end()
    if letter in _CONTROLS:
        return _CONTROLS[letter], at + 1
    if not letter or letter.isalnum():
        raise UntranslatableGrammar(f"it holds \\{letter}")
    return letter, at + 1


class _Reader:
    def __init__(self, pattern: str, *, ignores_case: bool, dot_is_all: bool) -> None:
        self._pattern = pattern
        self._ignores_case = ignores_case
        self._dot = Chars(inverted(() if dot_is_all else ((0x0A, 0x0A),)))
        self._at = 0

    def read(self) -> Language:
        language = self._choice(GROUP_DEPTH_MAX)
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
        match = _QUANTIFIER.match(self._pattern, self._at)
        if not match:
            return part
        self._at = match.end()
        if self._next() and self._next() in "*+?{":
            raise UntranslatableGrammar("it repeats a repetition")
        return Times(part, *_counts(match))

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
        match = _GROUP.match(self._pattern, self._at)
        if not match:
            raise UntranslatableGrammar("it holds an assertion or a group of a special kind")
        if not depth:
            raise UntranslatableGrammar("its groups are nested too deeply")
        self._at = match.end()
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
            span = self._span()
            ranges += _WIDEST.get(span, span) if inverts else span
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


def _counts(match: re.Match[str]) -> tuple[int, int | None]:
    short, least, comma, most = match.groups()
    if short:
        return COUNTS[short]
    if not comma:
        return int(least), int(least)
    return int(least), int(most) if most else None
