"""How a family of chat models writes thoughts and calls: what a parser and a grammar ask of it.

A turn is text in which *markers* stand. A marker is a text such as `<tool_call>`; where the
vocabulary has one id for it, only that id counts, and otherwise its letters do. A *region* of calls
begins at one of the openers of a syntax and is read by a reader of its own, which is handed the
text and the markers in it, and tells what they mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from gateway.protocol.tools import FUNCTION_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gateway.models.chat.recovery import Rule


@dataclass(frozen=True, slots=True)
class Mark:
    """A marker in something that is written."""

    text: str


Written = tuple[Mark | str, ...]
"""Markers and texts, one behind the other."""


@dataclass(frozen=True, slots=True)
class Called:
    """A call of this function begins."""

    name: str


@dataclass(frozen=True, slots=True)
class Argued:
    """More of the text of its arguments."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The call is over. `broken`: in the middle of its arguments; by `rules`."""

    broken: bool = False
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Said:
    """It was no call: text for the user, in its place."""

    text: str
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """The region is over; `rest` is text behind it. Nothing is told after it."""

    rest: str = ""


CallEvent = Called | Argued | Ended | Said | Left


def function_name(written: str) -> str | None:
    """The name of a function in what a model wrote in the place of one; None if it cannot be one.

    Quotes around it are no part of it.
    """
    name = written.strip().strip("\"'`").strip()
    return name if FUNCTION_NAME.fullmatch(name) else None


SchemaOf = Callable[[str], "Mapping[str, Any]"]
"""The JSON Schema of the arguments of a function, by the name that the model wrote; empty for an
unknown one."""


class CallReader(Protocol):
    """Reads one region. Total: no text and no marker makes it raise. What it tells does not depend
    on how the text was cut, except for how that of arguments is cut.
    """

    def text(self, text: str) -> Iterator[CallEvent]:
        """More text, never empty."""
        ...

    def mark(self, marker: str) -> Iterator[CallEvent]:
        """A marker of the syntax."""
        ...

    def close(self, *, cut: bool) -> Iterator[CallEvent]:
        """There is no more. `cut`: the model did not mean to stop."""
        ...


class CallSyntax(Protocol):
    """How calls are written. Immutable."""

    @property
    def name(self) -> str:
        """That of the parser in vLLM and SGLang, where they have the same."""

    @property
    def openers(self) -> tuple[str, ...]:
        """The markers at which a region begins, the trained one first."""

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers, the openers among them."""

    @property
    def is_bare(self) -> bool:
        """A region begins without a marker, too: with a brace where an answer would begin."""

    def reader(self, opener: str, schema_of: SchemaOf, /) -> CallReader:
        """Reads the region behind an opener; an empty one for a region that has none."""

    def written(self, calls: tuple[tuple[str, str], ...]) -> Written:
        """Calls (name, arguments as JSON) as the model was trained to write them in one turn."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The markers around a thought, and the white space that templates put inside and behind."""

    opening: str
    closing: str
    inner: str = "\n"
    behind: str = "\n\n"


THINK: Final = Reasoning("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class Syntax:
    """A family of models: it need not think, and it need not call anything."""

    reasoning: Reasoning | None
    calls: CallSyntax | None

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers."""
        thought = (self.reasoning.opening, self.reasoning.closing) if self.reasoning else ()
        return (*thought, *(self.calls.markers if self.calls else ()))
