"""The text of items, as a model that reads nothing but text is shown it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.protocol.calls import FILE_NOTE, IMAGE_NOTE
from gateway.protocol.items import InputFile, InputImage, InputText, OutputText

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.protocol.items import Message, Reasoning, Refusal


def message_text(message: Message) -> str:
    """All text of a message; what the model cannot read is named in its place."""
    if len(message.content) == 1:
        return _part_text(message.content[0])
    return _joined(message.content, "" if message.role == "assistant" else "\n")


def reasoning_text(item: Reasoning) -> str:
    """The chain of thought, or its summary where there is no more than that."""
    return "".join(part.text for part in item.content or ()) or "\n".join(
        part.text for part in item.summary
    )


def _joined(
    parts: Iterable[InputText | InputImage | InputFile | OutputText | Refusal], separator: str
) -> str:
    return separator.join(map(_part_text, parts))


def _part_text(part: InputText | InputImage | InputFile | OutputText | Refusal) -> str:
    match part:
        case InputText() | OutputText():
            return part.text
        case InputImage():
            return IMAGE_NOTE
        case InputFile():
            return FILE_NOTE
        case _:
            return part.refusal
