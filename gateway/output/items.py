"""Output items: one while it is written, and one that is shown in one piece.

Their text, their body, and the fields of their events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.output.lifecycle import (
    COMMAND_EVENTS,
    EVENT_FIELDS,
    ITEM_STATUSES,
    SUMMARY_CLOSING_EVENTS,
    SUMMARY_OPENING_EVENT,
    ItemStatus,
    advance,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gateway.output.lifecycle import Envelope
    from gateway.output.summaries import Summarizer

_INDEX: Final = 0
"""A Harmony message has one body, so an item has one content part, and one summary."""
_NO_LOGPROBS: Final = b'"logprobs":[]'


class OpenItem:
    """An item from its first event to its last.

    `call` holds what a call has besides its text: `call_id`, `name`, `namespace` if any. With a
    `summarizer` the item has a summary.
    """

    __slots__ = (
        *("_call", "_delta_head", "_delta_middle", "_delta_tail", "_is_spelled", "_logprobs"),
        *("_summarizer", "_summary", "_texts"),
        *("encrypted_content", "envelope", "is_summarized", "item_id", "output_index", "status"),
    )

    def __init__(
        self,
        envelope: Envelope,
        item_id: str,
        output_index: int,
        *,
        call: Mapping[str, Any],
        summarizer: Summarizer | None = None,
    ) -> None:
        self.envelope = envelope
        self.item_id = item_id
        self.output_index = output_index
        self.status: ItemStatus = "in_progress"
        self.encrypted_content: str | None = None
        """Set before the item is closed, if ever."""
        self.is_summarized = summarizer is not None
        """It has a summary, once there is something to say."""
        self._call = call
        self._summarizer = summarizer
        self._summary: list[str] = []
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._is_spelled = True
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

    @property
    def has_summary(self) -> bool:
        """Some of its summary was written."""
        return bool(self._summary)

    @property
    def closing(self) -> tuple[str, ...]:
        """The events that close it."""
        *closing, done = self.envelope.closing
        return (*closing, *(SUMMARY_CLOSING_EVENTS if self.has_summary else ()), done)

    def write(
        self, text: str, sequence_number: int, logprobs: list[dict[str, Any]] | None = None
    ) -> bytes:
        """Append text; the data of the delta event that shows it.

        `logprobs` are the entries of the ids that spell it. Once they are missing for some text,
        the whole has none: half of them could be told to belong to anything.
        """
        self._texts.append(text)
        tail = self._delta_tail
        if logprobs is None:
            self._is_spelled = False
        else:
            self._logprobs += logprobs
            spelled = b'"logprobs":' + orjson.dumps(logprobs)
            tail = tail.replace(_NO_LOGPROBS, spelled)
        return b"%b%d%b%b%b" % (
            self._delta_head,
            sequence_number,
            self._delta_middle,
            orjson.dumps(text),
            tail,
        )

    def summarize(self, text: str | None) -> str:
        """What more the summary says after this text, or (None) at the end; it must have one."""
        assert self._summarizer is not None, "there is no summary"
        more = self._summarizer.finish() if text is None else self._summarizer.feed(text)
        if more:
            self._summary.append(more)
        return more

    def close(self, status: ItemStatus) -> None:
        """Nothing will be appended. Raises `ValueError` if the item was closed before."""
        self.status = advance(ITEM_STATUSES, self.status, status)

    def body(self) -> dict[str, Any]:
        """The item as it stands. Before any text it has no content part yet."""
        envelope = self.envelope
        start = {"id": self.item_id, "type": envelope.item_type, "status": self.status}
        if envelope.text_field:
            return {**start, **self._call, envelope.text_field: self.text}
        content = [self._part()] if self._texts else []
        if envelope.item_type != "reasoning":
            return {**start, "role": "assistant", "content": content, "phase": envelope.phase}
        said = "".join(self._summary)
        summary = [{"type": "summary_text", "text": said}] if said else []
        sealed = self.encrypted_content
        # Open Responses wants it absent rather than null.
        seal = {} if sealed is None else {"encrypted_content": sealed}
        return {**start, "summary": summary, "content": content, **seal}

    def fields(self, event_type: str) -> dict[str, Any]:
        """What an event of this item says beside its type and number."""
        values = {
            "item_id": self.item_id,
            "output_index": self.output_index,
            "content_index": _INDEX,
            "item": self.body(),
            "part": self._part(),
            "text": self.text,
            "refusal": self.text,
            "arguments": self.text,
            "input": self.text,
            "name": self._call.get("name"),
            "delta": "",
            "logprobs": self._shown_logprobs(),
        }
        return {name: values[name] for name in EVENT_FIELDS[event_type]}

    def summary_delta(self, text: str) -> dict[str, Any]:
        """The same for the event that shows more of its summary."""
        return {**self._summary_place(), "delta": text}

    def summary_fields(self, event_type: str) -> dict[str, Any]:
        """The same for another event of its summary."""
        text = "" if event_type == SUMMARY_OPENING_EVENT else "".join(self._summary)
        values = {
            **self._summary_place(),
            "part": {"type": "summary_text", "text": text},
            "text": text,
        }
        fields = {name: values[name] for name in EVENT_FIELDS[event_type]}
        is_cut = self.status == "incomplete" and event_type == SUMMARY_CLOSING_EVENTS[-1]
        return {**fields, "status": "incomplete"} if is_cut else fields

    def _summary_place(self) -> dict[str, Any]:
        return {
            "item_id": self.item_id,
            "output_index": self.output_index,
            "summary_index": _INDEX,
        }

    def _part(self) -> dict[str, Any]:
        if self.envelope.part == "reasoning_text":
            return {"type": "reasoning_text", "text": self.text}
        if self.envelope.part == "refusal":
            return {"type": "refusal", "refusal": self.text}
        # OpenAI's SDK requires `annotations`; Open Responses forbids a `logprobs` that is null.
        logprobs = self._shown_logprobs()
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": logprobs}

    def _shown_logprobs(self) -> list[dict[str, Any]]:
        return self._logprobs if self._is_spelled else []

    def _make_delta_template(self) -> None:
        """Encode all of a delta event once, except for its number and its text."""
        event_type = self.envelope.delta
        frame = {"type": event_type, "sequence_number": 0, **self.fields(event_type)}
        head, number, rest = orjson.dumps(frame).partition(b'"sequence_number":0')
        middle, delta, self._delta_tail = rest.partition(b'"delta":""')
        self._delta_head = head + number.removesuffix(b"0")
        self._delta_middle = middle + delta.removesuffix(b'""')


class WholeItem:
    """The call of a shell or of the patcher, with the fields that `protocol.calls` reads for it."""

    def __init__(
        self, envelope: Envelope, item_id: str, output_index: int, *, call: Mapping[str, Any]
    ) -> None:
        self.envelope = envelope
        self.output_index = output_index
        self._start = {"id": item_id, "type": envelope.item_type}
        # With lists where `call` has tuples, as whoever reads the JSON finds it.
        self._call: dict[str, Any] = orjson.loads(orjson.dumps(call))

    def added(self) -> dict[str, Any]:
        """The fields of its first event. The commands of a shell are yet to come."""
        body = self._body("in_progress")
        if self._commands():
            body["action"] = {**body["action"], "commands": []}
        return {"output_index": self.output_index, "item": body}

    def commands(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The events of its commands: type and fields."""
        for index, command in enumerate(self._commands()):
            place = {"output_index": self.output_index, "command_index": index}
            added, delta, done = COMMAND_EVENTS
            yield added, {**place, "command": ""}
            yield delta, {**place, "delta": command}
            yield done, {**place, "command": command}

    def body(self) -> dict[str, Any]:
        """The item as it stays."""
        return self._body("completed")

    def _body(self, status: ItemStatus) -> dict[str, Any]:
        return {**self._start, "status": status, **self._call}

    def _commands(self) -> list[str]:
        is_shell = self.envelope.item_type == "shell_call"
        return list(self._call["action"]["commands"]) if is_shell else []
