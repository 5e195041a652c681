"""Messages as ids, piece by piece as openai-harmony 0.0.8 writes them."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from gateway.models.harmony.cutting import PIECE_CHARS, pieces
from gateway.models.harmony.forms import headers
from gateway.models.harmony.headers import NO_MARKER
from gateway.models.harmony.vocabulary import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, START

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.models.harmony.messages import HarmonyMessage
    from gateway.models.harmony.vocabulary import Vocabulary


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
