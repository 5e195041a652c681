"""Segments to stream events: the only assigner of ids, indexes and sequence numbers.

Rules beyond the tables of `lifecycle`:

* A message or reasoning without text is no item.
* All text that one call of `feed` has for one item is one delta event.
* A segment that was cut off keeps its item open. If more follows, it closes as `completed`,
  otherwise with the response. So an `incomplete` item is always the last one, and never part of a
  `completed` response. Only a function call that broke off stays `incomplete`.
* The call of a shell or of the patcher is not shown if it was cut off or has the wrong shape: a
  client could only run it.
* The item of a call that the gateway runs stays open until the result, and is `incomplete` without
  one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway import ids
from gateway.eventlog.fold.citations import CitedAnswer, ContainerFiles
from gateway.eventlog.fold.hosted_calls import UnapprovedCall
from gateway.eventlog.fold.items import OpenItem, WholeItem, logprob_entries, spelled_units
from gateway.eventlog.fold.lifecycle import (
    ANNOTATION_EVENT,
    CLOSING_EVENTS,
    COMPACTION_EVENTS,
    ENVELOPES,
    ERROR_EVENT,
    ERROR_TYPES,
    EVENT_FIELDS,
    GATEWAY_KINDS,
    LISTING_EVENTS,
    LISTING_ITEM,
    OPENING_EVENT,
    RESPONSE_STATUSES,
    STATUS_EVENTS,
    SUMMARY_CLOSING_EVENTS,
    SUMMARY_DELTA_EVENT,
    SUMMARY_OPENING_EVENT,
    advance,
)
from gateway.generation import (
    CALL_KINDS,
    HOSTED_KINDS,
    SegmentEnded,
    SegmentKind,
    SegmentStarted,
    SegmentText,
)
from gateway.json_output import lasting_json
from gateway.protocol.call_items import call_fields
from gateway.protocol.responses.response_object import (
    Outcome,
    compaction_body,
    encoded_body,
    response_body,
    spelled_echo,
)
from gateway.protocol.stream_events import HOSTED_ITEMS, Event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.constraints.output_rules import OutputRules
    from gateway.entries import ToolOutcome
    from gateway.eventlog.fold.citations import CitedText, Pages
    from gateway.eventlog.fold.hosted_calls import UnansweredCall
    from gateway.eventlog.fold.items import Spelling
    from gateway.eventlog.fold.lifecycle import Envelope, ItemStatus
    from gateway.generation import SegmentEvent
    from gateway.protocol.responses.response_object import ResponseHead, ResponseStatus
    from gateway.protocol.stream_events import Deltas

_SHOWN_LATER: Final[dict[SegmentKind, dict[str, Any]]] = {
    SegmentKind.WEB_SEARCH_CALL: {"action": {"type": "search"}},
    SegmentKind.CODE_INTERPRETER_CALL: {"outputs": None},
    SegmentKind.MCP_CALL: {"output": None, "error": None},
}
"""Fields of a hosted call until there is a result."""
ANSWERS: Final = (SegmentKind.FINAL, SegmentKind.REFUSAL)
_CITING: Final = {SegmentKind.COMMENTARY, *ANSWERS}


@dataclass(frozen=True, slots=True)
class CompleteCall:
    name: str
    arguments: str
    ending: SegmentEnded


class Builder:
    """Builder of the events of one response, from `response.created` to the terminal one.

        queue? start compact? list_tools* (feed | run_call* end_call | break_off)* finish

    `finish` may also follow `queue`, as `RESPONSE_STATUSES` allows; `alive` may come anywhere
    between. Any other order raises `ValueError`, and so do segment events in an order that no
    `TokenParser` may produce.

    `seal` makes the `encrypted_content` of a reasoning item. `unresolved` counts citations of pages
    that do not exist.
    """

    __slots__ = (
        "_cited", "_ended", "_files", "_head", "_hosted_before", "_item", "_outcome", "_pages",
        "_rules", "_seal", "_segment", "_sequence_number", "_whole", "awaits_client", "breaks_off",
        "closed", "endings", "flowing", "includable", "is_answered", "is_called", "is_finished",
        "is_started", "is_visible", "is_waiting", "output", "pending_approval", "pending_call",
        "unresolved",
    )  # fmt: skip

    def __init__(
        self,
        head: ResponseHead,
        rules: OutputRules,
        seal: Callable[[str, SegmentEnded | None], str | None] | None = None,
        pages: Pages | None = None,
        files: ContainerFiles | None = None,
    ) -> None:
        self._head = head
        self._rules = rules
        self._seal = seal
        self._pages = pages
        self._files = files
        self._cited: CitedAnswer | None = None
        self._ended = b""
        self._outcome = Outcome("queued" if head.background else "in_progress")
        self._sequence_number = self._hosted_before = self.unresolved = 0
        self._segment: SegmentStarted | None = None
        self._item: OpenItem | None = None
        self._whole: list[str] = []
        self.flowing: OpenItem | None = None
        """The open item, while more text of its segment is a delta of it and nothing else."""
        self.output: list[dict[str, Any]] = []
        """The items that are done, exactly as in their `output_item.done`."""
        self.includable: dict[int, dict[str, Any]] = {}
        """By output index (`protocol.items`)."""
        self.endings: dict[int, SegmentEnded] = {}
        """By output index."""
        self.closed: list[tuple[SegmentKind, int, int]] = []
        """Kind, start and end of each message that ended; whoever counts them clears this."""
        self.is_started = False
        self.is_waiting = True
        self.is_visible = self.is_answered = False
        """`is_visible`: the output has an unanswered call or a message with text, not just
        reasoning. `is_answered`: such a message is an answer or a refusal.
        """
        self.is_called = False
        self.awaits_client = False
        self.pending_call: CompleteCall | None = None
        self.pending_approval: UnapprovedCall | None = None
        self.breaks_off = False
        """True if the last item is a call whose arguments end in the middle of their JSON."""
        self.is_finished = False

    def queue(self) -> list[Event]:
        if self.is_started:
            raise ValueError("the response was started before")
        return self._open("queued")

    def start(self) -> list[Event]:
        if not self.is_started:
            return self._open("in_progress")
        self._outcome = Outcome(advance(RESPONSE_STATUSES, self._outcome.status, "in_progress"))
        self.is_waiting = False
        return self.alive()

    def feed(
        self, segments: Sequence[SegmentEvent], spelling: Spelling | None = None
    ) -> list[Event]:
        item = self.flowing
        if item is not None and len(segments) == 1 and spelling is None:
            # Nearly every call is for more text of the open item.
            segment = segments[0]
            if type(segment) is SegmentText:
                number = self._sequence_number
                self._sequence_number = number + 1
                return [item.write(segment.text, number)]
        self._require_open()
        events: list[Event] = []
        texts: list[SegmentText] = []
        for segment in segments:
            if isinstance(segment, SegmentText):
                texts.append(segment)
                continue
            if texts:
                self._write(texts, spelling, events)
            if isinstance(segment, SegmentStarted):
                self._close_item("completed", events)
                self._segment = segment
                if self._pages is not None or self._files:
                    self._cited = self._new_citations(segment.kind)
                if ENVELOPES[segment.kind].needs_delta:
                    self._open_item(segment, events)
            else:
                self._close_segment(segment, events)
        if texts:
            self._write(texts, spelling, events)
        return events

    def feed_each(self, texts: Sequence[str], after: int) -> Deltas:
        """Return the deltas above `after` of texts of the `flowing` item; no text is empty."""
        assert self.flowing is not None, "nothing is open"
        number = self._sequence_number
        self._sequence_number = number + len(texts)
        return self.flowing.write_each(texts, number, after)

    def compact(self, seal: str) -> list[Event]:
        self._require_open()
        if self.output or self._item is not None:
            raise ValueError("a compaction is the first item, or none")
        item_id = ids.output_item_id(ids.COMPACTION_PREFIX, self._head.uuid, 0)
        item = compaction_body(item_id, seal)
        self.output.append(item)
        values = {"item_id": item_id, "output_index": 0, "item": item}
        return [
            self._emit(name, {field: values[field] for field in EVENT_FIELDS[name]})
            for name in COMPACTION_EVENTS
        ]

    def list_tools(self, label: str, tools: object, error: object) -> list[Event]:
        self._require_open()
        index = len(self.output)
        item_id = ids.output_item_id(ids.HOSTED_PREFIXES[LISTING_ITEM], self._head.uuid, index)
        item = {"id": item_id, "type": LISTING_ITEM, "server_label": label, "tools": tools}
        place = {"item_id": item_id, "output_index": index}
        begun = {**item, "tools": []}
        if error is not None:  # clients that check what they are sent know no null here
            item["error"] = error
        added, *progress, done = LISTING_EVENTS[error is None]
        return [
            self._emit(added, {"output_index": index, "item": begun}),
            *(self._emit(name, place) for name in progress),
            self._keep(done, index, item),
        ]

    def run_call(
        self, call: UnansweredCall, shown: dict[str, Any], *, approval: str | None = None
    ) -> list[Event]:
        """Return the events of the start of a call that the gateway runs; none for a restart.

        `approval` is the id of the approval request of a call from an earlier response.
        """
        events = self._open_call(call, shown, approval)
        item = self._item
        assert item is not None, "it was just opened"
        if not item.is_running:
            item.is_running = True
            events += [self._emit(name, item.fields(name)) for name in item.envelope.running]
        return events

    def end_call(
        self,
        call: UnansweredCall,
        outcome: ToolOutcome,
        shown: dict[str, Any],
        *,
        approval: str | None = None,
    ) -> list[Event]:
        events = self._open_call(call, shown, approval)
        item = self._item
        assert item is not None, "it was just opened"
        status: ItemStatus = "completed" if outcome == "ok" else "failed"
        names = item.envelope.completed if outcome == "ok" else item.envelope.failed
        if outcome == "cancelled":
            status, names = "incomplete", ()
        item.close(status)
        events += [self._emit(name, item.fields(name)) for name in names]
        events.append(self._keep_open(item))
        self._item = self.pending_call = None
        # The model has yet to use the result.
        self.is_visible = self.is_called = self.is_answered = False
        return events

    def alive(self) -> list[Event]:
        """Repeat the status: unlike an SSE comment it resets the timers of clients."""
        self._require_open(may_wait=True)
        # Without the items so far: a client takes them from item events, and would have them twice.
        return [self._show(STATUS_EVENTS[self._outcome.status], self._encode_body([]))]

    def break_off(self) -> list[Event]:
        """Close the open item as `incomplete`; the turn is generated again."""
        events: list[Event] = []
        self._close_item("incomplete", events)
        self.is_visible = self.is_called = self.is_answered = False
        return events

    def may_finish(self, status: ResponseStatus) -> bool:
        return self.is_started and status in RESPONSE_STATUSES[self._outcome.status]

    def finish(self, outcome: Outcome) -> list[Event]:
        self._require_open(may_wait=True)
        advance(RESPONSE_STATUSES, self._outcome.status, outcome.status)
        events: list[Event] = []
        self._close_item("completed" if outcome.status == "completed" else "incomplete", events)
        self._outcome = outcome
        self.is_finished = True
        for event_type in CLOSING_EVENTS[outcome.status]:
            if event_type == ERROR_EVENT:
                events.append(self._emit(ERROR_EVENT, _error_fields(outcome.error or {})))
            else:
                self._ended = self._encode_body(self.output)
                events.append(self._show(event_type, self._ended))
        return events

    def response(self) -> dict[str, Any]:
        return response_body(self._head, self._outcome, self._items())

    def encoded_response(self) -> bytes:
        return self._ended or self._encode_body(self._items())

    def _items(self) -> list[dict[str, Any]]:
        unfinished = [self._item.body()] if self._item else []
        return [*self.output, *unfinished]

    def _open(self, status: ResponseStatus) -> list[Event]:
        self.is_started = True
        self.is_waiting = status == "queued"
        self._outcome = Outcome(status)
        body = self._encode_body([])
        return [self._show(OPENING_EVENT, body), self._show(STATUS_EVENTS[status], body)]

    def _require_open(self, *, may_wait: bool = False) -> None:
        if not self.is_started or self.is_finished:
            raise ValueError("the response is not running: not started, or finished")
        if not may_wait and self._outcome.status == "queued":
            raise ValueError("the response is not running: it is queued")

    def _close_segment(self, segment: SegmentEnded, events: list[Event]) -> None:
        started, self._segment, self.flowing = self._segment, None, None
        if started is None:
            raise ValueError("a segment ended that had not started")
        self.closed.append((started.kind, segment.start, segment.end))
        if self._cited is not None:
            rest = self._cited.end(is_complete=segment.complete)
            self._show_cited(started, rest, events)
            self.unresolved += self._cited.unresolved
            self._cited = None
        if started.kind in HOSTED_KINDS:
            self._note_call(started, segment, events)
            return
        if started.kind is SegmentKind.MCP_APPROVAL_REQUEST:
            self._ask(started, segment, events)
        elif not ENVELOPES[started.kind].delta:
            self._show_whole(started, segment, events)
        if self._item is None:
            return
        self.endings[self._item.output_index] = segment
        self.breaks_off = segment.broken and started.kind is SegmentKind.FUNCTION_CALL
        if segment.complete and not self.breaks_off:
            self._close_item("completed", events)

    def _write(
        self, texts: list[SegmentText], spelling: Spelling | None, events: list[Event]
    ) -> None:
        if self._segment is None:
            raise ValueError("text outside of a segment")
        if self._cited is not None:
            pieces = _pieces(self._cited, self._segment.kind, texts, spelling)
            self._show_cited(self._segment, pieces, events)
            texts.clear()
            return
        text = texts[0].text if len(texts) == 1 else "".join(part.text for part in texts)
        if self._item is None and not ENVELOPES[self._segment.kind].delta:
            self._whole.append(text)
        else:
            item = self._item or self._open_item(self._segment, events)
            logprobs = _logprobs(item, texts, spelling) if spelling else None
            events.append(self._delta(item, text, logprobs))
            if item.is_summarized:
                self._summarize(item, text, events)
        texts.clear()

    def _open_item(self, segment: SegmentStarted, events: list[Event]) -> OpenItem:
        envelope = ENVELOPES[segment.kind]
        index = len(self.output)
        is_reasoning = envelope.item_type == "reasoning"
        item = OpenItem(
            envelope,
            self._item_id(envelope, segment),
            index,
            call={} if envelope.part else self._call_fields(segment),
            summary=self._rules.summary if is_reasoning else "off",
            shown=_SHOWN_LATER.get(segment.kind),
        )
        item.hosted_before = self._hosted_before
        events += map(self._emit, envelope.opening, map(item.fields, envelope.opening))
        self._item = item
        self.flowing = None if item.is_summarized or self._cited is not None else item
        self._note_shown(segment)
        return item

    def _new_citations(self, kind: SegmentKind) -> CitedAnswer | None:
        if kind not in _CITING:
            return None
        is_free = kind is not SegmentKind.REFUSAL
        is_bound = kind is SegmentKind.FINAL and self._rules.answer is not None
        return CitedAnswer(self._pages, self._files, links=is_free and not is_bound)

    def _show_cited(
        self, segment: SegmentStarted, pieces: Sequence[CitedText], events: list[Event]
    ) -> None:
        for piece in pieces:
            item = self._item or self._open_item(segment, events)
            events.append(self._delta(item, piece.text, piece.logprobs))
            if piece.annotation is not None:
                events.append(self._emit(ANNOTATION_EVENT, item.annotate(piece.annotation)))

    def _close_item(self, status: ItemStatus, events: list[Event]) -> None:
        item = self._item
        if item is None:
            return
        if item.envelope.completed:
            # It has no result.
            status = "incomplete"
        closing = item.envelope.closing[:-1]
        if item.is_text_done:
            closing = ()
        elif item.envelope.needs_delta and not item.text:
            events.append(self._delta(item, ""))
        if item.is_summarized:
            self._summarize(item, None, events)
        item.close("incomplete" if self.breaks_off else status)
        self.breaks_off = False
        if self._seal is not None and item.envelope.item_type == "reasoning":
            item.encrypted_content = self._seal(item.text, self.endings.get(item.output_index))
        events += map(self._emit, closing, map(item.fields, closing))
        if item.is_summarized and (summary := item.summary):
            names = SUMMARY_CLOSING_EVENTS
            events += [self._emit(name, item.summary_fields(name, summary)) for name in names]
        events.append(self._keep_open(item))
        self._item = self.flowing = self.pending_call = None

    def _note_call(self, segment: SegmentStarted, ended: SegmentEnded, events: list[Event]) -> None:
        arguments, self._whole = "".join(self._whole), []
        if not ended.complete:
            return
        if self._item is not None:
            arguments = self._item.text
            self._end_text(self._item, events)
        self.is_called = True
        self.pending_call = CompleteCall(segment.name, arguments, ended)

    def _end_text(self, item: OpenItem, events: list[Event]) -> None:
        if not item.text:
            events.append(self._delta(item, ""))
        item.is_text_done = True
        events += [self._emit(name, item.fields(name)) for name in item.envelope.closing[:-1]]

    def _open_call(
        self, call: UnansweredCall, shown: dict[str, Any], approval: str | None
    ) -> list[Event]:
        self._require_open()
        include = self._head.grants.include if self._head.grants else ()
        if self._item is not None:
            self._item.show(shown, include)
            return []
        kind = SegmentKind.WEB_SEARCH_CALL if approval is None else SegmentKind.MCP_CALL
        envelope = ENVELOPES[kind]
        fields = {} if approval is None else self._mcp_call(call.name, approval)
        segment = SegmentStarted(kind, call.name)
        item_id = self._item_id(envelope, segment)
        item = OpenItem(envelope, item_id, len(self.output), call=fields, shown=_SHOWN_LATER[kind])
        item.hosted_before = self._hosted_before
        item.show(shown, include)
        events = [self._emit(name, item.fields(name)) for name in envelope.opening]
        self._item = item
        self._note_shown(segment)
        if envelope.delta:
            if call.arguments:
                events.append(self._delta(item, call.arguments))
            self._end_text(item, events)
        return events

    def _ask(self, segment: SegmentStarted, ended: SegmentEnded, events: list[Event]) -> None:
        # An approval request has no status, so it is shown complete.
        arguments, self._whole = "".join(self._whole), []
        if not ended.complete:
            return
        envelope, index = ENVELOPES[segment.kind], len(self.output)
        called = self._mcp_call(segment.name)
        item = {
            "id": self._item_id(envelope, segment),
            "type": envelope.item_type,
            "server_label": called["server_label"],
            "name": called["name"],
            "arguments": arguments,
        }
        self.endings[index] = ended
        events.append(self._emit(envelope.opening[0], {"output_index": index, "item": item}))
        events.append(self._keep(envelope.closing[0], index, item))
        self._note_shown(segment)
        self.pending_approval = UnapprovedCall(item["id"], segment.name, arguments)

    def _show_whole(
        self, segment: SegmentStarted, ended: SegmentEnded, events: list[Event]
    ) -> None:
        arguments, self._whole = "".join(self._whole), []
        try:
            fields = call_fields(self._rules.tools.get(segment.name), segment.name, arguments)
        except ValueError:
            return
        if not ended.complete:
            return
        envelope = ENVELOPES[segment.kind]
        index = len(self.output)
        call = {**self._call_id(segment), **fields}
        item = WholeItem(envelope, self._item_id(envelope, segment), index, call=call)
        events.append(self._emit(envelope.opening[0], item.added()))
        for name, command in item.commands():
            events.append(self._emit(name, command, len(command.get("delta", ""))))
        self.endings[index] = ended
        events.append(self._keep(envelope.closing[0], index, item.body()))
        self._note_shown(segment)

    def _keep_open(self, item: OpenItem) -> Event:
        if item.includable:
            self.includable[item.output_index] = item.includable
        return self._keep(item.envelope.closing[-1], item.output_index, item.body())

    def _keep(self, event_type: str, index: int, body: dict[str, Any]) -> Event:
        self.output.append(body)
        event = self._emit(event_type, {"output_index": index, "item": body})
        self._hosted_before += body["type"] in HOSTED_ITEMS
        return event

    def _note_shown(self, segment: SegmentStarted) -> None:
        kind = segment.kind
        is_clients = kind in CALL_KINDS
        self.is_visible = self.is_visible or kind is not SegmentKind.REASONING
        self.awaits_client = self.awaits_client or is_clients
        self.is_called = self.is_called or is_clients or kind in GATEWAY_KINDS
        self.is_answered = self.is_answered or kind in ANSWERS

    def _summarize(self, item: OpenItem, text: str | None, events: list[Event]) -> None:
        is_first = not item.summary
        more = item.summarize(text)
        if not more:
            return
        if is_first:
            fields = item.summary_fields(SUMMARY_OPENING_EVENT, "")
            events.append(self._emit(SUMMARY_OPENING_EVENT, fields))
        fields = item.summary_fields(SUMMARY_DELTA_EVENT, more)
        events.append(self._emit(SUMMARY_DELTA_EVENT, fields, len(more)))

    def _item_id(self, envelope: Envelope, segment: SegmentStarted) -> str:
        form = segment.form if envelope.item_type == "message" else 0
        return ids.output_item_id(envelope.id_prefix, self._head.uuid, len(self.output), form)

    def _mcp_call(self, name: str, approval: str | None = None) -> dict[str, Any]:
        # After an approval the rules may lack the tool, or have another one of this name.
        label, _, shown_name = name.partition(".")
        tool = self._rules.tools.get(name)
        if tool is not None and tool.is_hosted and tool.namespace is not None:
            label, shown_name = tool.namespace, tool.shown_name
        return {"approval_request_id": approval, "server_label": label, "name": shown_name}

    def _call_id(self, segment: SegmentStarted) -> dict[str, Any]:
        return {"call_id": ids.call_id(self._head.uuid, len(self.output), segment.form)}

    def _call_fields(self, segment: SegmentStarted) -> dict[str, Any]:
        if segment.kind is SegmentKind.MCP_CALL:
            return self._mcp_call(segment.name)
        if segment.kind is SegmentKind.CODE_INTERPRETER_CALL:
            python = self._head.grants.python if self._head.grants else None
            return {"container_id": python.container_id if python else ""}
        call = self._call_id(segment)
        tool = self._rules.tools.get(segment.name)
        if tool is None:
            return {**call, "name": segment.name}
        namespace = {} if tool.namespace is None else {"namespace": tool.namespace}
        return {**call, "name": tool.shown_name, **namespace}

    def _delta(
        self, item: OpenItem, text: str, logprobs: list[dict[str, Any]] | None = None
    ) -> Event:
        number = self._sequence_number
        self._sequence_number = number + 1
        return item.write(text, number, logprobs)

    def _encode_body(self, output: Sequence[dict[str, Any]]) -> bytes:
        echo = self._head.spelled or spelled_echo(self._head.echo)
        return encoded_body(self._head, self._outcome, output, echo=echo)

    def _show(self, event_type: str, body: bytes) -> Event:
        number = self._sequence_number
        self._sequence_number = number + 1
        frame = b'{"type":"%b","sequence_number":%d,"response":%b}'
        return Event(event_type, number, frame % (event_type.encode(), number, body))

    def _emit(self, event_type: str, fields: dict[str, Any], delta_length: int = 0) -> Event:
        number = self._sequence_number
        self._sequence_number = number + 1
        data = lasting_json({"type": event_type, "sequence_number": number, **fields})
        return Event(event_type, number, data, delta_length, hosted_before=self._hosted_before)


def _pieces(
    cited: CitedAnswer, kind: SegmentKind, texts: Sequence[SegmentText], spelling: Spelling | None
) -> list[CitedText]:
    if spelling is None or ENVELOPES[kind].part != "output_text":
        return cited.feed("".join(text.text for text in texts))
    units = (unit for text in texts for unit in spelled_units(text, spelling))
    return cited.feed_spelled((unit.text, logprob_entries(unit, spelling)) for unit in units)


def _logprobs(
    item: OpenItem, texts: list[SegmentText], spelling: Spelling
) -> list[dict[str, Any]] | None:
    if item.envelope.part != "output_text":
        return None
    entries: list[dict[str, Any]] = []
    for text in texts:
        more = logprob_entries(text, spelling)
        if more is None:
            return None
        entries += more
    return entries


def _error_fields(error: dict[str, Any]) -> dict[str, Any]:
    # The API nests the error; OpenAI's SDK types have it flat, but its iterator raises only for the
    # nested one.
    code = error["code"]
    flat = {"code": code, "message": error["message"], "param": None}
    return {**flat, "error": {"type": ERROR_TYPES.get(code, code), **flat}}
