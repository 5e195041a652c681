"""Continuation of a prompt: a pure function of its ids, the same on every instance.

A prompt that already holds the first ids of the answer gets the rest of the same answer. Where its
ids are not the beginning of the script (a prefilled header, another model), the message that fits
is continued; where none fits, one is improvised in the channel that is open. In each case

    rest(written) == out  implies  rest(written + out[:k]) == out[k:]  for every k.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import dropwhile
from typing import TYPE_CHECKING, Final

from gateway.models.harmony.tokenizer import END, FIRST_SPECIAL, MESSAGE, OPENING
from gateway.simulator.script_writer import Conversation, ScriptWriter
from gateway.simulator.scripted_turns import (
    ANALYSIS,
    COMMENTARY,
    FINAL,
    Bodies,
    kind_of,
    messages_of,
    turn_start,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gateway.models.harmony.tokenizer import Vocabulary
    from gateway.simulator.scripted_turns import Message, Part, Script

CLOSING_WORDS: Final = "\N{HORIZONTAL ELLIPSIS} and so on, as the script has it."
"""Ends a body that somebody else began. Its first id is rare, so that it is found again."""
FOREIGN_IDS_MAX: Final = 64
"""At the front of a text, that another tokenizer may have cut differently."""


@dataclass(frozen=True, slots=True)
class PromptReading:
    """Prompt; `rest` of its turn may be CPU work if `is_shaped`."""

    rest: Callable[[], list[int]]
    is_shaped: bool


def read_prompt(prompt: list[int], vocabulary: Vocabulary) -> PromptReading:
    messages = messages_of(prompt, vocabulary)
    start = turn_start(prompt, messages)
    before = messages_before(messages, start)
    writer = ScriptWriter(Conversation(before, Bodies(prompt, vocabulary)), vocabulary)

    def rest() -> list[int]:
        return rest_of(writer.script(), prompt[start:], writer, vocabulary)

    return PromptReading(rest, writer.is_shaped)


def messages_before(messages: list[Message], start: int) -> tuple[Message, ...]:
    return tuple(message for message in messages if message.start < start)


def rest_of(
    script: Script, written: Sequence[int], writer: ScriptWriter, vocabulary: Vocabulary
) -> list[int]:
    """Return the ids after `written`, which begins with the turn's `<|start|>assistant`."""
    if script.ids[: len(written)] == list(written):
        return script.ids[len(written) :]
    return Realignment(script.parts, list(written), writer, vocabulary).rest()


class Realignment:
    def __init__(
        self,
        parts: Sequence[Part],
        written: list[int],
        writer: ScriptWriter,
        vocabulary: Vocabulary,
    ) -> None:
        self._left = list(parts)
        self._written = written
        self._writer = writer
        self._vocabulary = vocabulary

    def rest(self) -> list[int]:
        messages = messages_of(self._written, self._vocabulary)
        for message in messages:
            if message.terminator is not None:
                self._pass(message)
        last = messages[-1] if messages else None
        if last is None or last.terminator == END:
            return self._say_left()
        if last.terminator is not None:
            return []  # the turn had ended
        if last.body is None:
            return self._finish_header(last)
        return self._finish_body(kind_of(last), self._written[last.body :])

    def _pass(self, message: Message) -> None:
        # Also takes out the message that a complete one stands for.
        kind = kind_of(message)
        body = tuple(self._written[message.body : message.body_end])
        for index, part in enumerate(self._left):
            if (part.kind, part.body) == (kind, body):
                self._left = self._left[index + 1 :]
                return
        self._pass_kind(kind)

    def _pass_kind(self, kind: str) -> None:
        self._left = list(dropwhile(lambda part: part.kind == kind, self._left))

    def _say_left(self) -> list[int]:
        parts = self._left or [self._writer.part(FINAL)]
        return [one for part in parts for one in part.ids]

    def _finish_header(self, message: Message) -> list[int]:
        header = tuple(self._written[message.start :])
        for kind, candidate in self._headers():
            if candidate[: len(header)] == header:
                return [*candidate[len(header) :], *self._finish_body(kind, [])]
        for kind in self._writer.call_kinds:
            mark = self._writer.parts.call_mark(kind)
            rest = self._rest_of_text(header[len(OPENING) :], f" to={kind}", mark)
            if rest is not None:
                return [*rest, *self._finish_body(kind, [])]
        return [MESSAGE, *self._finish_body(kind_of(message), [])]

    def _headers(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield from ((part.kind, part.header) for part in self._left)
        for kind in (FINAL, ANALYSIS, COMMENTARY, *self._writer.call_kinds):
            yield kind, self._writer.parts.header(kind)

    def _finish_body(self, kind: str, body: list[int]) -> list[int]:
        for index, part in enumerate(self._left):
            if part.kind == kind and list(part.body[: len(body)]) == body:
                self._left = self._left[index + 1 :]
                return self._go_on(part, list(part.body[len(body) :]))
        part = self._writer.part(kind)
        self._pass_kind(kind)
        if list(part.body[: len(body)]) == body:
            return self._go_on(part, list(part.body[len(body) :]))
        text = self._vocabulary.decode(list(part.body))
        rest = self._rest_of_text(body, text, [])
        return self._go_on(part, self._close(kind, body) if rest is None else rest)

    def _rest_of_text(self, ids: Sequence[int], text: str, tail: Sequence[int]) -> list[int] | None:
        # Another tokenizer may have cut the first ids of the text; None: it is another text. The
        # fewest first ids are taken for foreign, so that the rest is the same after any cut.
        written = text.encode()
        for count in range(min(len(ids), FOREIGN_IDS_MAX) + 1):
            begun = b"".join(map(self._vocabulary.piece, ids[:count]))
            if not written.startswith(begun) or not all(map(_is_text, ids[:count])):
                return None
            rest = self._ids_of(written[len(begun) :])
            own = list(ids[count:])
            if rest is not None and [*rest, *tail][: len(own)] == own:
                return [*rest, *tail][len(own) :]
        return None

    def _ids_of(self, text: bytes) -> list[int] | None:
        # None: the text begins in the middle of a character.
        try:
            return self._vocabulary.encode(text.decode())
        except UnicodeDecodeError:
            return None

    def _close(self, _kind: str, body: list[int]) -> list[int]:
        words = self._vocabulary.encode(CLOSING_WORDS)
        for count in range(len(words), 0, -1):
            if body[-count:] == words[:count]:
                return words[count:]
        return words

    def _go_on(self, part: Part, body: list[int]) -> list[int]:
        after = [] if part.ends_turn else self._say_left()
        return [*body, part.terminator, *after]


def _is_text(token: int) -> bool:
    return token < FIRST_SPECIAL
