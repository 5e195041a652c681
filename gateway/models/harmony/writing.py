"""Messages as ids, piece by piece as openai-harmony 0.0.8 writes them.

A long text is cut where its pieces have the tokens that it has as a whole.

Tokens never reach over what the vocabulary's pattern takes at once, and nothing that it takes

- begins with something else than white space and goes on with a space, or
- begins with a letter and goes on with a line feed, a full stop or a comma (Chinese ones, too).

So there a match ends, whatever stands behind it; and a match begins that depends on nothing before
it. (A space, a letter or a mark may each stand in front of others; an apostrophe may follow a
letter, and is no place to cut.)
"""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING, Final

from gateway.models.harmony.headers import NO_MARKER, headers
from gateway.models.harmony.vocabulary import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, START

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gateway.models.harmony.messages import HarmonyMessage
    from gateway.models.harmony.vocabulary import Vocabulary


PIECE_CHARS: Final = 32 * 1024
"""Making the ids of so much is short of a millisecond; meanwhile nothing else runs."""
_WINDOW_CHARS: Final = 16 * 1024
# It begins with what can be searched for at once. What is no letter is sorted out afterwards.
_PLACE: Final = re.compile(r"[ \n.,\u3002\uff0c](?:(?<=\S )|(?<=\w[\n.,\u3002\uff0c]))")


class MessageWriter:
    """Shared by all threads. Text only ever passes through `Vocabulary.encode`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._encode = vocabulary.encode
        self._encode_packed = vocabulary.encode_packed

    def message_ids(self, message: HarmonyMessage, *, form: int = 0) -> array[int]:
        """The ids of one message. `form` is that of the header of a call, or of a message of the
        assistant.
        """
        ids = array("I", [START, *self._encode(message.author)])
        ids.extend(self._formed_header(message, form) if form else self._header(message))
        ids.append(MESSAGE)
        self._write(ids, message.text)
        ids.append(CALL if message.is_call else END)
        return ids

    def plain_message(self, opening: Sequence[int], text: str) -> array[int]:
        """The ids of a message that begins with `opening`."""
        ids = array("I", opening)
        self._write(ids, text)
        ids.append(END)
        return ids

    def _write(self, ids: array[int], text: str) -> None:
        """Append the ids of a text, piece by piece: other threads run in between."""
        if len(text) <= PIECE_CHARS:
            ids.extend(self._encode(text))
            return
        for piece in pieces(text):
            ids.extend(self._encode_packed(piece))

    def _header(self, message: HarmonyMessage) -> list[int]:
        """What stands behind the author, as openai-harmony writes it."""
        ids: list[int] = []
        if message.recipient is not None:
            ids += self._encode(f" to={message.recipient}")
        if message.channel is not None:
            ids += [CHANNEL, *self._encode(message.channel)]
        if message.is_json:
            ids += [*self._encode(" "), CONSTRAIN, *self._encode("json")]
        return ids

    def _formed_header(self, message: HarmonyMessage, form: int) -> list[int]:
        """The same as a model wrote it that has another way."""
        ids: list[int] = []
        for part in tuple(headers(message.channel or "", message.recipient))[form]:
            marker = [] if part.marker == NO_MARKER else [part.marker]
            ids += [*marker, *self._encode(part.text)]
        return ids


def pieces(text: str) -> Iterator[str]:
    """The text in pieces of about `PIECE_CHARS` characters; a run without a place to cut is one."""
    start = 0
    while len(text) - start > PIECE_CHARS:
        cut = _cut(text, start + PIECE_CHARS)
        yield text[start:cut]
        start = cut
    if start < len(text):
        yield text[start:]


def _cut(text: str, low: int) -> int:
    """The first place to cut from `low` on; without one, the end."""
    for start in range(low, len(text), _WINDOW_CHARS):
        for match in _PLACE.finditer(text, start, start + _WINDOW_CHARS):
            place = match.start()
            if text[place] == " " or text[place - 1].isalpha():
                return place
    return len(text)
