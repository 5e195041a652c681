"""Assemble a context: history, then the request's own items, every tool call with its output.

Rules (responses-api §1.2): context = previous input + previous output + new input, in that order;
only items are inherited; a tool output must have its call and a call must have its output, unless
the call was cut off: such a call is kept for the record and shown to nobody else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from gateway import ids
from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.protocol.context import ContextItem
from gateway.protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    ItemReference,
    Message,
    Reasoning,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from gateway.protocol.items import InputItem, Item

_ID_PREFIXES: Final = {
    "message": ids.MESSAGE_PREFIX,
    "reasoning": ids.REASONING_PREFIX,
    "function_call": ids.FUNCTION_CALL_PREFIX,
    "function_call_output": ids.FUNCTION_CALL_OUTPUT_PREFIX,
}


@dataclass(frozen=True, slots=True)
class Context:
    """`items` in prompt order; the first `inherited` of them came from the previous response."""

    items: tuple[ContextItem, ...]
    inherited: int

    @property
    def added(self) -> tuple[ContextItem, ...]:
        """What this request brought: stored and listed as its input."""
        return self.items[self.inherited :]


def referenced_ids(items: Iterable[InputItem]) -> list[str]:
    """Ids of items that only the store can fill: references, and reasoning without content."""
    unread = (item for item in items if isinstance(item, ItemReference) or _is_hollow(item))
    return [item.id for item in unread if item.id]


def assemble(
    history: Sequence[ContextItem],
    new: Sequence[InputItem],
    *,
    stored: Mapping[str, ContextItem],
    response: UUID,
) -> Context:
    """The context of one response.

    `stored` answers `referenced_ids(new)`. Raises `ResourceNotFound` for an id it lacks and
    `InvalidRequest` for a call without output or an output without call.
    """
    # An unfinished call of the last response must not be run, so it cannot be answered either.
    kept = [item for item in history if not _is_cut_call(item)]
    intake = _Intake(stored, response, new, taken={item.item_id for item in kept})
    added = [taken for item in enumerate(new) if (taken := intake.take(*item)) is not None]
    _check_pairs([*kept, *added])
    return Context((*kept, *added), inherited=len(kept))


def _is_hollow(item: InputItem) -> bool:
    """Whether it is reasoning that says nothing that could be read but its id."""
    return isinstance(item, Reasoning) and not item.content and not item.summary


def _is_cut_call(item: ContextItem) -> bool:
    return item.kind == "function_call" and not item.complete


class _Intake:
    """A request's own items, one after the other, as items of its context.

    Ids are unique within a context, so that a list of it can be read page by page: an item whose
    id is taken gets another, a reference to an item that is there already adds nothing.
    """

    def __init__(
        self,
        stored: Mapping[str, ContextItem],
        response: UUID,
        new: Iterable[InputItem],
        *,
        taken: set[str],
    ) -> None:
        self._stored = stored
        self._response = response
        self._taken = taken
        self._answered = _answered_calls(new)

    def take(self, ordinal: int, item: InputItem) -> ContextItem | None:
        """The item at `ordinal`; None for one that adds nothing."""
        if isinstance(item, ItemReference):
            taken = self._look_up(item)
        elif isinstance(item, Reasoning) and _is_hollow(item):
            taken = self._look_up(item) or self._unreadable(ordinal, item)
        else:
            taken = self._as_context(ordinal, item)
        if taken is not None:
            self._taken.add(taken.item_id)
        return taken

    def _look_up(self, item: ItemReference | Reasoning) -> ContextItem | None:
        """What is stored under the item's id; None where there is nothing to add or to miss."""
        if item.id is None or item.id in self._taken:
            return None
        found = self._stored.get(item.id)
        if found is not None:
            return None if _is_cut_call(found) else found
        if isinstance(item, Reasoning) and item.encrypted_content:
            return None
        raise ResourceNotFound(
            f"Item with id '{item.id}' not found. Items are not persisted when `store` is set to "
            "false. Try again with `store` set to true, or remove this item from your input.",
            param="input",
        )

    def _unreadable(self, ordinal: int, item: Reasoning) -> ContextItem | None:
        """Reasoning that another provider encrypted: kept for the record, told to no model."""
        if not item.encrypted_content or item.id in self._taken:
            return None
        return self._as_context(ordinal, item)

    def _as_context(self, ordinal: int, item: Item) -> ContextItem:
        """An item as the request brought it, with an id and a status for the listing."""
        made_id = ids.input_item_id(_ID_PREFIXES[item.type], self._response, ordinal)
        item_id = made_id if item.id is None or item.id in self._taken else item.id
        # A call that its provider marked as cut off, and that nobody answers, stays so.
        is_cut = isinstance(item, FunctionCall) and item.status == "incomplete"
        complete = not is_cut or ordinal in self._answered
        body = item.model_dump(mode="python", exclude_none=True)
        body |= {"id": item_id, "status": "completed" if complete else "incomplete"}
        return ContextItem(
            kind=item.type,
            item_id=item_id,
            json=orjson.dumps(body),
            role=item.role if isinstance(item, Message) else None,
            phase=item.phase if isinstance(item, Message) else None,
            call_id=item.call_id if isinstance(item, FunctionCall | FunctionCallOutput) else None,
            name=item.name if isinstance(item, FunctionCall) else None,
            complete=complete,
            parsed=item,
        )


def _answered_calls(items: Iterable[InputItem]) -> set[int]:
    """Indexes of the calls that have an output: the next one of their `call_id`."""
    waiting: dict[str, int] = {}
    answered: set[int] = set()
    for index, item in enumerate(items):
        if isinstance(item, FunctionCall):
            waiting[item.call_id] = index
        elif isinstance(item, FunctionCallOutput) and item.call_id in waiting:
            answered.add(waiting.pop(item.call_id))
    return answered


def _check_pairs(items: Sequence[ContextItem]) -> None:
    """Every output answers an earlier call, every whole call is answered exactly once.

    A `call_id` may be used again once its call was answered: histories that come from other
    providers number their calls anew in every turn.
    """
    waiting: dict[str, None] = {}
    for item in items:
        call_id = item.call_id or ""
        if _is_cut_call(item):
            continue
        if item.kind == "function_call":
            if call_id in waiting:
                raise _unpaired(f"No tool output found for function call {call_id}.")
            waiting[call_id] = None
        elif item.kind == "function_call_output":
            if call_id not in waiting:
                raise _unpaired(
                    f"No tool call found for function call output with call_id {call_id}."
                )
            del waiting[call_id]
    if waiting:
        raise _unpaired(f"No tool output found for function call {next(iter(waiting))}.")


def _unpaired(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="input")
