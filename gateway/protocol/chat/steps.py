"""Stream events → the few things that happen in a stream of chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.protocol.chat.pieces import CALL_TEXTS, Joiner, field_of, is_formatted
from gateway.protocol.events import TERMINAL_TYPES

if TYPE_CHECKING:
    from gateway.protocol.chat.pieces import Field
    from gateway.protocol.events import Event

    Json = dict[str, Any]

_CREATED: Final = "response.created"
_ADDED: Final = "response.output_item.added"
_SAID: Final = {
    "response.output_text.delta": False,
    "response.reasoning_text.delta": False,
    "response.refusal.delta": True,
}
"""Deltas of texts, and whether it is that of a refusal."""
_WRITTEN: Final = frozenset(
    {"response.function_call_arguments.delta", "response.custom_tool_call_input.delta"}
)
_READ: Final = frozenset({_CREATED, _ADDED, *_SAID, *_WRITTEN, *TERMINAL_TYPES})


@dataclass(frozen=True, slots=True)
class Opened:
    """The stream begins; the response has no output yet."""

    response: Json


@dataclass(frozen=True, slots=True)
class Said:
    """More of one of the texts, encoded as JSON."""

    field: Field
    text: bytes
    logprobs: list[Json]


@dataclass(frozen=True, slots=True)
class Called:
    """A call begins, the `position`-th of the response from 0; `item` has no text yet."""

    position: int
    item: Json


@dataclass(frozen=True, slots=True)
class Written:
    """More of what was given to a call."""

    position: int
    item: Json
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing follows."""

    response: Json


Step = Opened | Said | Called | Written | Ended


class Steps:
    """Reads one stream of events, from its first one on."""

    def __init__(self) -> None:
        self._formatted = False
        self._index = 0
        self._field: Field = "content"
        self._is_begun = False
        self._calls: dict[int, Called] = {}
        self._joiner = Joiner()

    def of(self, event: Event) -> Step | None:
        """What the next event means; None for one that means nothing here."""
        is_refusal = _SAID.get(event.type)
        if is_refusal is not None:
            return self._hear(event, "refusal" if is_refusal else self._field)
        if event.type not in _READ:
            return None
        data = orjson.loads(event.data)
        if event.type in _WRITTEN:
            call = self._calls[data["output_index"]]
            return Written(call.position, call.item, data["delta"])
        if event.type == _ADDED:
            return self._add(data["output_index"], data["item"])
        if event.type == _CREATED:
            self._formatted = is_formatted(data["response"])
            return Opened(data["response"])
        return Ended(data["response"])

    def _hear(self, event: Event, field: Field) -> Said:
        """It is of the last item that was added: items never overlap."""
        logprobs: list[Json] = []
        text = event.text
        if not text:
            data = orjson.loads(event.data)
            text, logprobs = orjson.dumps(data["delta"]), data["logprobs"]
        if not self._is_begun:
            self._is_begun = True
            separator = self._joiner.add(field, self._index, "")
            text = orjson.dumps(separator)[:-1] + text[1:]
        return Said(field, text, logprobs)

    def _add(self, index: int, item: Json) -> Called | None:
        if item["type"] in CALL_TEXTS:
            call = self._calls[index] = Called(len(self._calls), item)
            return call
        self._index, self._field = index, field_of(item, formatted=self._formatted)
        self._is_begun = False
        return None
