"""Syntax in which a family of chat models writes thoughts and calls.

A *marker* is a text such as `<tool_call>`; where the vocabulary has one id for it, only that id
counts, and otherwise its letters do. A *region* of calls begins at an opener and has a reader of
its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from gateway.generation import BUILTIN_PREFIX
from gateway.protocol.tool_types import FUNCTION_NAME

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping


class Rule(StrEnum):
    # Framing.
    RESERVED_ID = "reserved_id"  # an id that is neither text nor a marker of this syntax
    MARKER_IN_BODY = "marker_in_body"  # a marker where it means nothing
    UNCLOSED_REASONING = "unclosed_reasoning"  # a call, or the end, inside of a thought
    UNCLOSED_CALL = "unclosed_call"  # a call without the marker behind it
    AFTER_TURN_END = "after_turn_end"  # counted once for each ignored id

    # Calls.
    NOT_A_CALL = "not_a_call"  # what stands between the markers names no function
    ABANDONED_CALL = "abandoned_call"  # nothing stands there, or the beginning of a call
    CALL_LEFTOVER = "call_leftover"  # words behind the arguments
    UNDECLARED_FUNCTION = "undeclared_function"
    RECIPIENT_NORMALISED = "recipient_normalised"  # a declared tool, misspelt in a known way
    EMPTY_ARGUMENTS = "empty_arguments"
    INVALID_ARGUMENTS = "invalid_arguments"  # passed through as they are
    QUOTED_ARGUMENTS = "quoted_arguments"  # the JSON value is in a JSON string
    CONTROL_CHARACTER = "control_character"  # in a JSON string of the arguments: escaped
    UNCLOSED_JSON = "unclosed_json"  # the brace around name and arguments is missing
    SLOPPY_JSON = "sloppy_json"  # around name and arguments: commas too many, a key twice
    UNCLOSED_PARAMETER = "unclosed_parameter"  # a value without the tag that closes it
    UNCLOSED_TAG = "unclosed_tag"  # a tag that breaks off
    ODD_FRAME = "odd_frame"  # calls, or arguments, are not framed as the model was trained to

    # The turn.
    NO_VISIBLE_OUTPUT = "no_visible_output"  # nothing but reasoning, or nothing at all


QUOTES: Final = "\"'`"
"""May stand around a name."""


@dataclass(frozen=True, slots=True)
class Mark:
    text: str


Written = tuple[Mark | str, ...]


@dataclass(frozen=True, slots=True)
class Called:
    name: str


@dataclass(frozen=True, slots=True)
class Argued:
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """End of the call; `broken`: in the middle of its arguments."""

    broken: bool = False
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class PlainText:
    """Text for the user, in place of a call."""

    text: str
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """End of the region; `rest` is text behind it. No event follows."""

    rest: str = ""


@dataclass(frozen=True, slots=True)
class Noted:
    rule: Rule


@dataclass(frozen=True, slots=True)
class Unnamed:
    """Beginning of the arguments of a call whose function is named after them."""


CallStep = Called | Unnamed | Argued | Ended | PlainText | Noted
CallEvent = CallStep | Left
NAME_CHARS_MAX: Final = 512
"""Longer text is no name."""


def function_name(written: str) -> str | None:
    """Return the name as written, quotes included; None if it cannot be one."""
    name = written.strip()
    return name if FUNCTION_NAME.fullmatch(name.strip(QUOTES)) else None


def no_call(text: str) -> PlainText:
    return PlainText(text, (Rule.NOT_A_CALL if text else Rule.ABANDONED_CALL,))


SchemaOf = Callable[[str], "Mapping[str, Any] | None"]
"""By the name that the model wrote; None for an unknown one."""


class CallReader(Protocol):
    """Reader of one region. Nothing makes it raise.

    Its events do not depend on how the text was cut, except for the cuts of arguments.
    """

    @property
    def is_junk(self) -> bool:
        """Return True if no call comes of the text so far, whatever marker follows."""
        ...

    def quotes(self, marker: str) -> bool:
        """Return True if a marker here would be text of a value."""
        ...

    def text(self, text: str) -> Iterator[CallEvent]:
        """Read text, which is never empty."""
        ...

    def mark(self, marker: str) -> Iterator[CallEvent]: ...

    def close(self, *, cut: bool) -> Iterator[CallEvent]:
        """End the region. `cut`: the model did not mean to stop."""
        ...


@dataclass(frozen=True, slots=True)
class Tags:
    before_key: Written
    behind_key: Written
    behind_value: Written


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """Syntax of calls. The `name` is that of vLLM's parser, where it has one.

    A region begins at one of the `openers`, or with one of the characters `begins` where an answer
    would (the reader's opener is then empty). `is_bare`: the model was trained to write it without
    an opener. The other fields are the region as trained: `opened`, calls with `between` between
    them, `closed`.
    """

    name: str
    openers: tuple[str, ...]
    markers: tuple[str, ...]
    reader: Callable[[str, SchemaOf], CallReader]
    before_name: Written
    behind_name: Written
    behind: Written
    opened: Written = ()
    between: Written = ()
    closed: Written = ()
    tags: Tags | None = None
    is_bare: bool = False
    begins: str = ""

    def front(self, name: str | None) -> Written:
        """Return the first call of a turn up to its arguments, or without `name` up to that.

        It ends without the space that would be part of the next id.
        """
        named = () if name is None else (name, *self.behind_name)
        *front, last = (*self.opened, *self.before_name, *named)
        return (*front, last.rstrip(" ") if isinstance(last, str) else last)

    def written(self, calls: Sequence[tuple[str, str]]) -> Written:
        parts: list[Mark | str] = []
        for name, arguments in calls:
            parts += (*(self.between if parts else ()), *self.before_name, name, *self.behind_name)
            parts += (*self._body(arguments), *self.behind)
        return (*self.opened, *parts, *self.closed)

    def _body(self, arguments: str) -> Written:
        if self.tags is None:
            return (arguments,)
        parts: list[Mark | str] = []
        for key, value in tags_of(arguments):
            parts += (*self.tags.before_key, key, *self.tags.behind_key)
            parts += (value, *self.tags.behind_value)
        return tuple(parts)


def tags_of(arguments: str) -> list[tuple[str, str]]:
    try:
        values = json.loads(arguments)
    except ValueError:
        return []
    if not isinstance(values, dict):
        return []
    return [
        (key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for key, value in values.items()
    ]


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """Markers of a thought; templates put `inner` and `behind` inside and behind them."""

    opening: str
    closing: str
    inner: str = "\n"
    behind: str = "\n\n"


THINK: Final = ReasoningMarkers("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class Syntax:
    reasoning: ReasoningMarkers | None
    calls: CallSyntax | None

    @property
    def markers(self) -> tuple[str, ...]:
        thought = (self.reasoning.opening, self.reasoning.closing) if self.reasoning else ()
        return (*thought, *(self.calls.markers if self.calls else ()))


NAMESPACE: Final = "functions."
"""Some models write it before function names: they have read much of OpenAI's text."""


def offered_name(tool: str) -> str:
    return tool.removeprefix(BUILTIN_PREFIX)


def called_tool(written: str, tools: Collection[str]) -> tuple[str, tuple[Rule, ...]]:
    """Return the tool that a written name means, and the rules that it was read by.

    An unknown name is returned without quotes.
    """
    name = written.strip()
    for candidate in (name, BUILTIN_PREFIX + name):
        if candidate in tools:
            return candidate, ()
    unquoted = name.strip(QUOTES)
    bare = unquoted.removeprefix(NAMESPACE)
    for candidate in (bare, BUILTIN_PREFIX + bare):
        if candidate in tools:
            return candidate, (Rule.RECIPIENT_NORMALISED,)
    return unquoted, (Rule.UNDECLARED_FUNCTION,)
