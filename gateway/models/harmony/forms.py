"""The forms of a header that say the same: a small number, which the ids of an item note.

Form 0 is openai-harmony's. A call's recipient stands before the channel (forms 0 to 3) or behind it
(4 to 7), and in each of the two the content type is ` <|constrain|>json`, ` json`, none, or
`<|constrain|>json` without the space. A message has no recipient: none, ` <|constrain|>json`,
` json`, `<|constrain|>json` are its forms 0 to 3.

`gateway.ids` notes up to eight forms in the `call_id` of a call, and four in the id of a message.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from gateway.models.harmony.headers import ASSISTANT, NO_MARKER, Part
from gateway.models.harmony.vocabulary import CHANNEL, CONSTRAIN, START

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    ContentType = tuple[str, tuple[Part, ...]]

CALL_CHANNEL: Final = "commentary"
"""The channel that calls were trained on."""

CALLED_NAMES: Final = 128
"""The forms of headers to the functions called last are kept, of so many."""

_JSON: Final = (Part(CONSTRAIN, "json"),)
_SPACED: Final[ContentType] = (" ", _JSON)
_WORD: Final[ContentType] = (" json", ())
_NONE: Final[ContentType] = ("", ())
_GLUED: Final[ContentType] = ("", _JSON)
_TYPES_OF_CALLS: Final = (_SPACED, _WORD, _NONE, _GLUED)
_TYPES_OF_MESSAGES: Final = (_NONE, _SPACED, _WORD, _GLUED)


def headers(channel: str, recipient: str | None = None) -> Iterator[tuple[Part, ...]]:
    """A header in each of its forms, from form 0 on: what stands behind `<|start|>assistant`.

    `recipient` is whole, as in `functions.f`; None for a message to the user.
    """
    if recipient is None:
        orders = [("", channel)]
        content_types = _TYPES_OF_MESSAGES
    else:
        to = f" to={recipient}"
        orders = [(to, channel), ("", channel + to)]
        content_types = _TYPES_OF_CALLS
    for front, channel_text in orders:
        for text, constrained in content_types:
            yield (Part(NO_MARKER, front), Part(CHANNEL, channel_text + text), *constrained)


def form_of(parts: Sequence[Part], channel: str, recipient: str | None = None) -> int | None:
    """The form in which the model wrote this header; None for any that has none."""
    return _forms(channel, recipient).get(_without_role(parts))


@lru_cache(maxsize=CALLED_NAMES)
def _forms(channel: str, recipient: str | None) -> dict[tuple[Part, ...], int]:
    return {one: at for at, one in enumerate(headers(channel, recipient))}


def _without_role(parts: Sequence[Part]) -> tuple[Part, ...]:
    if not parts or parts[0].marker != START:
        return tuple(parts)
    return (Part(NO_MARKER, parts[0].text.removeprefix(ASSISTANT)), *parts[1:])
