from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from gateway.models.harmony.tokenizer import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    FIRST_SPECIAL,
    MESSAGE,
    OPENING,
    RETURN,
    START,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gateway.models.harmony.tokenizer import Vocabulary


ANALYSIS: Final = "analysis"
COMMENTARY: Final = "commentary"
FINAL: Final = "final"
CALL_PREFIX: Final = "functions."
PYTHON: Final = "python"
"""A call's kind is its recipient; any other message's is its channel."""

_TERMINATORS: Final = {ANALYSIS: END, COMMENTARY: END, FINAL: RETURN}


@dataclass(frozen=True, slots=True)
class Part:
    """Message of a script; `header` begins with `<|start|>assistant`."""

    kind: str
    header: tuple[int, ...]
    body: tuple[int, ...]
    terminator: int

    @property
    def ids(self) -> list[int]:
        return [*self.header, *self.body, self.terminator]

    @property
    def ends_turn(self) -> bool:
        return self.terminator != END


@dataclass(frozen=True, slots=True)
class Script:
    """Turn from its `<|start|>assistant` on."""

    ids: list[int]
    parts: tuple[Part, ...]


class PartWriter:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    def part(self, kind: str, text: str) -> Part:
        return self.part_of_ids(kind, self.vocabulary.encode(text))

    def part_of_ids(self, kind: str, body: list[int]) -> Part:
        return Part(
            kind=kind,
            header=self.header(kind),
            body=tuple(body),
            terminator=_TERMINATORS.get(kind, CALL),
        )

    def header(self, kind: str) -> tuple[int, ...]:
        if not is_call(kind):
            return (*OPENING, CHANNEL, *self.vocabulary.encode(kind), MESSAGE)
        return self.call_header(kind, channel_of(kind))

    def call_header(self, kind: str, channel: str) -> tuple[int, ...]:
        return (*OPENING, *self._marked(f"{channel} to={kind} ", kind))

    def call_mark(self, kind: str) -> tuple[int, ...]:
        # The rest of the header behind the recipient.
        return self._marked(f"{channel_of(kind)} ", kind)

    def _marked(self, words: str, kind: str) -> tuple[int, ...]:
        encode = self.vocabulary.encode
        if kind == PYTHON:
            return (CHANNEL, *encode(f"{words}code"), MESSAGE)
        return (CHANNEL, *encode(words), *self.json_mark)

    @property
    def json_mark(self) -> tuple[int, ...]:
        return (CONSTRAIN, *self.vocabulary.encode("json"), MESSAGE)


def is_call(kind: str) -> bool:
    return kind not in _TERMINATORS


def channel_of(kind: str) -> str:
    # Functions are called on commentary, built-in tools on analysis.
    return COMMENTARY if kind.startswith(CALL_PREFIX) else ANALYSIS


def script_of(parts: list[Part]) -> Script:
    return Script(ids=[one for part in parts for one in part.ids], parts=tuple(parts))


TERMINATORS: Final = frozenset({END, CALL, RETURN})
_RECIPIENT: Final = re.compile(r"\bto=\s*(\S+)")


@dataclass(frozen=True, slots=True)
class Message:
    """`ids[start:end]` of a prompt, from a `<|start|>` to before the next one.

    The body is `ids[body:body_end]`; None: the header was cut off. `terminator` None: it is open.
    """

    role: str
    recipient: str | None
    channel: str | None
    start: int
    body: int | None
    body_end: int
    terminator: int | None
    end: int


def messages_of(ids: Sequence[int], vocabulary: Vocabulary) -> list[Message]:
    """Return all messages; ids before the first `<|start|>` are skipped."""
    spans = pairwise([*_positions(ids, START), len(ids)])
    return [_message(ids, start, end, vocabulary) for start, end in spans]


class Bodies:
    def __init__(self, ids: Sequence[int], vocabulary: Vocabulary) -> None:
        self._ids = ids
        self._vocabulary = vocabulary
        self._texts: dict[int, str] = {}

    def text(self, message: Message) -> str:
        if message.body is None:
            return ""
        if message.body not in self._texts:
            body = self._ids[message.body : message.body_end]
            self._texts[message.body] = self._vocabulary.decode(list(body))
        return self._texts[message.body]


def kind_of(message: Message) -> str:
    if message.recipient and message.recipient != "assistant":
        return message.recipient
    return message.channel if message.channel in {ANALYSIS, COMMENTARY} else FINAL


def turn_start(ids: Sequence[int], messages: Sequence[Message]) -> int:
    """Return the index behind the last message of another role.

    A prompt that ends inside of such a message has an empty turn at its end.
    """
    for message in reversed(messages):
        if message.role != "assistant":
            return message.end if message.terminator is not None else len(ids)
    return messages[0].start if messages else len(ids)


def _positions(ids: Sequence[int], wanted: int) -> Iterator[int]:
    position = -1
    while True:
        try:
            position = ids.index(wanted, position + 1)
        except ValueError:
            return
        yield position


def _message(ids: Sequence[int], start: int, end: int, vocabulary: Vocabulary) -> Message:
    mark = _first(ids, frozenset({MESSAGE}), start + 1, end)
    header = ids[start + 1 : end if mark is None else mark]
    role, recipient, channel = _read_header(header, vocabulary)
    body = None if mark is None else mark + 1
    close = _first(ids, TERMINATORS, body, end) if body is not None else None
    return Message(
        role=role,
        recipient=recipient,
        channel=channel,
        start=start,
        body=body,
        body_end=end if close is None else close,
        terminator=None if close is None else ids[close],
        end=end,
    )


def _first(ids: Sequence[int], wanted: frozenset[int], start: int, end: int) -> int | None:
    positions = [position for one in wanted if (position := _find(ids, one, start, end)) >= 0]
    return min(positions, default=None)


def _find(ids: Sequence[int], wanted: int, start: int, end: int) -> int:
    try:
        return ids.index(wanted, start, end)
    except ValueError:
        return -1


def _read_header(
    header: Sequence[int], vocabulary: Vocabulary
) -> tuple[str, str | None, str | None]:
    # Role, recipient and channel.
    text = _words(header, vocabulary)
    role = text.split(maxsplit=1)[0] if text.strip() else "assistant"
    recipient = _RECIPIENT.search(text)
    after = header[header.index(CHANNEL) + 1 :] if CHANNEL in header else []
    channel = _words(after, vocabulary).split(maxsplit=1)
    return role, recipient[1] if recipient else None, channel[0] if channel else None


def _words(ids: Sequence[int], vocabulary: Vocabulary) -> str:
    pieces = [b" " if one >= FIRST_SPECIAL else vocabulary.piece(one) for one in ids]
    return b"".join(pieces).decode("utf-8", "replace")
