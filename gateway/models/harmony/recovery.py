"""Rules of recovery from irregular output, which are counted.

A message that a rule touched is rendered anew for the next prompt, so that the model does not learn
its own slips.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from gateway.models.format import AFTER_ANSWER_RULE

if TYPE_CHECKING:
    from collections.abc import Iterable


class Rule(StrEnum):
    # Framing.
    DOUBLED_START = "doubled_start"  # <|start|> or its role again, where a header is open already
    MISSING_START = "missing_start"  # a header without <|start|>
    MISSING_ROLE = "missing_role"  # <|start|> without a role
    UNCLOSED_MESSAGE = "unclosed_message"  # a header begins inside of a body
    MARKER_IN_BODY = "marker_in_body"  # <|message|> or <|constrain|> inside of a body
    RESERVED_ID = "reserved_id"  # an id that is neither text nor a Harmony marker
    WRONG_TERMINATOR = "wrong_terminator"  # closed by an id that closes another kind of message

    # Headers.
    NO_MESSAGE_TOKEN = "no_message_token"  # noqa: S105 - the body is in the header
    ABANDONED_HEADER = "abandoned_header"  # neither <|message|> nor a body
    HEADER_TOO_LONG = "header_too_long"  # more ids than a header may have
    HEADER_AS_TEXT = "header_as_text"  # a channel was named without <|channel|>
    HEADER_LEFTOVER = "header_leftover"  # words in the header that mean nothing there
    NO_CHANNEL = "no_channel"  # no known channel
    DUPLICATE_CHANNEL = "duplicate_channel"
    DUPLICATE_RECIPIENT = "duplicate_recipient"
    RECIPIENT_NORMALISED = "recipient_normalised"  # a declared tool, misspelt in a known way
    CALL_OFF_COMMENTARY = "call_off_commentary"  # a call on another channel than commentary
    CALL_BY_TERMINATOR = "call_by_terminator"  # JSON closed by <|call|>: one callee, no recipient
    ODD_CONTENT_TYPE = "odd_content_type"  # a content type other than json

    # Addressees.
    UNDECLARED_FUNCTION = "undeclared_function"  # functions.X, but no X was declared
    CALL_NOT_ALLOWED = "call_not_allowed"  # any call, under tool_choice none
    BUILTIN_NOT_ENABLED = "builtin_not_enabled"  # python, browser or container
    UNKNOWN_RECIPIENT = "unknown_recipient"
    ADDRESSED_TO_ASSISTANT = "addressed_to_assistant"  # a note of the model to itself
    ROLE_IS_TOOL_NAME = "role_is_tool_name"  # <|start|>TOOL … <|call|>
    FOREIGN_ROLE = "foreign_role_truncated"  # the model speaks for the user or for a tool

    # Text outside of messages, and what follows the end.
    ORPHAN_TEXT = "orphan_text"
    TEXT_AFTER_CALL = "text_after_call_dropped"
    AFTER_ANSWER = AFTER_ANSWER_RULE  # what has to be guessed, behind a whole answer
    AFTER_TURN_END = "after_turn_end"  # counted once for each ignored id

    # Arguments of calls.
    EMPTY_ARGUMENTS = "empty_arguments"
    PADDED_ARGUMENTS = "padded_arguments"  # whitespace around the JSON value
    REPEATED_ARGUMENTS = "repeated_arguments"  # the same JSON value more than once
    FENCED_ARGUMENTS = "fenced_arguments"  # the JSON value is in a code fence
    STRAY_CLOSER = "stray_closer"  # brackets and quotes behind the JSON value that close nothing
    CONTROL_CHARACTER = "control_character"  # in a string of the JSON value: escaped
    INVALID_ARGUMENTS = "invalid_arguments"  # passed through as they are

    # The turn.
    NO_VISIBLE_OUTPUT = "no_visible_output"  # nothing but reasoning, or nothing at all
    PREAMBLE_ONLY = "preamble_only"  # a preamble and neither a call nor an answer, with tools


DOUBTS: Final = frozenset(
    {
        Rule.NO_CHANNEL,
        Rule.HEADER_TOO_LONG,
        Rule.UNKNOWN_RECIPIENT,
        Rule.BUILTIN_NOT_ENABLED,
        Rule.CALL_NOT_ALLOWED,
        Rule.AFTER_ANSWER,
    }
)
"""Rules that guess the recipient of a message. Behind a whole answer such a message is dropped."""
_READ: Final = frozenset({Rule.NO_CHANNEL})
"""Doubts that the position of a message settles."""
_JUNK: Final = frozenset(
    {Rule.DUPLICATE_RECIPIENT, Rule.HEADER_LEFTOVER, Rule.ODD_CONTENT_TYPE, Rule.DUPLICATE_CHANNEL}
)


def doubts(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return the `DOUBTS`; an undeclared function is one if the header has junk."""
    applied = tuple(rules)
    is_junk = not _JUNK.isdisjoint(applied)
    return tuple(
        rule for rule in applied if rule in DOUBTS or (rule is Rule.UNDECLARED_FUNCTION and is_junk)
    )


def unreadable(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    # A foreign role is not among them: what came before such a message is complete.
    return tuple(rule for rule in doubts(rules) if rule not in _READ)
