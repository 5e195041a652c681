"""The grammar of a stream, written down a second time: as one pattern, and as laws of its numbers.

On purpose it shares nothing with `gateway.output.lifecycle`, which production is driven by.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.protocol.events import Event

_SENTENCE: Final = re.compile(
    r"created( queued)*( in_progress"
    r"( output_item.added:message content_part.added( output_text.delta)+"
    r" output_text.done content_part.done output_item.done:message"
    r"| output_item.added:reasoning content_part.added( reasoning_text.delta)+"
    r" reasoning_text.done content_part.done output_item.done:reasoning"
    r"| output_item.added:function_call( function_call_arguments.delta)+"
    r" function_call_arguments.done output_item.done:function_call"
    r")*)?"
    r" (completed|incomplete|error failed|failed)"
)
_TERMINAL: Final = ("response.completed", "response.incomplete", "response.failed")


@dataclass
class Stream:
    """What a client has after the last event."""

    events: list[dict[str, Any]]
    items: list[dict[str, Any]] = field(default_factory=list)

    @property
    def response(self) -> dict[str, Any]:
        """The Response object of the terminal event."""
        response: dict[str, Any] = self.events[-1]["response"]
        return response

    def types(self) -> list[str]:
        """The event types in order."""
        return [event["type"] for event in self.events]


def check_stream(events: Sequence[Event]) -> Stream:
    """Assert every law of a whole stream; what it says."""
    stream = Stream([_decode(event) for event in events])
    assert [event["sequence_number"] for event in stream.events] == list(range(len(events)))
    assert _SENTENCE.fullmatch(_sentence(stream.events)), _sentence(stream.events)
    assert [event.is_terminal for event in events] == [False] * (len(events) - 1) + [True]
    _check_lifecycle(stream.events)
    _read_items(stream)
    _check_end(stream)
    return stream


def _decode(event: Event) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(event.data)
    assert b"\n" not in event.data
    assert event.data == orjson.dumps(body)
    assert (body["type"], body["sequence_number"]) == (event.type, event.sequence_number)
    assert list(body)[:2] == ["type", "sequence_number"]
    assert event.delta_length == len(body.get("delta", ""))
    return body


def _sentence(events: list[dict[str, Any]]) -> str:
    """The types in a row, without the repetitions of `response.in_progress`."""
    words: list[str] = []
    for event in events:
        word = event["type"].removeprefix("response.")
        if word.startswith("output_item"):
            word += ":" + event["item"]["type"]
        if word != "in_progress" or word not in words:
            words.append(word)
    return " ".join(words)


def _check_lifecycle(events: list[dict[str, Any]]) -> None:
    """One response, one identity; nothing but the end shows output or usage."""
    shown = [event for event in events if "response" in event]
    background = shown[0]["response"]["background"]
    for event in shown:
        body = event["response"]
        assert body["id"] == shown[0]["response"]["id"]
        if event["type"] in _TERMINAL:
            continue
        waiting = background and event["type"] in {"response.created", "response.queued"}
        assert body["status"] == ("queued" if waiting else "in_progress")
        assert (body["output"], body["usage"], body["completed_at"]) == ([], None, None)
    assert background == any(event["type"] == "response.queued" for event in events)


def _read_items(stream: Stream) -> None:
    """Ids and indexes agree, indexes are dense, and the deltas say what the done events say."""
    item: dict[str, Any] = {}
    said: list[str] = []
    for event in stream.events:
        kind = event["type"]
        if kind == "response.output_item.added":
            item, said = event["item"], []
            assert item["status"] == "in_progress"
            assert item.get("content", item.get("arguments")) in ([], "")
        if "output_index" in event:
            assert event["output_index"] == len(stream.items)
        if "item_id" in event:
            assert event["item_id"] == item["id"]
        assert event.get("content_index", 0) == 0
        if "delta" in event:
            said.append(event["delta"])
        elif kind.endswith(("_text.done", "arguments.done")):
            assert event.get("text", event.get("arguments")) == "".join(said)
        elif kind == "response.content_part.added":
            assert event["part"]["text"] == ""
        elif kind == "response.content_part.done":
            assert event["part"]["text"] == "".join(said)
        elif kind == "response.output_item.done":
            _check_done(item, event["item"], "".join(said))
            stream.items.append(event["item"])


def _check_done(added: dict[str, Any], done: dict[str, Any], text: str) -> None:
    assert list(added) == list(done)
    for key in ("id", "type", "role", "phase", "call_id", "name"):
        assert added.get(key) == done.get(key)
    assert done["status"] in {"completed", "incomplete"}
    if done["type"] == "function_call":
        assert done["arguments"] == text
    else:
        assert [part["text"] for part in done["content"]] == [text]


def _check_end(stream: Stream) -> None:
    """The Response of the end is what was streamed, and its status fits its items."""
    body = stream.response
    status = body["status"]
    assert body["output"] == stream.items
    assert len({item["id"] for item in stream.items}) == len(stream.items)
    assert all(item["status"] == "completed" for item in stream.items[:-1])
    if status == "completed":
        assert all(item["status"] == "completed" for item in stream.items)
    assert (
        stream.events[-1]["type"]
        == {
            "completed": "response.completed",
            "incomplete": "response.incomplete",
            "failed": "response.failed",
            "cancelled": "response.failed",
        }[status]
    )
    assert (stream.events[-2]["type"] == "error") == (status == "failed")
    assert (body["completed_at"] is not None) == (status == "completed")
    assert (body["error"] is not None) == (status == "failed")
    assert (body["incomplete_details"] is not None) == (status == "incomplete")
    usage = body["usage"]
    if usage is not None:
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        assert usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]
        assert usage["input_tokens_details"]["cached_tokens"] <= usage["input_tokens"]
