"""The names under which recovered irregularities of output in a chat format are counted.

Where the Harmony parser has a rule for the same, the name is the same.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Rule(StrEnum):
    """The name of each recovery, with what it repairs."""

    # Framing.
    RESERVED_ID = "reserved_id"  # an id that is neither text nor a marker of this syntax
    MARKER_IN_BODY = "marker_in_body"  # a marker where it means nothing
    UNCLOSED_REASONING = "unclosed_reasoning"  # a call, or the end, inside of a thought
    UNCLOSED_CALL = "unclosed_call"  # a call without the marker behind it
    AFTER_TURN_END = "after_turn_end"  # counted once for each ignored id

    # Calls.
    NOT_A_CALL = "not_a_call"  # what stands between the markers names no function
    ABANDONED_CALL = "abandoned_call"  # nothing stands there, or the beginning of a call
    CALL_LEFTOVER = "call_leftover"  # words behind the arguments
    UNDECLARED_FUNCTION = "undeclared_function"
    RECIPIENT_NORMALISED = "recipient_normalised"  # a declared tool, misspelt in a known way
    EMPTY_ARGUMENTS = "empty_arguments"
    INVALID_ARGUMENTS = "invalid_arguments"  # passed through as they are
    QUOTED_ARGUMENTS = "quoted_arguments"  # the JSON value is in a JSON string
    CONTROL_CHARACTER = "control_character"  # in a JSON string of the arguments: escaped
    UNCLOSED_JSON = "unclosed_json"  # the brace around name and arguments is missing
    SLOPPY_JSON = "sloppy_json"  # around name and arguments: commas too many, a key twice
    UNCLOSED_PARAMETER = "unclosed_parameter"  # a value without the tag that closes it
    UNCLOSED_TAG = "unclosed_tag"  # a tag that breaks off
    ODD_FRAME = "odd_frame"  # calls, or arguments, are not framed as the model was trained to

    # The turn.
    NO_VISIBLE_OUTPUT = "no_visible_output"  # nothing but reasoning, or nothing at all


def count(recoveries: dict[str, int], rules: Iterable[Rule], times: int = 1) -> None:
    for rule in rules:
        recoveries[rule.value] = recoveries.get(rule.value, 0) + times
