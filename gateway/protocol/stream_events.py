from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final, overload

import orjson
from msgspec import Struct
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterator


HOSTED_ITEMS: Final = frozenset(
    {"web_search_call", "code_interpreter_call", "mcp_call", "mcp_list_tools"}
)
"""Items of tools that the gateway runs. One dialect leaves them out (`open_responses`)."""
TERMINAL_TYPES: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


# No dataclass: one is made for each token, which takes a third of the time.
class Event(Struct, frozen=True, gc=False):
    """Event of a stream. `data` is the JSON object, on one line.

    `delta_length` is the number of characters of a delta, for padding
    (`stream_options.include_obfuscation`). `text` is the JSON of a plain `delta`, without logprobs.
    `hosted_before` is how many `HOSTED_ITEMS` precede its item.
    """

    type: str
    sequence_number: int
    data: bytes
    delta_length: int = 0
    text: bytes = b""
    hosted_before: int = 0

    @property
    def is_terminal(self) -> bool:
        return self.type in TERMINAL_TYPES


EventSink = Callable[[Sequence[Event]], Awaitable[None] | None]
"""Takes events of a stream, in order, without waiting; none if its reader has the terminal one.

Returns None when it may be called again, else an awaitable to wait for. What either raises is for
the reader's task.
"""
EventSource = Callable[[EventSink], Awaitable[None]]
"""Sends a sink all events of a stream as they come; returns when there are no more."""


class DeltaPattern(Struct, frozen=True, gc=False):
    """Pattern of deltas: `before`, the event's number, `between`, its text as JSON, and
    `behind`.
    """

    type: str
    before: bytes
    between: bytes
    behind: bytes
    hosted_before: int = 0

    def event(self, number: int, text: str) -> Event:
        encoded = b"%b" % orjson.dumps(text)  # a copy, as `lasting_json` makes it
        data = b"%b%d%b%b%b" % (self.before, number, self.between, encoded, self.behind)
        return Event(self.type, number, data, len(text), encoded, self.hosted_before)


class Deltas(Sequence[Event]):
    """Delta events of one part, numbered consecutively; each is made when it is read.

    Frames of a long log are written from the nonempty `texts`, in a fraction of the time.
    """

    __slots__ = ("pattern", "sequence_number", "texts")

    def __init__(self, pattern: DeltaPattern, sequence_number: int, texts: Sequence[str]) -> None:
        self.pattern = pattern
        self.sequence_number = sequence_number
        self.texts = texts

    @property
    def last_number(self) -> int:
        # For an empty run this is the number before its first.
        return self.sequence_number + len(self.texts) - 1

    def part(self, start: int, stop: int) -> Deltas:
        return Deltas(self.pattern, self.sequence_number + start, self.texts[start:stop])

    @override
    def __len__(self) -> int:
        return len(self.texts)

    @override
    def __iter__(self) -> Iterator[Event]:
        return map(self.pattern.event, count(self.sequence_number), self.texts)

    @overload
    def __getitem__(self, at: int) -> Event: ...

    @overload
    def __getitem__(self, at: slice) -> list[Event]: ...

    @override
    def __getitem__(self, at: int | slice) -> Event | list[Event]:
        numbers = range(self.sequence_number, self.sequence_number + len(self.texts))
        if isinstance(at, slice):
            return list(map(self.pattern.event, numbers[at], self.texts[at]))
        return self.pattern.event(numbers[at], self.texts[at])
