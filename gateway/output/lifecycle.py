"""What may follow what: the statuses of responses and items, and the order of stream events.

Two rules. Everything that decides an order stands in this file, as a table; and the tables know
nothing of how a body is built. The builder walks them and cannot emit anything else:

    stream   = OPENING_EVENT waiting* (running+ (running | item)*)? CLOSING_EVENTS
    item     = opening delta* closing          of one row of ENVELOPES, items never overlap
    waiting  = response.queued                 STATUS_EVENTS; repeated, it says: still alive
    running  = response.in_progress            the same, anywhere between two item events

Sources: the event reference of the OpenAI Responses API, recorded streams, and the prose of Open
Responses 2026-04-24 (an item that is `incomplete` is the last one; content is always wrapped in
`content_part` events).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from gateway import ids
from gateway.generation import SegmentKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.protocol.items import Phase
    from gateway.protocol.responses import ResponseStatus

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ItemType = Literal["message", "reasoning", "function_call"]
_Status = TypeVar("_Status", bound=str)

RESPONSE_STATUSES: Final[Mapping[ResponseStatus, frozenset[ResponseStatus]]] = {
    "queued": frozenset({"in_progress", "failed", "cancelled"}),
    "in_progress": frozenset({"completed", "incomplete", "failed", "cancelled"}),
    "completed": frozenset(),
    "incomplete": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}
"""Which status of a response may follow which; a terminal one is never left."""

ITEM_STATUSES: Final[Mapping[ItemStatus, frozenset[ItemStatus]]] = {
    "in_progress": frozenset({"completed", "incomplete"}),
    "completed": frozenset(),
    "incomplete": frozenset(),
}
"""The same for an item."""

OPENING_EVENT: Final = "response.created"
STATUS_EVENTS: Final[Mapping[ResponseStatus, str]] = {
    "queued": "response.queued",
    "in_progress": "response.in_progress",
}
"""The event that says that a response has this status, or that it has it still."""

ERROR_EVENT: Final = "error"

ERROR_TYPES: Final[Mapping[str, str]] = {"context_length_exceeded": "invalid_request_error"}
"""The `type` of an error by its code, where the two differ."""

CLOSING_EVENTS: Final[Mapping[ResponseStatus, tuple[str, ...]]] = {
    "completed": ("response.completed",),
    "incomplete": ("response.incomplete",),
    "failed": (ERROR_EVENT, "response.failed"),
    # The API has no event of its own for it, and to the client that cancelled it is no error.
    "cancelled": ("response.failed",),
}
"""How a stream ends, by the status it ends with. The last event is the terminal one."""

EVENT_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "response.output_item.added": ("output_index", "item"),
    "response.content_part.added": ("item_id", "output_index", "content_index", "part"),
    "response.output_text.delta": (
        *("item_id", "output_index", "content_index"),
        *("delta", "logprobs"),
    ),
    "response.output_text.done": (
        *("item_id", "output_index", "content_index"),
        *("text", "logprobs"),
    ),
    "response.reasoning_text.delta": ("item_id", "output_index", "content_index", "delta"),
    "response.reasoning_text.done": ("item_id", "output_index", "content_index", "text"),
    "response.function_call_arguments.delta": ("item_id", "output_index", "delta"),
    # `name` is required by OpenAI's OpenAPI document, though its SDK does not know it yet.
    "response.function_call_arguments.done": ("item_id", "output_index", "arguments", "name"),
    "response.content_part.done": ("item_id", "output_index", "content_index", "part"),
    "response.output_item.done": ("output_index", "item"),
}
"""The fields of every item event after `type` and `sequence_number`, in order."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """How one kind of segment is shown: as which item, and in which events.

    `needs_delta`: at least one delta is sent even when there is no text, for clients that take
    arguments from deltas only. Such an item exists without text, too; any other does not.
    """

    item_type: ItemType
    id_prefix: str
    opening: tuple[str, ...]
    delta: str
    closing: tuple[str, ...]
    phase: Phase | None = None
    needs_delta: bool = False


def _message(phase: Phase) -> Envelope:
    return Envelope(
        item_type="message",
        id_prefix=ids.MESSAGE_PREFIX,
        opening=("response.output_item.added", "response.content_part.added"),
        delta="response.output_text.delta",
        closing=(
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
        ),
        phase=phase,
    )


ENVELOPES: Final[Mapping[SegmentKind, Envelope]] = {
    SegmentKind.REASONING: Envelope(
        item_type="reasoning",
        id_prefix=ids.REASONING_PREFIX,
        opening=("response.output_item.added", "response.content_part.added"),
        delta="response.reasoning_text.delta",
        closing=(
            "response.reasoning_text.done",
            "response.content_part.done",
            "response.output_item.done",
        ),
    ),
    SegmentKind.COMMENTARY: _message("commentary"),
    SegmentKind.FINAL: _message("final_answer"),
    SegmentKind.FUNCTION_CALL: Envelope(
        item_type="function_call",
        id_prefix=ids.FUNCTION_CALL_PREFIX,
        opening=("response.output_item.added",),
        delta="response.function_call_arguments.delta",
        closing=("response.function_call_arguments.done", "response.output_item.done"),
        needs_delta=True,
    ),
}


def advance(table: Mapping[_Status, frozenset[_Status]], now: _Status, to: _Status) -> _Status:
    """`to`, where `table` lets it follow `now`. Raises `ValueError` where it does not."""
    if to not in table[now]:
        raise ValueError(f"status {to} cannot follow {now}")
    return to
