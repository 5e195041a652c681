"""Render the result of a tool as text: for the model, and for the item that clients see."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.tools.unseen import without_unseen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp.types import CallToolResult, ContentBlock

_HEAD_SHARE: Final = 0.6


@dataclass(frozen=True, slots=True)
class CallResult:
    """Result of a call, as the model reads it. `is_error`: the tool reported a failure."""

    output: str
    is_error: bool = False


def shown(result: CallToolResult) -> CallResult:
    """Render one text block as it is; anything else as compact JSON, binary data by its length."""
    content = result.content
    if len(content) == 1 and content[0].type == "text" and result.structured_content is None:
        return CallResult(content[0].text, result.is_error)
    if result.structured_content is not None and all(block.type == "text" for block in content):
        return CallResult(_compact(result.structured_content), result.is_error)
    blocks = [_block(block) for block in content]
    return CallResult(_compact(blocks), result.is_error)


def _compact(value: object) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # a number of more than 64 bits
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _block(block: ContentBlock) -> Mapping[str, Any]:
    fields = block.model_dump(mode="json", by_alias=True, exclude_none=True)
    fields.pop("_meta", None)
    inner = fields.get("resource")
    for holder in (fields, inner if isinstance(inner, dict) else {}):
        for name in ("data", "blob"):
            if isinstance(holder.get(name), str):
                holder[name] = f"({len(holder[name])} characters of base64 left out)"
    return fields


def plain(text: str) -> str:
    """Remove what a terminal or reader would obey or not see from a text.

    These are control characters except new lines and tabs, direction marks, and tags. Lone
    surrogates become question marks.
    """
    return without_unseen(text).encode("utf-8", "replace").decode()


def cut(text: str, bytes_max: int) -> str:
    """Shorten text to about `bytes_max` bytes of UTF-8: head, note, and tail."""
    content = text.encode("utf-8", "replace")
    if len(content) <= bytes_max:
        return content.decode()
    head = content[: int(bytes_max * _HEAD_SHARE)].decode("utf-8", "ignore")
    tail = content[len(content) - (bytes_max - int(bytes_max * _HEAD_SHARE)) :]
    missing = len(content) - bytes_max
    return f"{head}\n[... {missing} bytes left out ...]\n{tail.decode('utf-8', 'ignore')}"


def bounded(text: str, chars_max: int) -> str:
    """Clean a text, and cut it to `chars_max` characters."""
    cleaned = plain(text)
    return cleaned if len(cleaned) <= chars_max else cleaned[: chars_max - 1] + "…"
