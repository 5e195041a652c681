"""Bodies and objects of the Conversations API (responses-api §1.10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field

from gateway import ids
from gateway.errors import ResourceNotFound, shown
from gateway.protocol.base import BodyModel, Many, without_nulls
from gateway.protocol.call_items import ReadItem
from gateway.protocol.context_item import with_phases
from gateway.protocol.items import CompactionTrigger
from gateway.protocol.json_body import parse_object
from gateway.protocol.parameters import Metadata
from gateway.protocol.request_errors import B, array_too_long, unsupported, validated_body
from gateway.protocol.responses.request_checks import (
    check_brought,
    check_items,
    check_media,
    check_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from gateway.protocol.items import InputItem
    from gateway.protocol.json_body import InputLimits

ADDED_ITEMS_MAX: Final = 20
"""OpenAI's bound."""

_TEXT_PARTS: Final = frozenset({"text", "summary_text", "reasoning_text"})


@dataclass(frozen=True, slots=True)
class Conversation:
    uuid: UUID
    created_at: datetime
    metadata: dict[str, str]

    def body(self) -> dict[str, Any]:
        return {
            "id": ids.conversation_id(self.uuid),
            "object": "conversation",
            "created_at": int(self.created_at.timestamp()),
            "metadata": self.metadata,
        }


def _plain_parts(item: object) -> object:
    # A `text` takes the type of its message's role; a screenshot becomes an image.
    if not isinstance(item, dict) or not isinstance(item.get("content"), list):
        return item
    kind = item.get("type")
    if kind is not None and kind != "message":
        return item
    return {**item, "content": [_plain_part(part) for part in item["content"]]}


def _plain_part(part: object) -> object:
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if kind == "computer_screenshot":
        return {**part, "type": "input_image"}
    # The message makes it the text of its role.
    is_text = isinstance(kind, str) and kind in _TEXT_PARTS
    return {**part, "type": "input_text"} if is_text else part


def _with_phases_of_new(items: tuple[InputItem, ...]) -> tuple[InputItem, ...]:
    # One with an id may be a copy of a message that the conversation has.
    return with_phases(items, only_new=True)


_Item = Annotated[ReadItem, BeforeValidator(_plain_parts)]


class NewConversation(BodyModel):
    items: Annotated[Many[_Item], AfterValidator(with_phases)] = ()
    metadata: Metadata = Field(default_factory=dict)


class NewItems(BodyModel):
    items: Annotated[Many[_Item], Field(min_length=1), AfterValidator(_with_phases_of_new)]


class NewMetadata(BodyModel):
    metadata: Metadata


def parse_conversation(
    body: bytes, *, limits: InputLimits, strict: bool = False
) -> NewConversation:
    """Parse the creation of a conversation; an empty body creates an empty one.

    If `strict`, unknown keys, images and files are refused.
    """
    conversation = _parse(NewConversation, parse_object(body or b"{}", limits), strict=strict)
    _check_items(conversation.items, limits, strict=strict)
    return conversation


def parse_items(body: bytes, *, limits: InputLimits, strict: bool = False) -> NewItems:
    new = _parse(NewItems, parse_object(body, limits), strict=strict)
    _check_items(new.items, limits, strict=strict)
    return new


def parse_metadata(body: bytes, *, limits: InputLimits, strict: bool = False) -> NewMetadata:
    document = parse_object(body, limits)
    if document.get("metadata", "") is None:
        document["metadata"] = {}
    return _parse(NewMetadata, document, strict=strict)


def _parse(model: type[B], raw: dict[str, Any], *, strict: bool) -> B:
    document = without_nulls(raw)
    items = document.get("items")
    if isinstance(items, list) and len(items) > ADDED_ITEMS_MAX:
        raise array_too_long("items", len(items), ADDED_ITEMS_MAX)
    check_metadata(document)
    return validated_body(model, document, strict=strict)


def _check_items(items: Sequence[InputItem], limits: InputLimits, *, strict: bool) -> None:
    check_items(items, limits, param="items")
    check_brought(items, limits, param="items")
    for index, item in enumerate(items):
        if isinstance(item, CompactionTrigger):
            remedy = "Send it in the input of a response."
            raise unsupported(f"items[{index}].type", remedy, value=item.type)
    check_media(items, strict=strict or limits.rejects_media, param="items")


def unknown_conversation(conversation_id: str) -> ResourceNotFound:
    return ResourceNotFound(
        f"Conversation with id '{shown(conversation_id)}' not found. Conversations are kept until "
        "they are deleted; create a new one with POST /v1/conversations."
    )


def unknown_item(conversation_id: str, item_id: str) -> ResourceNotFound:
    return ResourceNotFound(
        f"Item with id '{shown(item_id)}' not found in conversation '{conversation_id}'. GET "
        f"/v1/conversations/{conversation_id}/items lists those that it has."
    )
