"""The turns of a response that are over, told to the model again as it should have said them.

A response may take several turns. Each that follows another is asked for behind all that was said
before, and what was said may be malformed: a header without a body, an answer without a word, text
between two messages. A model goes on as it finds itself to have begun. So of a turn that is over
only its messages are repeated: id for id where that is well-formed, and otherwise written anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gateway.generation import SegmentEnded, SegmentKind, SegmentStarted
from gateway.models.harmony.framing import OPENING
from gateway.models.harmony.messages import TOOL_PREFIX, HarmonyMessage
from gateway.models.harmony.vocabulary import CALL, END, FIRST_SPECIAL, START
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


@dataclass(slots=True)
class _Said:
    """A message of a turn: what it says, and where its ids are."""

    kind: SegmentKind
    name: str
    texts: list[str] = field(default_factory=list)
    start: int = 0
    end: int = 0
    is_whole: bool = False

    @property
    def is_call(self) -> bool:
        return self.kind is SegmentKind.FUNCTION_CALL

    def says(self) -> tuple[SegmentKind, str, str]:
        return self.kind, self.name, "".join(self.texts)


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
                if message.is_whole or not message.is_call:
                    said = ids[message.start : message.end]
                    told += (*(self._repeated(said, message) or self._anew(message)), *OPENING)
        return told

    def _repeated(self, said: Sequence[int], message: _Said) -> Sequence[int] | None:
        """The ids behind `<|start|>assistant`, closed as they should be; None where they are not
        well-formed.
        """
        size = len(said)
        while size and said[size - 1] >= FIRST_SPECIAL:
            size -= 1
        begin = len(OPENING) if said[0] == START else 0
        if tuple(said[:begin]) != OPENING[:begin]:
            return None
        ids = (*said[begin:size], CALL if message.is_call else END)
        parser = self._new_parser()
        again = [one.says() for one in _messages(parser, ids, None)]
        return None if parser.recoveries or again != [message.says()] else ids

    def _anew(self, message: _Said) -> Sequence[int]:
        kind, name, text = message.says()
        to = TOOL_PREFIX + name if message.is_call else None
        written = HarmonyMessage("assistant", text, _CHANNELS[kind], to, is_json=message.is_call)
        return self._writer.message_ids(written)[len(OPENING) :]


def _messages(
    parser: TokenParser, ids: Sequence[int], finish: FinishReason | None
) -> Iterator[_Said]:
    """The messages of a turn that ended so (None: it was broken off)."""
    said = _Said(SegmentKind.REASONING, "")
    for event in (*parser.feed(ids), *parser.finish(finish)):
        if isinstance(event, SegmentStarted):
            said = _Said(event.kind, event.name)
        elif isinstance(event, SegmentEnded):
            said.start, said.end = event.start, event.end
            said.is_whole = event.complete and not event.broken
            yield said
        else:
            said.texts.append(event.text)
