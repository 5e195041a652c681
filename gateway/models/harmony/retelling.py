"""The turns of a response that are over, told to the model again as it should have said them.

A response may take several turns. Each that follows another is asked for behind all that was said
before, and what was said may be malformed: a header without a body, an answer without a word, text
between two messages. A model goes on as it finds itself to have begun. So of a turn that is over
only its messages are told, each as the prompts of all later responses tell its item: id for id if
the model said and closed it as it was trained to, and otherwise its text, written anew. A message
that was cut off is text, too: its last id may be half a character, which no text has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.generation import SegmentEnded, SegmentKind, SegmentStarted
from gateway.models.harmony.framing import OPENING
from gateway.models.harmony.messages import TOOL_PREFIX, HarmonyMessage
from gateway.models.harmony.vocabulary import CALL, END, START
from gateway.models.harmony.writing import MessageWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gateway.generation import FinishReason, TokenParser
    from gateway.models.harmony.vocabulary import Vocabulary

    Turn = tuple[Sequence[int], FinishReason | None]

_CHANNELS: Final = {
    SegmentKind.REASONING: "analysis",
    SegmentKind.COMMENTARY: "commentary",
    SegmentKind.FINAL: "final",
    SegmentKind.FUNCTION_CALL: "commentary",
}


@dataclass(frozen=True, slots=True)
class _Said:
    """A message of a turn: what it is, where its ids are, and what it says."""

    begun: SegmentStarted
    ended: SegmentEnded
    text: str

    @property
    def is_call(self) -> bool:
        return self.begun.kind is SegmentKind.FUNCTION_CALL

    @property
    def is_told(self) -> bool:
        """Nobody can answer a call that was cut off."""
        return not self.is_call or (self.ended.complete and not self.ended.broken)


class Retelling:
    """What one response said. `new_parser` makes the parsers of its turns."""

    def __init__(self, vocabulary: Vocabulary, new_parser: Callable[[], TokenParser]) -> None:
        self._writer = MessageWriter(vocabulary)
        self._new_parser = new_parser

    def ids(self, turns: Iterable[Turn]) -> list[int]:
        """What stands behind a prompt once these turns are over: messages, and another is begun
        behind each of them. A turn is its ids, those that were put into the model's mouth among
        them, and why it ended.

        Nothing is told of a call that was cut off: nobody can answer it.
        """
        told: list[int] = []
        for ids, finish in turns:
            for message in _messages(self._new_parser(), ids, finish):
                if message.is_told:
                    told += (*self._message_ids(message, ids), *OPENING)
        return told

    def _message_ids(self, message: _Said, ids: Sequence[int]) -> Sequence[int]:
        """The ids behind `<|start|>assistant`."""
        ended = message.ended
        if not ended.is_repeated:
            return self._anew(message)
        said = ids[ended.start : ended.end]
        begin = len(OPENING) if said[0] == START else 0
        return (*said[begin:-1], CALL if message.is_call else END)

    def _anew(self, message: _Said) -> Sequence[int]:
        begun = message.begun
        to = TOOL_PREFIX + begun.name if message.is_call else None
        channel = _CHANNELS[begun.kind]
        written = HarmonyMessage("assistant", message.text, channel, to, is_json=message.is_call)
        return self._writer.message_ids(written, form=begun.form)[len(OPENING) :]


def _messages(
    parser: TokenParser, ids: Sequence[int], finish: FinishReason | None
) -> Iterator[_Said]:
    """The messages of a turn that ended so (None: it was broken off)."""
    begun = SegmentStarted(SegmentKind.REASONING)
    texts: list[str] = []
    for event in (*parser.feed(ids), *parser.finish(finish)):
        if isinstance(event, SegmentStarted):
            begun, texts = event, []
        elif isinstance(event, SegmentEnded):
            yield _Said(begun, event, "".join(texts))
        else:
            texts.append(event.text)
