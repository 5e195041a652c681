"""One item of a context: as the API shows it, and as the ids that stand for it in a prompt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, TypeAdapter

from gateway.protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Phase,
    Reasoning,
    Role,
)

if TYPE_CHECKING:
    from array import array

Kind = Literal["message", "reasoning", "function_call", "function_call_output"]

_ITEM: TypeAdapter[Item] = TypeAdapter(
    Annotated[Message | Reasoning | FunctionCall | FunctionCallOutput, Field(discriminator="type")]
)


@dataclass(frozen=True, slots=True)
class ContextItem:
    """An item with what the stages need to know of it without parsing it.

    `json` is the item as it is stored and listed, id and status included. `ids` are its Harmony
    ids (unsigned 32-bit), None while it was never rendered. `complete` is False for an item that
    was cut off. `call_id` and `name` are set for calls, `call_id` for their outputs, `role` and
    `phase` for messages.
    """

    kind: Kind
    item_id: str
    json: bytes
    role: Role | None = None
    phase: Phase | None = None
    call_id: str | None = None
    name: str | None = None
    complete: bool = True
    ids: array[int] | None = None
    parsed: Item | None = None

    def item(self) -> Item:
        """The typed item; parsed from `json` when it came from the store."""
        return self.parsed or _ITEM.validate_json(self.json)

    def with_ids(self, ids: array[int]) -> ContextItem:
        """The same item, rendered."""
        return replace(self, ids=ids)


@dataclass(frozen=True, slots=True)
class StoredItem:
    """A row of `messages`: a context item, where it stands in its response, and on which side."""

    position: int
    is_output: bool
    context: ContextItem
