"""Ids that frame a turn, and how the turns of one response follow each other as one prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.harmony.vocabulary import CHANNEL, END, MESSAGE, START, STOP_IDS

if TYPE_CHECKING:
    from collections.abc import Sequence

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
