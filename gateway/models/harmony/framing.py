"""Ids that frame a turn: between the turns of one response, and put into the model's mouth where no
grammar holds it to them.

A response may take several turns. Each that follows another is generated behind all output so far,
and that may be malformed: a header without a body, an answer without a word, text
between two messages. A model goes on as it finds itself to have begun. So of a turn that is over
only its messages are rendered again (`rerendered_ids`), each as the prompts of all later responses
render its item: id for id if the model wrote and closed it as it was trained to, and otherwise its
text, tokenised again. A message that was cut off is text, too: its last id may be half a character,
which no text has.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.generation import BROWSER_TOOLS, SEARCH_TOOL, SegmentEnded, SegmentKind, SegmentStarted
from gateway.models.harmony.message_headers import addressed, is_builtin, is_code
from gateway.models.harmony.rendering import HarmonyMessage, MessageWriter, call_message
from gateway.models.harmony.vocabulary import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    FINAL,
    FIRST_SPECIAL,
    MESSAGE,
    OPENING,
    START,
    STOP_IDS,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gateway.constraints.output_rules import OutputRules
    from gateway.generation import FinishReason, TokenParser
    from gateway.models.format import Turn
    from gateway.models.harmony.vocabulary import Vocabulary


FINAL_HEADER: Final = (CHANNEL, FINAL, MESSAGE)
"""Puts the model into the body of its answer."""
RECIPIENT_PREFIX: Final = (316, 28)
"""` to=`: the front of any call's header."""
CALL_PREFIX: Final = (*RECIPIENT_PREFIX, 44580, 13)
"""` to=functions.`: the front of the header of a function's call, up to the name."""
_SPACE = 220
_JSON = 4108
_BRACE = 90
_BROWSER: Final = frozenset(BROWSER_TOOLS)
_JSON_CONTENT = (_SPACE, CONSTRAIN, _JSON, MESSAGE)
PLAIN_HEADER_IDS_MAX: Final = 5
"""The most ids of a header that names a channel and no recipient."""
_ENDINGS: Final = frozenset({*STOP_IDS, END, START})
_CHANNELS: Final = {
    SegmentKind.REASONING: "analysis",
    SegmentKind.COMMENTARY: "commentary",
    SegmentKind.FINAL: "final",
}


def said_ids(turns: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[int]:
    """Return the model's output in these turns, one behind the other, id for id.

    A turn is its prefill and the output after it. Each earlier one becomes whole messages and
    another is begun behind it; one without output, or with no more than its end, leaves no
    trace. The last one stands as it is. (A backend is sent earlier turns as `rerendered_ids`,
    which are the same where the model closed its messages.)
    """
    ids: list[int] = []
    for prefill, output in turns[:-1]:
        if spoken := _without_ending(output):
            ids += (*prefill, *spoken, END, *OPENING)
    for prefill, output in turns[-1:]:
        ids += (*prefill, *output)
    return ids


def _without_ending(output: Sequence[int]) -> Sequence[int]:
    size = len(output)
    while size and output[size - 1] in _ENDINGS:
        size -= 1
    return output[:size]


def call_header(rules: OutputRules, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Return the ids that open the call that is demanded.

    They are all of its header where only one tool may be called, or only the browser, which has
    to search first; otherwise the ids before the name, or before the namespace where the tools
    have several.
    """
    allowed = rules.allowed
    if allowed == _BROWSER:
        return _header(SEARCH_TOOL, vocabulary)
    if len(allowed) == 1:
        [name] = allowed
        return _header(name, vocabulary)
    return RECIPIENT_PREFIX if any(map(is_builtin, allowed)) else CALL_PREFIX


def _header(name: str, vocabulary: Vocabulary) -> tuple[int, ...]:
    channel, recipient = addressed(name)
    front = (*vocabulary.encode(f" to={recipient}"), CHANNEL, *vocabulary.encode(channel))
    return (
        (*front, *vocabulary.encode(" code"), MESSAGE)
        if is_code(name)
        else (
            *front,
            *_JSON_CONTENT,
        )
    )


def answer_header(rules: OutputRules, *, attempt: int) -> tuple[int, ...]:
    """Return the ids that open the answer, in the requested format if there is one.

    From the second attempt (1) on they include the brace of an object.
    """
    if rules.answer is None:
        return FINAL_HEADER
    header = (CHANNEL, FINAL, *_JSON_CONTENT)
    if attempt and rules.answer.demand.get("type") == "object":
        return (*header, _BRACE)
    return header


def plain_header(ids: Sequence[int], at: int) -> int:
    """Count the ids of a header that begins with a channel and has no recipient; 0 without one."""
    header = ids[at : at + PLAIN_HEADER_IDS_MAX]
    if header[0] != CHANNEL or MESSAGE not in header:
        return 0
    end = header.index(MESSAGE)
    return end + 1 if max(header[1:end], default=0) < FIRST_SPECIAL else 0


@dataclass(frozen=True, slots=True)
class _WrittenMessage:
    """A message of a turn: its kind, the place of its ids, and its text."""

    begun: SegmentStarted
    ended: SegmentEnded
    text: str

    @property
    def is_call(self) -> bool:
        return self.begun.kind is SegmentKind.FUNCTION_CALL

    @property
    def is_told(self) -> bool:
        # Nobody can answer a call that was cut off.
        return not self.is_call or (self.ended.complete and not self.ended.broken)


def rerendered_ids(
    turns: Iterable[Turn], new_parser: Callable[[], TokenParser], writer: MessageWriter
) -> list[int]:
    """Return the ids behind a prompt once these turns are over.

    They are messages, and another is begun behind each turn. A turn is its ids, prefill
    included, and why it ended; `new_parser` makes the parser of each. A call that was cut off is
    left out: nobody can answer it.
    """
    rerendered: list[int] = []
    for ids, finish in turns:
        for message in _messages(new_parser(), ids, finish):
            if message.is_told:
                rerendered += (*_message_ids(message, ids, writer), *OPENING)
    return rerendered


def with_result(ids: Sequence[int], result: Sequence[int]) -> Sequence[int]:
    """Insert a result into ids that end with a call and the opening of another message.

    A long prompt stays packed: a number for each of its ids would take the loop milliseconds.
    """
    call = ids[: len(ids) - len(OPENING)]
    behind = (*result, *OPENING)
    return call + array("I", behind) if isinstance(call, array) else [*call, *behind]


def _message_ids(
    message: _WrittenMessage, ids: Sequence[int], writer: MessageWriter
) -> Sequence[int]:
    begun, ended = message.begun, message.ended
    if ended.verbatim and ended.complete:
        message_ids = ids[ended.start : ended.end]
        begin = len(OPENING) if message_ids[0] == START else 0
        return (*message_ids[begin:-1], CALL if message.is_call else END)
    if message.is_call:
        written = call_message(begun.name, message.text)
    else:
        written = HarmonyMessage("assistant", message.text, _CHANNELS[begun.kind])
    return writer.message_ids(written, form=begun.form)[len(OPENING) :]


def _messages(
    parser: TokenParser, ids: Sequence[int], finish: FinishReason | None
) -> Iterator[_WrittenMessage]:
    begun = SegmentStarted(SegmentKind.REASONING)
    texts: list[str] = []
    for event in (*parser.feed(ids), *parser.finish(finish)):
        if isinstance(event, SegmentStarted):
            begun, texts = event, []
        elif isinstance(event, SegmentEnded):
            yield _WrittenMessage(begun, event, "".join(texts))
        else:
            texts.append(event.text)
