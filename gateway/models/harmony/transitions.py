"""The grammar of Harmony output: states, classes of ids, and one table of transitions.

A turn is a sequence of messages. The prompt ends with `<|start|>assistant`, so the first id of the
output is inside of a header. As trained, it goes on like this:

    HEADER --<|message|>--> BODY --<|end|>, <|return|> or <|call|>--> BETWEEN --<|start|>--> HEADER

The model leaves this path in a few per cent of its turns. It forgets `<|message|>`, so that the
body lies trapped in the header; it begins a message inside of another, or without `<|start|>`; it
speaks between messages, or for somebody else. Hence three laws, which the table below makes easy to
check, since it has an entry for every state and every class of id:

1. It is total. No sequence of ids raises, and none leaves the parser in a state of which the next
   id cannot be made sense.
2. It never looks ahead. The events depend on the ids, not on how they were cut into calls: a run of
   text is one step however long it is, and any cut of it leads to the same place.
3. No id of 199998 or above ever becomes text. Such ids only choose the entry of the table.

An entry is the action to take and the state that follows. An action may overrule the state in two
cases only: the turn ends with a message that is not the assistant's (OVER), and a header of more
ids than a header can have turns out to be a body (BODY).

What may stream and what must wait: text of a body streams, if its header has a known channel or
recipient. A trapped body waits for the end of its header, text between messages for the next
special id, a body without a channel for the next message or the end, and the body of a message
whose role is a tool's name for the `<|call|>` that makes it a call.

The cost is constant for each id: a run of text in a body is one step and one join of bytes, a
header is read once when it is complete, and it is complete after a bounded number of ids.

Everything that decides what follows what is in this file; this file does not know what text is.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import TYPE_CHECKING, Final

from gateway.models.harmony.vocabulary import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    END_OF_TEXT,
    MESSAGE,
    RETURN,
    START,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


class State(IntEnum):
    """Where in a turn the next id falls."""

    HEADER = auto()  # a message began, its <|message|> has not been seen
    BODY = auto()  # behind <|message|>
    BETWEEN = auto()  # behind a stop id, before the next header
    OVER = auto()  # the turn is finished; nothing counts any more


class Token(IntEnum):
    """What the table tells apart."""

    TEXT = auto()  # a run of ordinary ids
    START = auto()
    CHANNEL = auto()
    CONSTRAIN = auto()
    MESSAGE = auto()
    STOP = auto()  # <|end|>, <|return|>, <|call|>: ends a message
    END_OF_TEXT = auto()  # ends a message and the turn
    VOID = auto()  # reserved, or outside of the vocabulary


class Action(IntEnum):
    """What a step does besides changing the state; `parsing.Parser` does it."""

    EXTEND_HEADER = auto()
    MARK_HEADER = auto()  # a special id that divides a header into parts
    RESTART_HEADER = auto()
    TRAP = auto()  # the header ended without <|message|>
    BEGIN_BODY = auto()
    WRITE = auto()
    DROP_MARKER = auto()
    CLOSE = auto()
    CLOSE_AND_OPEN = auto()
    HOLD = auto()  # text between messages, an orphan until the next special id
    SETTLE = auto()  # a stop id: no message will adopt the orphan
    OPEN = auto()  # <|start|>
    IMPLY_HEADER = auto()  # a header without <|start|>; the orphan may be its front
    IMPLY_BODY = auto()  # <|message|> without any header
    DROP_VOID = auto()
    IGNORE = auto()


TABLE: Final[Mapping[State, Mapping[Token, tuple[Action, State]]]] = {
    State.HEADER: {
        Token.TEXT: (Action.EXTEND_HEADER, State.HEADER),
        Token.START: (Action.RESTART_HEADER, State.HEADER),
        Token.CHANNEL: (Action.MARK_HEADER, State.HEADER),
        Token.CONSTRAIN: (Action.MARK_HEADER, State.HEADER),
        Token.MESSAGE: (Action.BEGIN_BODY, State.BODY),
        Token.STOP: (Action.TRAP, State.BETWEEN),
        Token.END_OF_TEXT: (Action.TRAP, State.OVER),
        Token.VOID: (Action.DROP_VOID, State.HEADER),
    },
    State.BODY: {
        Token.TEXT: (Action.WRITE, State.BODY),
        Token.START: (Action.CLOSE_AND_OPEN, State.HEADER),
        Token.CHANNEL: (Action.CLOSE_AND_OPEN, State.HEADER),
        Token.CONSTRAIN: (Action.DROP_MARKER, State.BODY),
        Token.MESSAGE: (Action.DROP_MARKER, State.BODY),
        Token.STOP: (Action.CLOSE, State.BETWEEN),
        Token.END_OF_TEXT: (Action.CLOSE, State.OVER),
        Token.VOID: (Action.DROP_VOID, State.BODY),
    },
    State.BETWEEN: {
        Token.TEXT: (Action.HOLD, State.BETWEEN),
        Token.START: (Action.OPEN, State.HEADER),
        Token.CHANNEL: (Action.IMPLY_HEADER, State.HEADER),
        Token.CONSTRAIN: (Action.IMPLY_HEADER, State.HEADER),
        Token.MESSAGE: (Action.IMPLY_BODY, State.BODY),
        Token.STOP: (Action.SETTLE, State.BETWEEN),
        Token.END_OF_TEXT: (Action.SETTLE, State.OVER),
        Token.VOID: (Action.DROP_VOID, State.BETWEEN),
    },
    State.OVER: dict.fromkeys(Token, (Action.IGNORE, State.OVER)),
}

CLASSES: Final = {
    START: Token.START,
    CHANNEL: Token.CHANNEL,
    CONSTRAIN: Token.CONSTRAIN,
    MESSAGE: Token.MESSAGE,
    END: Token.STOP,
    RETURN: Token.STOP,
    CALL: Token.STOP,
    END_OF_TEXT: Token.END_OF_TEXT,
}
