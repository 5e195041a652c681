"""Ids that frame a turn: what every prompt ends with, and what opens an answer for the model."""

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


def continue_with_answer(prompt_ids: Sequence[int], output_ids: Sequence[int]) -> list[int]:
    """The prompt that makes a model answer which ended its turn without saying anything visible.

    Recovery rule R10: what was said so far stays, then the header of the answer is opened.
    """
    said = list(output_ids)
    while said and (said[-1] in STOP_IDS or said[-1] == END):
        said.pop()
    if not said:
        return [*prompt_ids, *FINAL_HEADER]
    return [*prompt_ids, *said, END, *OPENING, *FINAL_HEADER]
