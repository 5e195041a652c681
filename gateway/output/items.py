"""One output item while it is written: its text, its body, and the fields of its events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.output.lifecycle import EVENT_FIELDS, ITEM_STATUSES, ItemStatus, advance

if TYPE_CHECKING:
    from gateway.output.lifecycle import Envelope

_CONTENT_INDEX: Final = 0
"""A Harmony message has one body, so an item has one content part."""


class OpenItem:
    """An item from its first event to its last.

    `call_id` and `name` are used by function calls only.
    """

    __slots__ = (
        *("_delta_head", "_delta_middle", "_delta_tail", "_texts"),
        *("call_id", "envelope", "item_id", "name", "output_index", "status"),
    )

    def __init__(
        self, envelope: Envelope, item_id: str, output_index: int, *, call_id: str, name: str
    ) -> None:
        self.envelope = envelope
        self.item_id = item_id
        self.output_index = output_index
        self.call_id = call_id
        self.name = name
        self.status: ItemStatus = "in_progress"
        self._texts: list[str] = []
        self._make_delta_template()

    @property
    def text(self) -> str:
        """All that was written so far."""
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0] if self._texts else ""

    @property
    def lacks_delta(self) -> bool:
        """No delta was sent, and clients of this kind of item expect one."""
        return self.envelope.needs_delta and not self._texts

    def write(self, text: str, sequence_number: int) -> bytes:
        """Append text; the data of the delta event that shows it."""
        self._texts.append(text)
        return b"%b%d%b%b%b" % (
            self._delta_head,
            sequence_number,
            self._delta_middle,
            orjson.dumps(text),
            self._delta_tail,
        )

    def close(self, status: ItemStatus) -> None:
        """Nothing will be appended. Raises `ValueError` if the item was closed before."""
        self.status = advance(ITEM_STATUSES, self.status, status)

    def body(self) -> dict[str, Any]:
        """The item as it stands. Before any text it has no content part yet."""
        start = {"id": self.item_id, "type": self.envelope.item_type, "status": self.status}
        if self.envelope.item_type == "function_call":
            call = {"call_id": self.call_id, "name": self.name}
            return {**start, **call, "arguments": self.text}
        content = [self._part()] if self._texts else []
        if self.envelope.item_type == "reasoning":
            return {**start, "summary": [], "content": content}
        phase = self.envelope.phase
        return {**start, "role": "assistant", "content": content, "phase": phase}

    def fields(self, event_type: str) -> dict[str, Any]:
        """What an event of this item says beside its type and number."""
        values = {
            "item_id": self.item_id,
            "output_index": self.output_index,
            "content_index": _CONTENT_INDEX,
            "item": self.body(),
            "part": self._part(),
            "text": self.text,
            "arguments": self.text,
            "name": self.name,
            "delta": "",
            "logprobs": [],
        }
        return {name: values[name] for name in EVENT_FIELDS[event_type]}

    def _part(self) -> dict[str, Any]:
        if self.envelope.item_type == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        # OpenAI's SDK requires `annotations`; Open Responses forbids a `logprobs` that is null.
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}

    def _make_delta_template(self) -> None:
        """Encode all of a delta event once, except for its number and its text."""
        event_type = self.envelope.delta
        frame = {"type": event_type, "sequence_number": 0, **self.fields(event_type)}
        head, number, rest = orjson.dumps(frame).partition(b'"sequence_number":0')
        middle, delta, self._delta_tail = rest.partition(b'"delta":""')
        self._delta_head = head + number.removesuffix(b"0")
        self._delta_middle = middle + delta.removesuffix(b'""')
