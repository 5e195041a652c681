"""Output items: one that is being written, and one that is shown in one piece.

A summary of reasoning is an extract of it, not the work of a second model.
"""

from __future__ import annotations

import re
import struct
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from gateway.eventlog.fold.lifecycle import (
    COMMAND_EVENTS,
    EVENT_FIELDS,
    ITEM_STATUSES,
    RUNNING_STATUSES,
    SUMMARY_CLOSING_EVENTS,
    ItemStatus,
    advance,
)
from gateway.generation import SegmentText, TextLogprob, TokenLogprob
from gateway.protocol.items import without_includable
from gateway.protocol.stream_events import DeltaPattern, Deltas, Event

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from gateway.constraints.output_rules import Summary
    from gateway.eventlog.fold.lifecycle import Envelope
    from gateway.generation import Likelihood, TextToken


_NO_LOGPROBS: Final = b'"logprobs":[]}'


class OpenItem:
    """Item from its first event to its last, with one content part and one summary at most.

    `shown` are the fields that a call run by the gateway shows after its text.
    """

    content_index: Final = 0

    __slots__ = (
        *("_call", "_delta", "_logprobs", "_shown", "_spelled_bytes", "_summarizer"),
        *("_summary", "_text", "annotations", "encrypted_content", "envelope", "hosted_before"),
        *("includable", "is_running", "is_summarized", "is_text_done", "item_id", "output_index"),
        "status",
    )

    def __init__(
        self,
        envelope: Envelope,
        item_id: str,
        output_index: int,
        *,
        call: Mapping[str, Any],
        summary: Summary = "off",
        shown: Mapping[str, Any] | None = None,
    ) -> None:
        self.envelope = envelope
        self.item_id = item_id
        self.output_index = output_index
        self.status: ItemStatus = "in_progress"
        self.is_summarized = summary != "off"
        self.encrypted_content: str | None = None
        self.is_text_done = False
        """All events of its text are sent, though the item is open: the gateway runs the call."""
        self.is_running = False
        self.annotations: list[dict[str, Any]] = []
        self.hosted_before = 0
        self.includable: dict[str, Any] = {}
        self._call = call
        self._shown: Mapping[str, Any] = shown or {}
        self._summarizer = (
            SummaryReader(detailed=summary == "detailed") if summary != "off" else None
        )
        self._summary: list[str] = []
        self._text = bytearray()  # UTF-8: a list of short texts takes ten times as much.
        self._logprobs: list[dict[str, Any]] = []
        self._spelled_bytes = 0  # of the text, so many have logprobs
        self._delta = b""
        if envelope.delta:
            before, between, behind = _delta_template(envelope)
            between %= (item_id.encode(), output_index)
            # To be formatted with number and text: there is no other `%` in it.
            self._delta = b"%b%%d%b%%b%b" % (before, between, behind)

    @property
    def text(self) -> str:
        return self._text.decode()

    @property
    def summary(self) -> str:
        return "".join(self._summary)

    def write(
        self, text: str, sequence_number: int, logprobs: list[dict[str, Any]] | None = None
    ) -> Event:
        """Append text and return the delta event that shows it.

        If some text has no `logprobs`, the item has none: partial ones could not be matched to the
        text.
        """
        self._text += text.encode()
        # A copy, as `lasting_json` makes it: the event may wait for its commit, or for its reader.
        encoded = b"%b" % orjson.dumps(text)
        data = self._delta % (sequence_number, encoded)
        if logprobs is None:
            return Event(
                self.envelope.delta, sequence_number, data, len(text), encoded, self.hosted_before
            )
        self._logprobs += logprobs
        self._spelled_bytes += sum(len(entry["bytes"]) for entry in logprobs)
        spelled = b'"logprobs":%b}' % orjson.dumps(logprobs)
        data = data.removesuffix(_NO_LOGPROBS) + spelled
        before = self.hosted_before
        return Event(self.envelope.delta, sequence_number, data, len(text), hosted_before=before)

    def write_each(self, texts: Sequence[str], sequence_number: int, after: int) -> Deltas:
        """Append texts and return their deltas above `after`."""
        self._text += "".join(texts).encode()
        skipped = max(0, after + 1 - sequence_number)
        before, rest = self._delta.split(b"%d")
        between, behind = rest.split(b"%b")
        name, hosted = self.envelope.delta, self.hosted_before
        pattern = DeltaPattern(name, before, between, behind, hosted)
        return Deltas(pattern, sequence_number + skipped, texts[skipped:])

    def summarize(self, text: str | None) -> str:
        """Return the new part of the summary after this text; None ends it."""
        assert self._summarizer is not None, "there is no summary"
        more = self._summarizer.finish() if text is None else self._summarizer.feed(text)
        if more:
            self._summary.append(more)
        return more

    def show(self, fields: Mapping[str, Any], include: Collection[str]) -> None:
        """Set the fields that a call run by the gateway shows from now on, as far as `include`
        allows.
        """
        own = {*self._call, *self._shown}
        fields = {name: fields[name] for name in fields if name in own}
        shown, more = without_includable(self.envelope.item_type, fields, include)
        self._shown = {**self._shown, **shown}
        # A kept field is dropped once it has a new value.
        before = {name: kept for name, kept in self.includable.items() if name not in fields}
        self.includable = {**before, **more}

    def close(self, status: ItemStatus) -> None:
        # Raises `ValueError` if the item was closed before.
        self.status = advance(ITEM_STATUSES, self.status, status)

    def body(self) -> dict[str, Any]:
        envelope = self.envelope
        status: str = self.status
        if self.is_running and status == "in_progress":
            status = RUNNING_STATUSES.get(envelope.item_type, status)
        start = {"id": self.item_id, "type": envelope.item_type, "status": status}
        if envelope.text_field:
            return {**start, **self._call, envelope.text_field: self.text, **self._shown}
        if envelope.completed:
            return {**start, **self._shown}
        content = [self.part()] if self._text else []
        if envelope.item_type != "reasoning":
            return {**start, "role": "assistant", "content": content, "phase": envelope.phase}
        summary = [{"type": "summary_text", "text": self.summary}] if self._summary else []
        sealed = self.encrypted_content
        # Open Responses wants it absent rather than null.
        seal = {} if sealed is None else {"encrypted_content": sealed}
        return {**start, "summary": summary, "content": content, **seal}

    def fields(self, event_type: str) -> dict[str, Any]:
        return {name: _FIELDS[name](self) for name in EVENT_FIELDS[event_type]}

    def summary_fields(self, event_type: str, text: str) -> dict[str, Any]:
        values = {
            "item_id": self.item_id,
            "output_index": self.output_index,
            "summary_index": 0,
            "part": {"type": "summary_text", "text": text},
            "delta": text,
            "text": text,
        }
        fields = {name: values[name] for name in EVENT_FIELDS[event_type]}
        is_cut = self.status == "incomplete" and event_type == SUMMARY_CLOSING_EVENTS[-1]
        return {**fields, "status": "incomplete"} if is_cut else fields

    def annotate(self, annotation: dict[str, Any]) -> dict[str, Any]:
        self.annotations.append(annotation)
        return {
            "item_id": self.item_id,
            "output_index": self.output_index,
            "content_index": self.content_index,
            "annotation_index": len(self.annotations) - 1,
            "annotation": annotation,
        }

    def part(self) -> dict[str, Any]:
        if self.envelope.part == "reasoning_text":
            return {"type": "reasoning_text", "text": self.text}
        if self.envelope.part == "refusal":
            return {"type": "refusal", "refusal": self.text}
        # OpenAI's SDK requires `annotations`; Open Responses forbids a `logprobs` that is null.
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": [*self.annotations],
            "logprobs": self.logprobs(),
        }

    def logprobs(self) -> list[dict[str, Any]]:
        return self._logprobs if self._spelled_bytes == len(self._text) else []

    def tool_name(self) -> str | None:
        return self._call.get("name")


_FIELDS: Final[Mapping[str, Callable[[OpenItem], Any]]] = {
    "item_id": attrgetter("item_id"),
    "output_index": attrgetter("output_index"),
    "content_index": attrgetter("content_index"),
    "item": OpenItem.body,
    "part": OpenItem.part,
    "text": attrgetter("text"),
    "refusal": attrgetter("text"),
    "arguments": attrgetter("text"),
    "input": attrgetter("text"),
    "code": attrgetter("text"),
    "name": OpenItem.tool_name,
    "logprobs": OpenItem.logprobs,
}


@cache
def _delta_template(envelope: Envelope) -> tuple[bytes, bytes, bytes]:
    # The middle part is a `%` template for item id and index; item ids contain no `%`.
    values = {
        "item_id": b'"%b"',
        "output_index": b"%d",
        "content_index": b"%d" % OpenItem.content_index,
        "delta": b"\n",
        "logprobs": b"[]",
    }
    fields = (b',"%b":%b' % (name.encode(), values[name]) for name in EVENT_FIELDS[envelope.delta])
    between, _, behind = b"".join(fields).partition(b"\n")
    return b'{"type":"%b","sequence_number":' % envelope.delta.encode(), between, behind + b"}"


class WholeItem:
    """Call of a shell, the patcher or a tool search."""

    def __init__(
        self, envelope: Envelope, item_id: str, output_index: int, *, call: Mapping[str, Any]
    ) -> None:
        self.envelope = envelope
        self.output_index = output_index
        self._start = {"id": item_id, "type": envelope.item_type}
        # With lists where `call` has tuples, as whoever reads the JSON finds it.
        self._call: dict[str, Any] = orjson.loads(orjson.dumps(call))

    def added(self) -> dict[str, Any]:
        body = self._body("in_progress")
        if self._commands():
            body["action"] = {**body["action"], "commands": []}
        return {"output_index": self.output_index, "item": body}

    def commands(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for index, command in enumerate(self._commands()):
            place = {"output_index": self.output_index, "command_index": index}
            added, delta, done = COMMAND_EVENTS
            yield added, {**place, "command": ""}
            yield delta, {**place, "delta": command}
            yield done, {**place, "command": command}

    def body(self) -> dict[str, Any]:
        return self._body("completed")

    def _body(self, status: ItemStatus) -> dict[str, Any]:
        return {**self._start, "status": status, **self._call}

    def _commands(self) -> list[str]:
        is_shell = self.envelope.item_type == "shell_call"
        return list(self._call["action"]["commands"]) if is_shell else []


SUMMARY_CHARACTERS_MAX: Final = 300
_PARAGRAPH_END: Final = re.compile(r"\n[^\S\n]*\n")


class SummaryReader:
    """Reader of the text of a reasoning item; it returns the summary in parts.

    A `detailed` one is all of the text, any other its first paragraph, cut at a word.
    """

    def __init__(self, *, detailed: bool) -> None:
        self._detailed = detailed
        self._text = ""
        self._is_finished = False

    def feed(self, text: str) -> str:
        if self._detailed:
            return text
        if self._is_finished:
            return ""
        self._text = (self._text + text).lstrip()
        paragraph_end = _PARAGRAPH_END.search(self._text)
        return self.finish() if paragraph_end or len(self._text) > SUMMARY_CHARACTERS_MAX else ""

    def finish(self) -> str:
        if self._detailed or self._is_finished:
            return ""
        self._is_finished = True
        # One more character shows whether the last word ends there.
        front = self._text[: SUMMARY_CHARACTERS_MAX + 1]
        paragraph = _PARAGRAPH_END.split(front, maxsplit=1)[0].rstrip()
        if len(paragraph) <= SUMMARY_CHARACTERS_MAX:
            return paragraph
        words = paragraph.rsplit(maxsplit=1)
        return words[0] if len(words) > 1 else paragraph[:SUMMARY_CHARACTERS_MAX]


CERTAIN: Final = TokenLogprob(0.0)
"""Logprob of an id that the gateway wrote itself."""
_SINGLE: Final = struct.Struct("<f")


class Spelling(Protocol):
    def piece(self, token: int) -> bytes: ...

    def token_at(self, position: int) -> tuple[int, Likelihood | None]: ...


def is_boundary(content: bytes, at: int) -> bool:
    return at == len(content) or content[at] & 0xC0 != 0x80


def spelled_units(text: SegmentText, spelling: Spelling) -> Iterator[SegmentText]:
    """Yield the text, split wherever both an id and a character end; in one piece if ids are
    unknown.
    """
    content, start, end = text.text.encode(), 0, 0
    tokens: list[int] = []
    for position in text.tokens[:-1]:
        tokens.append(position)
        end = min(len(content), end + len(spelling.piece(spelling.token_at(position)[0])))
        if end > start and is_boundary(content, end):
            yield SegmentText(content[start:end].decode(), tuple(tokens))
            start, tokens = end, []
    yield SegmentText(content[start:].decode(), (*tokens, *text.tokens[-1:]))


def logprob_entries(text: SegmentText, spelling: Spelling) -> list[dict[str, Any]] | None:
    """Return the logprobs of a text, one entry for each token; None if some are unknown.

    Their `bytes`, joined, are the text, so an id that spells more is cut. In a text without ids, an
    entry belongs to the text in which its token begins.
    """
    left = len(text.text.encode())
    entries: list[dict[str, Any]] = []
    has_logprobs = False
    for position in text.tokens:
        token, logprob = spelling.token_at(position)
        if isinstance(logprob, TextLogprob):
            if logprob.tokens is None:
                return None
            entries += map(_text_token_entry, logprob.tokens)
            has_logprobs = True
            continue
        if logprob is None:
            return None
        piece = spelling.piece(token)[:left]
        left -= len(piece)
        entries.append(
            {
                **_logprob_entry(piece, logprob.logprob),
                "top_logprobs": _top_logprobs(logprob, spelling),
            }
        )
    return entries if entries or has_logprobs else None


def _text_token_entry(token: TextToken) -> dict[str, Any]:
    return {
        **_logprob_entry(token.piece, token.logprob),
        "top_logprobs": [_logprob_entry(*one) for one in token.top],
    }


def _top_logprobs(token_logprob: TokenLogprob, spelling: Spelling) -> list[dict[str, Any]]:
    # Only text tokens: a marker ends or divides a message.
    pieces = [(spelling.piece(token), logprob) for token, logprob in token_logprob.top]
    return [_logprob_entry(piece, logprob) for piece, logprob in pieces if piece]


def _logprob_entry(piece: bytes, logprob: float) -> dict[str, Any]:
    return {
        "token": piece.decode("utf-8", "replace"),
        "logprob": _single(logprob),
        "bytes": list(piece),
    }


def _single(logprob: float) -> float:
    # Single precision, as in the packed log, so that a replay shows the same digits.
    return float(_SINGLE.unpack(_SINGLE.pack(logprob))[0])
