"""The order of stream events, and of the statuses of responses and items.

Every order is a table here, which the builder walks:

    stream   = OPENING_EVENT waiting* (running+ (running | item)*)? CLOSING_EVENTS
    item     = opening delta* closing          of one row of ENVELOPES, items never overlap
             | opening COMMAND_EVENTS* closing   of a row without delta: it is shown at once
             | COMPACTION_EVENTS                 the first item, if it is a compaction
             | LISTING_EVENTS                    before the first turn, one for each MCP server
             | opening delta* closing[:-1] Envelope.running (completed | failed) closing[-1]
                                                 a call that the gateway runs itself
    delta    = that of the row; ANNOTATION_EVENT follows the one with the cited text
    waiting  = response.queued                 STATUS_EVENTS; repeated as a keep-alive
    running  = response.in_progress            the same, anywhere between two item events

Sources: the event reference of the OpenAI Responses API, recorded streams, and the prose of Open
Responses 2026-04-24 (an item that is `incomplete` is the last one; content is always wrapped in
`content_part` events).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from gateway import ids
from gateway.generation import HOSTED_KINDS, SegmentKind
from gateway.protocol.context_item import CallKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.protocol.items import Phase
    from gateway.protocol.responses.response_object import ResponseStatus

ItemStatus = Literal["in_progress", "completed", "incomplete", "failed"]
ItemType = (
    CallKind
    | Literal[
        "message",
        "reasoning",
        "web_search_call",
        "code_interpreter_call",
        "mcp_call",
        "mcp_approval_request",
    ]
)
PartType = Literal["output_text", "refusal", "reasoning_text"]
_Status = TypeVar("_Status", bound=str)

RESPONSE_STATUSES: Final[Mapping[ResponseStatus, frozenset[ResponseStatus]]] = {
    "queued": frozenset({"in_progress", "failed", "cancelled"}),
    "in_progress": frozenset({"completed", "incomplete", "failed", "cancelled"}),
    "completed": frozenset(),
    "incomplete": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}

ITEM_STATUSES: Final[Mapping[ItemStatus, frozenset[ItemStatus]]] = {
    "in_progress": frozenset({"completed", "incomplete", "failed"}),
    "completed": frozenset(),
    "incomplete": frozenset(),
    "failed": frozenset(),
}
"""Only what the gateway runs itself can fail."""

RUNNING_STATUSES: Final[Mapping[str, str]] = {
    "web_search_call": "searching",
    "code_interpreter_call": "interpreting",
    "mcp_call": "calling",
}
"""Status shown while the gateway runs the call, by item type."""

OPENING_EVENT: Final = "response.created"
STATUS_EVENTS: Final[Mapping[ResponseStatus, str]] = {
    "queued": "response.queued",
    "in_progress": "response.in_progress",
}

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

SUMMARY_OPENING_EVENT: Final = "response.reasoning_summary_part.added"
SUMMARY_DELTA_EVENT: Final = "response.reasoning_summary_text.delta"
SUMMARY_CLOSING_EVENTS: Final = (
    "response.reasoning_summary_text.done",
    "response.reasoning_summary_part.done",
)
"""Just before the item is closed. The first text of a summary opens it."""

COMMAND_EVENTS: Final = (
    "response.shell_call_command.added",
    "response.shell_call_command.delta",
    "response.shell_call_command.done",
)
"""For each command of a shell call, one command after the other."""

COMPACTION_EVENTS: Final = (
    "response.output_item.added",
    "response.compaction.compacting",
    "response.output_item.done",
)

LISTING_ITEM: Final = "mcp_list_tools"
LISTING_EVENTS: Final[Mapping[bool, tuple[str, ...]]] = {
    is_listed: (
        "response.output_item.added",
        "response.mcp_list_tools.in_progress",
        f"response.mcp_list_tools.{end}",
        "response.output_item.done",
    )
    for is_listed, end in ((True, "completed"), (False, "failed"))
}
"""By whether an MCP server listed its tools."""

ANNOTATION_EVENT: Final = "response.output_text.annotation.added"
"""Event of a citation, which ends where the text so far ends."""

_ITEM: Final = ("item_id", "output_index")
_PART: Final = (*_ITEM, "content_index")
_SUMMARY: Final = (*_ITEM, "summary_index")
_COMMAND: Final = ("output_index", "command_index")
EVENT_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "response.output_item.added": ("output_index", "item"),
    "response.content_part.added": (*_PART, "part"),
    "response.output_text.delta": (*_PART, "delta", "logprobs"),
    "response.output_text.done": (*_PART, "text", "logprobs"),
    "response.reasoning_text.delta": (*_PART, "delta"),
    "response.reasoning_text.done": (*_PART, "text"),
    "response.function_call_arguments.delta": (*_ITEM, "delta"),
    # `name` is required by OpenAI's OpenAPI document, though its SDK does not know it yet.
    "response.function_call_arguments.done": (*_ITEM, "arguments", "name"),
    "response.refusal.delta": (*_PART, "delta"),
    "response.refusal.done": (*_PART, "refusal"),
    "response.custom_tool_call_input.delta": (*_ITEM, "delta"),
    "response.custom_tool_call_input.done": (*_ITEM, "input"),
    "response.code_interpreter_call_code.delta": (*_ITEM, "delta"),
    "response.code_interpreter_call_code.done": (*_ITEM, "code"),
    "response.mcp_call_arguments.delta": (*_ITEM, "delta"),
    "response.mcp_call_arguments.done": (*_ITEM, "arguments"),
    "response.web_search_call.in_progress": _ITEM,
    "response.web_search_call.searching": _ITEM,
    "response.web_search_call.completed": _ITEM,
    "response.code_interpreter_call.in_progress": _ITEM,
    "response.code_interpreter_call.interpreting": _ITEM,
    "response.code_interpreter_call.completed": _ITEM,
    "response.mcp_call.in_progress": _ITEM,
    "response.mcp_call.completed": _ITEM,
    "response.mcp_call.failed": _ITEM,
    "response.mcp_list_tools.in_progress": _ITEM,
    "response.mcp_list_tools.completed": _ITEM,
    "response.mcp_list_tools.failed": _ITEM,
    ANNOTATION_EVENT: (*_PART, "annotation_index", "annotation"),
    SUMMARY_OPENING_EVENT: (*_SUMMARY, "part"),
    SUMMARY_DELTA_EVENT: (*_SUMMARY, "delta"),
    SUMMARY_CLOSING_EVENTS[0]: (*_SUMMARY, "text"),
    SUMMARY_CLOSING_EVENTS[1]: (*_SUMMARY, "part"),
    COMMAND_EVENTS[0]: (*_COMMAND, "command"),
    COMMAND_EVENTS[1]: (*_COMMAND, "delta"),
    COMMAND_EVENTS[2]: (*_COMMAND, "command"),
    COMPACTION_EVENTS[1]: _ITEM,
    "response.content_part.done": (*_PART, "part"),
    "response.output_item.done": ("output_index", "item"),
}
"""In order, after `type` and `sequence_number`."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """The item and the events that show one kind of segment.

    `delta` is empty for an item shown in one piece. `text_field` has the text of an item without
    content. `needs_delta`: one delta is sent even without text, for clients that take arguments
    from deltas only; only such an item exists without text.

    For a call that the gateway runs: `running` when it begins, `completed` or `failed` with the
    result. All but the last event of `closing` come when its text is complete.
    """

    item_type: ItemType
    id_prefix: str
    opening: tuple[str, ...]
    closing: tuple[str, ...]
    delta: str = ""
    part: PartType | None = None
    text_field: str = ""
    phase: Phase | None = None
    needs_delta: bool = False
    running: tuple[str, ...] = ()
    completed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


def _message_envelope(
    item_type: ItemType, id_prefix: str, part: PartType, text: str, *, phase: Phase | None = None
) -> Envelope:
    return Envelope(
        item_type=item_type,
        id_prefix=id_prefix,
        opening=("response.output_item.added", "response.content_part.added"),
        delta=f"{text}.delta",
        closing=(f"{text}.done", "response.content_part.done", "response.output_item.done"),
        part=part,
        phase=phase,
    )


def _call_envelope(item_type: ItemType, id_prefix: str, text_field: str, text: str) -> Envelope:
    return Envelope(
        item_type=item_type,
        id_prefix=id_prefix,
        opening=("response.output_item.added",),
        delta=f"{text}.delta",
        closing=(f"{text}.done", "response.output_item.done"),
        text_field=text_field,
        needs_delta=True,
    )


def _whole(item_type: ItemType, id_prefix: str) -> Envelope:
    return Envelope(
        item_type=item_type,
        id_prefix=id_prefix,
        opening=("response.output_item.added",),
        closing=("response.output_item.done",),
    )


def _hosted_call_envelope(
    item_type: ItemType, text_field: str, text: str, *, running: str = "", failed: str = ""
) -> Envelope:
    call = f"response.{item_type}"
    return Envelope(
        item_type=item_type,
        id_prefix=ids.HOSTED_PREFIXES[item_type],
        opening=("response.output_item.added", f"{call}.in_progress"),
        delta=f"{text}.delta",
        closing=(f"{text}.done", "response.output_item.done"),
        text_field=text_field,
        needs_delta=True,
        running=(f"{call}.{running}",) if running else (),
        completed=(f"{call}.completed",),
        failed=(f"{call}.{failed}",) if failed else (),
    )


ENVELOPES: Final[Mapping[SegmentKind, Envelope]] = {
    SegmentKind.REASONING: _message_envelope(
        "reasoning", ids.REASONING_PREFIX, "reasoning_text", "response.reasoning_text"
    ),
    SegmentKind.COMMENTARY: _message_envelope(
        "message", ids.MESSAGE_PREFIX, "output_text", "response.output_text", phase="commentary"
    ),
    SegmentKind.FINAL: _message_envelope(
        "message", ids.MESSAGE_PREFIX, "output_text", "response.output_text", phase="final_answer"
    ),
    SegmentKind.REFUSAL: _message_envelope(
        "message", ids.MESSAGE_PREFIX, "refusal", "response.refusal", phase="final_answer"
    ),
    SegmentKind.FUNCTION_CALL: _call_envelope(
        "function_call", ids.FUNCTION_CALL_PREFIX, "arguments", "response.function_call_arguments"
    ),
    SegmentKind.CUSTOM_CALL: _call_envelope(
        "custom_tool_call", ids.CUSTOM_CALL_PREFIX, "input", "response.custom_tool_call_input"
    ),
    SegmentKind.LOCAL_SHELL_CALL: _whole("local_shell_call", ids.LOCAL_SHELL_CALL_PREFIX),
    SegmentKind.SHELL_CALL: _whole("shell_call", ids.SHELL_CALL_PREFIX),
    SegmentKind.APPLY_PATCH_CALL: _whole("apply_patch_call", ids.APPLY_PATCH_CALL_PREFIX),
    SegmentKind.TOOL_SEARCH_CALL: _whole("tool_search_call", ids.TOOL_SEARCH_CALL_PREFIX),
    # Nothing is shown of it before its arguments are complete: they become the action.
    SegmentKind.WEB_SEARCH_CALL: Envelope(
        item_type="web_search_call",
        id_prefix=ids.HOSTED_PREFIXES["web_search_call"],
        opening=("response.output_item.added",),
        closing=("response.output_item.done",),
        running=("response.web_search_call.in_progress", "response.web_search_call.searching"),
        completed=("response.web_search_call.completed",),
    ),
    SegmentKind.CODE_INTERPRETER_CALL: _hosted_call_envelope(
        "code_interpreter_call",
        "code",
        "response.code_interpreter_call_code",
        running="interpreting",
    ),
    SegmentKind.MCP_CALL: _hosted_call_envelope(
        "mcp_call", "arguments", "response.mcp_call_arguments", failed="failed"
    ),
    SegmentKind.MCP_APPROVAL_REQUEST: _whole(
        "mcp_approval_request", ids.HOSTED_PREFIXES["mcp_approval_request"]
    ),
}

GATEWAY_KINDS: Final = HOSTED_KINDS | {SegmentKind.MCP_APPROVAL_REQUEST}


def advance(table: Mapping[_Status, frozenset[_Status]], now: _Status, to: _Status) -> _Status:
    if to not in table[now]:
        raise ValueError(f"status {to} cannot follow {now}")
    return to
