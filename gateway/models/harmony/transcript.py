"""Token ids as the Harmony messages that they are, for who debugs a prompt or a turn.

A message has the shape of openai-harmony's `Message.to_dict`, its text as the model reads it: what
stands before the instructions of a developer message is part of it. Ids that are no well-formed
message (a header that says too little or too much, a marker where none may stand, text behind the
end of a message) are shown as they are, in the shape that vLLM has for raw messages:
`{"type": "raw_message_tokens", "message": …, "tokens": […]}`, with the markers spelled out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from gateway.models.harmony.framing import OPENING
from gateway.models.harmony.vocabulary import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    FIRST_SPECIAL,
    MESSAGE,
    NAMED_SPECIALS,
    RETURN,
    START,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gateway.models.harmony.vocabulary import Vocabulary

RAW: Final = "raw_message_tokens"
_ROLES: Final = ("system", "developer", "user", "assistant")
_ENDS: Final = frozenset({END, CALL, RETURN})
_MARKERS: Final = {token: marker for marker, token in NAMED_SPECIALS.items()}
_AUTHOR: Final = re.compile(r"(?P<author>[^\s<]+)(?: to=(?P<recipient>[^\s<]+))?")
_CHANNEL: Final = re.compile(
    r"(?P<channel>analysis|commentary|final)(?: to=(?P<recipient>[^\s<]+))?"
    r"(?: ?(?P<type><\|constrain\|>[^\s<]+| [^\s<]+))?"
)


def messages(
    vocabulary: Vocabulary, ids: Sequence[int], *, with_ids: bool = False
) -> list[dict[str, Any]]:
    """Return the messages of a prompt or of a turn in their order; each id is in one of them.

    The opening of a turn that a prompt ends with (`<|start|>assistant`) belongs to the turn:
    alone it is raw. `with_ids` adds `token_ids`, the ids of the whole message, to each. Takes
    any ids, and raises nothing.
    """
    return [_message(vocabulary, part, with_ids=with_ids) for part in _parts(ids)]


def messages_of_turn(
    vocabulary: Vocabulary,
    ids: Sequence[int],
    taken_back: Sequence[tuple[str, Sequence[int]]] = (),
    *,
    with_ids: bool = False,
) -> list[dict[str, Any]]:
    """Return the messages behind the opening of a turn, prefill included, then those taken back.

    `taken_back` pairs the rule that did it with the ids. Those are raw, and `taken_back_by` names
    the rule.
    """
    said = messages(vocabulary, (*OPENING, *ids), with_ids=with_ids)
    return said + [
        {**raw_message(vocabulary, voided), "taken_back_by": rule} for rule, voided in taken_back
    ]


def raw_message(vocabulary: Vocabulary, ids: Sequence[int]) -> dict[str, Any]:
    """Return ids in vLLM's shape for raw messages, with no header or body read."""
    return {"type": RAW, "message": spelled(vocabulary, ids), "tokens": list(ids)}


def spelled(vocabulary: Vocabulary, ids: Sequence[int]) -> str:
    """Return the text of ids, with markers and unknown ids spelled out.

    Bytes that are not UTF-8 become U+FFFD.
    """
    pieces = (
        vocabulary.piece(token)
        if token < FIRST_SPECIAL
        else _MARKERS.get(token, f"<|{token}|>").encode()
        for token in ids
    )
    return b"".join(pieces).decode("utf-8", "replace")


def _parts(ids: Sequence[int]) -> Iterator[list[int]]:
    part: list[int] = []
    for token in ids:
        if token == START and part:
            yield part
            part = []
        part.append(token)
        if token in _ENDS:
            yield part
            part = []
    if part:
        yield part


def _message(vocabulary: Vocabulary, part: list[int], *, with_ids: bool) -> dict[str, Any]:
    read = _well_formed(vocabulary, part)
    if read is None:
        return raw_message(vocabulary, part)
    return {**read, "token_ids": part} if with_ids else read


def _well_formed(vocabulary: Vocabulary, part: list[int]) -> dict[str, Any] | None:
    # None where the message is not well-formed. The last one may lack its end.
    if part[0] != START or MESSAGE not in part:
        return None
    at = part.index(MESSAGE)
    head, body = part[1:at], part[at + 1 :]
    if body and body[-1] in _ENDS:
        body = body[:-1]
    if any(token >= FIRST_SPECIAL for token in body):
        return None
    header = _header(vocabulary, head)
    if header is None:
        return None
    text = vocabulary.decode(body)
    return {**header, "content": [{"type": "text", "text": text}]}


def _header(vocabulary: Vocabulary, head: list[int]) -> dict[str, Any] | None:
    if any(token >= FIRST_SPECIAL and token not in {CHANNEL, CONSTRAIN} for token in head):
        return None
    front, marked, channel = spelled(vocabulary, head).partition(_MARKERS[CHANNEL])
    author = _AUTHOR.fullmatch(front)
    if author is None:
        return None
    name = author["author"]
    fields: dict[str, Any] = {"role": name} if name in _ROLES else {"role": "tool", "name": name}
    recipient = author["recipient"]
    if marked:
        read = _CHANNEL.fullmatch(channel.rstrip(" "))
        if read is None or (recipient and read["recipient"]):
            return None
        recipient = recipient or read["recipient"]
        fields["channel"] = read["channel"]
        if kind := read["type"]:
            fields["content_type"] = kind.strip()
    if recipient:
        fields["recipient"] = recipient
    return fields
