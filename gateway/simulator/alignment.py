"""What is still to be said of a script, given what was said already.

A cut turn goes on exactly where it broke off. When what is there is not the beginning of the
script, because a gateway prefilled a header or another model spoke before, the script's message
that fits is continued; where none fits, one is improvised in the channel that is open. In each case

    rest(said) == out  implies  rest(said + out[:k]) == out[k:]  for every k.
"""

from __future__ import annotations

from itertools import dropwhile
from typing import TYPE_CHECKING, Final

from gateway.harmony.vocabulary import END, MESSAGE
from gateway.simulator.script import ANALYSIS, COMMENTARY, FINAL
from gateway.simulator.transcript import messages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.harmony.vocabulary import Vocabulary
    from gateway.simulator.script import Part, Script
    from gateway.simulator.transcript import Message

    Improvise = Callable[[str], Part]

CLOSING_WORDS: Final = "\N{HORIZONTAL ELLIPSIS} and so on, as the script has it."
"""Ends a body that somebody else began. Its first id is rare, so that it is found again."""


def rest_of(
    script: Script, said: Sequence[int], improvise: Improvise, vocabulary: Vocabulary
) -> list[int]:
    """The ids after `said`, a turn's ids from its `<|start|>assistant` on.

    `improvise(kind)` makes the one message of a kind that the script does not have.
    """
    if script.ids[: len(said)] == list(said):
        return script.ids[len(said) :]
    return _Realignment(script.parts, list(said), improvise, vocabulary).rest()


class _Realignment:
    def __init__(
        self, parts: Sequence[Part], said: list[int], improvise: Improvise, vocabulary: Vocabulary
    ) -> None:
        self._left = list(parts)
        self._said = said
        self._improvise = improvise
        self._vocabulary = vocabulary

    def rest(self) -> list[int]:
        messages = messages_of(self._said, self._vocabulary)
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
        return self._finish_body(_kind(last), self._said[last.body :])

    def _pass(self, message: Message) -> None:
        """Take out of what is left what a complete message said, or stands for."""
        kind = _kind(message)
        body = tuple(self._said[message.body : message.body_end])
        for index, part in enumerate(self._left):
            if (part.kind, part.body) == (kind, body):
                self._left = self._left[index + 1 :]
                return
        self._pass_kind(kind)

    def _pass_kind(self, kind: str) -> None:
        self._left = list(dropwhile(lambda part: part.kind == kind, self._left))

    def _say_left(self) -> list[int]:
        parts = self._left or [self._improvise(FINAL)]
        return [one for part in parts for one in part.ids]

    def _finish_header(self, message: Message) -> list[int]:
        header = tuple(self._said[message.start :])
        known = [*self._left, *map(self._improvise, (FINAL, ANALYSIS, COMMENTARY))]
        for part in known:
            if part.header[: len(header)] == header:
                return [*part.header[len(header) :], *self._finish_body(part.kind, [])]
        return [MESSAGE, *self._finish_body(_kind(message), [])]

    def _finish_body(self, kind: str, body: list[int]) -> list[int]:
        for index, part in enumerate(self._left):
            if part.kind == kind and list(part.body[: len(body)]) == body:
                self._left = self._left[index + 1 :]
                return self._go_on(part, list(part.body[len(body) :]))
        part = self._improvise(kind)
        self._pass_kind(kind)
        if list(part.body[: len(body)]) == body:
            return self._go_on(part, list(part.body[len(body) :]))
        return self._go_on(part, self._close_words(body))

    def _close_words(self, body: list[int]) -> list[int]:
        words = self._vocabulary.encode(CLOSING_WORDS)
        for count in range(len(words), 0, -1):
            if body[-count:] == words[:count]:
                return words[count:]
        return words

    def _go_on(self, part: Part, body: list[int]) -> list[int]:
        after = [] if part.ends_turn else self._say_left()
        return [*body, part.terminator, *after]


def _kind(message: Message) -> str:
    if message.recipient and message.recipient != "assistant":
        return message.recipient
    return message.channel if message.channel in {ANALYSIS, COMMENTARY} else FINAL
