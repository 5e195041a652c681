"""Estimate from its text the work of compiling a grammar of a custom tool.

llguidance makes one expression of each terminal, with the terminals that it names written out. Its
time grows with the square of the number of parts of an expression that may be empty, and with its
length, which a few lines that name each other twice make millions. What it adds to Lark (the
intersection and the negation of terminals, other grammars within one) takes exponential time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gateway.constraints.rules import UnusableGrammar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.constraints.rules import TextGrammar

WORK_MAX: Final = 500_000
"""Squares of the numbers of such parts, of all expressions of a grammar together."""
CHARS_MAX: Final = 200_000
"""Of all expressions of a grammar, written out."""
DEPTH_MAX: Final = 100
"""Of terminals that name others."""
_EMPTY: Final = re.compile(r"[*?{]|(?<=[(|])(?=[|)])")
"""What lets a part of an expression be empty, or repeats it."""
_DEFINITION: Final = re.compile(r"^[ \t]*[?!]*+([A-Za-z_]\w*+)[^:\"/|\n]*+\s*+:", re.MULTILINE)
_PART: Final = re.compile(
    r"""(?P<skip>//[^\n]*+|\#[^\n]*+)
    |(?P<string>"(?:[^"\\\n]|\\.)*+"i?)
    |(?P<pattern>/(?:[^/\\\n]|\\.)++/)
    |(?P<name>[A-Za-z_]\w*+)
    |(?P<beyond>&|~(?!\s*+\d)|%(?!(?:import|ignore|declare|extend|override)\b)[a-z]++)
    |(?P<empty>[*?]|~)
    """,
    re.VERBOSE,
)


def check(grammar: TextGrammar) -> None:
    """Raise `UnusableGrammar` if compiling the grammar would take too long."""
    if grammar.syntax == "regex":
        works = [_empty_parts(grammar.definition) ** 2]
    else:
        works = list(_works(_definitions(grammar.definition)))
    if sum(works) > WORK_MAX:
        raise UnusableGrammar("its patterns have too many parts that may be empty or repeat")


@dataclass(slots=True)
class _Definition:
    """Definition of a rule or a terminal: its parts that may be empty, its length, its names."""

    empty: int = 0
    """Parts that may be empty, outside of patterns."""
    chars: int = 0
    patterns: list[int] = field(default_factory=list)
    """Parts that may be empty, of each pattern."""
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
        empty, chars = _size(name, definitions, sizes, DEPTH_MAX)
        chars_left -= chars
        if chars_left < 0:
            raise UnusableGrammar("its terminals, written out, are too long")
        yield empty**2


def _size(
    name: str, definitions: dict[str, _Definition], sizes: dict[str, tuple[int, int]], depth: int
) -> tuple[int, int]:
    definition = definitions.get(name)
    if definition is None or not _is_terminal(name):
        return 0, 0
    if not depth:
        raise UnusableGrammar("its terminals name each other too deeply")
    if name not in sizes:
        sizes[name] = 0, 0  # one that names itself is refused by whoever compiles it
        inner = [_size(other, definitions, sizes, depth - 1) for other in definition.names]
        empty = definition.empty + sum(definition.patterns) + sum(one for one, _ in inner)
        sizes[name] = empty, definition.chars + sum(chars for _, chars in inner)
    return sizes[name]


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _empty_parts(pattern: str) -> int:
    return sum(1 for _ in _EMPTY.finditer(pattern))
