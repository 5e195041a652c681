"""A script: everything that is said in one turn, before any of it is said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.generation import FinishReason
from gateway.models.harmony.framing import OPENING
from gateway.models.harmony.vocabulary import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gateway.models.harmony.vocabulary import Vocabulary
    from gateway.simulator.directives import Directives

ANALYSIS: Final = "analysis"
COMMENTARY: Final = "commentary"
FINAL: Final = "final"
CALL_PREFIX: Final = "functions."
"""The kind of a call is its recipient; of any other message, its channel."""

_TERMINATORS: Final = {ANALYSIS: END, COMMENTARY: END, FINAL: RETURN}


@dataclass(frozen=True, slots=True)
class Part:
    """One message of a script. `header` begins with `<|start|>assistant`."""

    kind: str
    header: tuple[int, ...]
    body: tuple[int, ...]
    terminator: int

    @property
    def ids(self) -> list[int]:
        """The whole message."""
        return [*self.header, *self.body, self.terminator]

    @property
    def ends_turn(self) -> bool:
        """Whether nothing is said after it."""
        return self.terminator != END


@dataclass(frozen=True, slots=True)
class Script:
    """The ids of a turn from its `<|start|>assistant` on, and why it ends where it ends.

    `parts` is empty for a script that is replayed as it is, well formed or not.
    """

    ids: list[int]
    parts: tuple[Part, ...] = ()
    finish: FinishReason = FinishReason.STOP


class PartWriter:
    """Makes parts out of text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    def part(self, kind: str, text: str) -> Part:
        """A message of `kind` with this text."""
        return self.part_of_ids(kind, self.vocabulary.encode(text))

    def part_of_ids(self, kind: str, body: list[int]) -> Part:
        """A message of `kind` with this body."""
        return Part(
            kind=kind,
            header=self.header(kind),
            body=tuple(body),
            terminator=_TERMINATORS.get(kind, CALL),
        )

    def header(self, kind: str) -> tuple[int, ...]:
        """What begins a message of `kind`."""
        encode = self.vocabulary.encode
        if not kind.startswith(CALL_PREFIX):
            return (*OPENING, CHANNEL, *encode(kind), MESSAGE)
        return (*OPENING, CHANNEL, *encode(f"{COMMENTARY} to={kind} "), *self.json_mark)

    @property
    def json_mark(self) -> tuple[int, ...]:
        """The end of a header that announces JSON."""
        return (CONSTRAIN, *self.vocabulary.encode("json"), MESSAGE)


def script_of(parts: list[Part]) -> Script:
    """The script that says these messages one after the other."""
    return Script(ids=[one for part in parts for one in part.ids], parts=tuple(parts))


@dataclass(frozen=True, slots=True)
class Continuation:
    """`ids` are still to be said; the turn they end begins at `turn_start` of the prompt.

    `finish` is None for an ordinary script, which ends with a stop id; a recorded one that may
    hold stop ids anywhere says itself how it ended.
    """

    ids: list[int]
    turn_start: int
    directives: Directives
    finish: FinishReason | None = None
    others: Callable[[], Iterable[list[int]]] = tuple
    """What could be said instead, for an engine that may not say `ids`; best first."""
