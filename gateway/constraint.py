"""What a model may write, as a grammar over token ids and text that no engine's dialect shows in.

The nodes mirror what both engines' structural tags can say (xgrammar 0.2 and later): markers are
token ids, everything else is text, however it is cut into ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Hashable


@dataclass(frozen=True, slots=True)
class Token:
    """One id, such as a Harmony marker."""

    id: int


@dataclass(frozen=True, slots=True)
class Literal:
    """Exactly this text."""

    text: str


@dataclass(frozen=True, slots=True)
class AnyText:
    """Any ids but these, any number of them."""

    excluded: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON value that the schema describes."""

    schema: dict[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Ebnf:
    """Text that an EBNF grammar describes, in GBNF notation; its first rule is `root`."""

    grammar: str


@dataclass(frozen=True, slots=True)
class InOrder:
    """One after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class OneOf:
    """Any one of these; at least one."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Maybe:
    """The part or nothing."""

    part: Node


@dataclass(frozen=True, slots=True)
class Repeated:
    """The part any number of times, also never."""

    part: Node


Node = Token | Literal | AnyText | Json | Ebnf | InOrder | OneOf | Maybe | Repeated

NOTHING: Final = InOrder(())
"""All is said: what comes next can only be the end."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the rest of a turn must look like.

    `turn` describes every id to come, up to the one that ends the turn, which is not part of it.
    `answer` is the schema of the final message alone, for engines whose grammars begin only there;
    None where there is none, or where more than the answer is bound. `calls` is how many different
    calls it tells of: with hundreds of them it takes long to put into an engine's words. `exact`:
    what it lets through is what was demanded. `bare`: no marker is to come before the end.
    """

    turn: Node
    answer: dict[str, Any] | None = field(default=None, hash=False)
    calls: int = 0
    exact: bool = True
    bare: bool = False
    told: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    """What it is in the words of engines, for the next request that is bound by it."""
