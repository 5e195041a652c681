"""Assemble a context: history, then the request's own items, every tool call with its output.

Rules (responses-api §1.2): context = previous input + previous output + new input, in that order;
only items are inherited; a tool output must have its call and a call must have its output.
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
    return [
        item.id
        for item in items
        if isinstance(item, ItemReference) or (isinstance(item, Reasoning) and _is_hollow(item))
        if item.id
    ]


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
    kept = [item for item in history if item.complete or item.kind != "function_call"]
    added: list[ContextItem] = []
    for ordinal, item in enumerate(new):
        context_item = _resolve(item, ordinal, stored, response)
        if context_item is not None:
            added.append(context_item)
    items = (*kept, *added)
    _check_pairs(items)
    return Context(items, inherited=len(kept))


def _resolve(
    item: InputItem, ordinal: int, stored: Mapping[str, ContextItem], response: UUID
) -> ContextItem | None:
    if isinstance(item, ItemReference):
        return _lookup(item.id, stored)
    if isinstance(item, Reasoning) and _is_hollow(item):
        return _lookup(item.id, stored) if item.id else None
    return _as_context(item, ordinal, response)


def _is_hollow(item: Reasoning) -> bool:
    return not item.content and not item.summary


def _lookup(item_id: str, stored: Mapping[str, ContextItem]) -> ContextItem:
    try:
        return stored[item_id]
    except KeyError:
        raise ResourceNotFound(
            f"Item with id '{item_id}' not found. Items are not persisted when `store` is set to "
            "false. Try again with `store` set to true, or remove this item from your input.",
            param="input",
        ) from None


def _as_context(item: Item, ordinal: int, response: UUID) -> ContextItem:
    """An item as the request brought it, with an id and `status: completed` for the listing."""
    item_id = item.id or ids.input_item_id(_ID_PREFIXES[item.type], response, ordinal)
    body = item.model_dump(mode="python", exclude_none=True)
    body |= {"id": item_id, "status": "completed"}
    return ContextItem(
        kind=item.type,
        item_id=item_id,
        json=orjson.dumps(body),
        role=item.role if isinstance(item, Message) else None,
        phase=item.phase if isinstance(item, Message) else None,
        call_id=item.call_id if isinstance(item, FunctionCall | FunctionCallOutput) else None,
        name=item.name if isinstance(item, FunctionCall) else None,
        parsed=item,
    )


def _check_pairs(items: Sequence[ContextItem]) -> None:
    """Every output answers an earlier call, every call is answered exactly once.

    A `call_id` may be used again once its call was answered: histories that come from other
    providers number their calls anew in every turn.
    """
    waiting: dict[str, None] = {}
    for item in items:
        call_id = item.call_id or ""
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
