"""Headers that are put into the model's mouth, where no grammar holds it to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.models.harmony.framing import CALL_PREFIX, FINAL, FINAL_HEADER
from gateway.models.harmony.vocabulary import CHANNEL, CONSTRAIN, MESSAGE

if TYPE_CHECKING:
    from gateway.constraints.rules import OutputRules
    from gateway.models.harmony.vocabulary import Vocabulary

_SPACE = 220
_JSON = 4108
_BRACE = 90
_COMMENTARY = (12606, 815)

_JSON_CONTENT = (_SPACE, CONSTRAIN, _JSON, MESSAGE)


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


def channel_header() -> tuple[int, ...]:
    """Has the model name a channel, and so begin a header that can be read."""
    return (CHANNEL,)
