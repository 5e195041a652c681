"""Ids that frame a turn: between the turns of one response, and put into the model's mouth where no
grammar holds it to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.models.harmony.vocabulary import (
    CHANNEL,
    CONSTRAIN,
    END,
    FIRST_SPECIAL,
    MESSAGE,
    START,
    STOP_IDS,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.constraints.rules import OutputRules
    from gateway.models.harmony.vocabulary import Vocabulary

ASSISTANT: Final = 173781
"""The id of the word `assistant`."""
FINAL: Final = 17196
"""The id of the word `final`."""

OPENING: Final = (START, ASSISTANT)
"""A prompt ends with it; a message stored for the next prompt begins with it."""
FINAL_HEADER: Final = (CHANNEL, FINAL, MESSAGE)
"""Puts the model into the body of its answer."""
CALL_PREFIX: Final = (316, 28, 44580, 13)
"""` to=functions.`: the front of a call's header, up to the name."""

_SPACE = 220
_JSON = 4108
_BRACE = 90
_COMMENTARY = (12606, 815)

_JSON_CONTENT = (_SPACE, CONSTRAIN, _JSON, MESSAGE)
PLAIN_HEADER_IDS_MAX: Final = 5
"""So many ids are a header of a channel, at most, that names nobody."""

_ENDINGS: Final = frozenset({*STOP_IDS, END, START})


def thread_ids(
    prompt_ids: Sequence[int], turns: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> list[int]:
    """What a model has said in these turns, one behind the other, id for id.

    A turn is what was put into the model's mouth and what it said after it. Each earlier one
    becomes whole messages and another is begun behind it; one that said nothing, or no more than
    that it is over, leaves no trace. The last one stands as it is. (`retelling` has what a backend
    is shown of earlier turns, which is the same where the model closed what it said.)
    """
    ids = list(prompt_ids)
    for prefill, said in turns[:-1]:
        if spoken := _without_ending(said):
            ids += (*prefill, *spoken, END, *OPENING)
    for prefill, said in turns[-1:]:
        ids += (*prefill, *said)
    return ids


def _without_ending(said: Sequence[int]) -> Sequence[int]:
    size = len(said)
    while size and said[size - 1] in _ENDINGS:
        size -= 1
    return said[:size]


def call_header(rules: OutputRules, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Opens the call that is demanded.

    All of its header where only one tool may be called; otherwise what comes before the name.
    """
    if len(rules.allowed) != 1:
        return CALL_PREFIX
    [name] = rules.allowed
    recipient = vocabulary.encode(f" to=functions.{name}")
    return (*recipient, CHANNEL, *_COMMENTARY, *_JSON_CONTENT)


def answer_header(rules: OutputRules, *, attempt: int) -> tuple[int, ...]:
    """Opens the answer; in the format that is asked for, if one is.

    From the second attempt (1) on the brace of an object is there already.
    """
    if rules.answer is None:
        return FINAL_HEADER
    header = (CHANNEL, FINAL, *_JSON_CONTENT)
    if attempt and rules.answer.demand.get("type") == "object":
        return (*header, _BRACE)
    return header


def plain_header(ids: Sequence[int], at: int) -> int:
    """How many ids are a header that begins with a channel and names nobody; 0: none is there."""
    header = ids[at : at + PLAIN_HEADER_IDS_MAX]
    if header[0] != CHANNEL or MESSAGE not in header:
        return 0
    end = header.index(MESSAGE)
    return end + 1 if max(header[1:end], default=0) < FIRST_SPECIAL else 0
