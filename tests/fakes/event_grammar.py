"""The grammar of a stream, written down a second time: as one pattern, and as laws of its numbers.

On purpose it shares nothing with `gateway.eventlog.fold.lifecycle`, which production is driven by.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.protocol.stream_events import Event

_SENTENCE: Final = re.compile(
    r"created( queued)*( in_progress"
    r"( output_item.added:compaction compaction.compacting output_item.done:compaction)?"
    r"( output_item.added:mcp_list_tools mcp_list_tools.in_progress"
    r" mcp_list_tools.(completed|failed) output_item.done:mcp_list_tools)*"
    r"( output_item.added:message content_part.added"
    r"( output_text.delta( output_text.annotation.added)?)+"
    r" output_text.done content_part.done output_item.done:message"
    r"| output_item.added:message content_part.added( refusal.delta)+"
    r" refusal.done content_part.done output_item.done:message"
    r"| output_item.added:reasoning content_part.added( reasoning_text.delta)+"
    r"( reasoning_summary_part.added reasoning_summary_text.delta"
    r"(( reasoning_text.delta)+( reasoning_summary_text.delta)?)*)?"
    r" reasoning_text.done content_part.done"
    r"( reasoning_summary_text.done reasoning_summary_part.done)? output_item.done:reasoning"
    r"| output_item.added:function_call( function_call_arguments.delta)+"
    r" function_call_arguments.done output_item.done:function_call"
    r"| output_item.added:web_search_call( web_search_call.in_progress web_search_call.searching"
    r"( web_search_call.completed)?)? output_item.done:web_search_call"
    r"| output_item.added:code_interpreter_call code_interpreter_call.in_progress"
    r"( code_interpreter_call_code.delta)+ code_interpreter_call_code.done"
    r"( code_interpreter_call.interpreting( code_interpreter_call.completed)?)?"
    r" output_item.done:code_interpreter_call"
    r"| output_item.added:mcp_call mcp_call.in_progress( mcp_call_arguments.delta)+"
    r" mcp_call_arguments.done( mcp_call.(completed|failed))? output_item.done:mcp_call"
    r"| output_item.added:mcp_approval_request output_item.done:mcp_approval_request"
    r"| output_item.added:custom_tool_call( custom_tool_call_input.delta)+"
    r" custom_tool_call_input.done output_item.done:custom_tool_call"
    r"| output_item.added:local_shell_call output_item.done:local_shell_call"
    r"| output_item.added:apply_patch_call output_item.done:apply_patch_call"
    r"| output_item.added:tool_search_call output_item.done:tool_search_call"
    r"| output_item.added:shell_call"
    r"( shell_call_command.added shell_call_command.delta shell_call_command.done)+"
    r" output_item.done:shell_call"
    r")*)?"
    r" (completed|incomplete|error failed|failed)"
)
_HOSTED: Final = {
    "web_search_call": "web_search_call.completed",
    "code_interpreter_call": "code_interpreter_call.completed",
    "mcp_call": "mcp_call.completed",
}
"""What a call that the gateway runs is told to have come to its end by, if it did."""
_ANSWERED: Final = {"completed", "incomplete", "failed"}
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
    reader = _ItemReader()
    for event in stream.events:
        kind = event["type"]
        if kind == "response.output_item.added":
            reader = _ItemReader(event["item"])
            assert event["item"].get("status", "in_progress") == "in_progress"
        if "output_index" in event:
            assert event["output_index"] == len(stream.items)
        if "item_id" in event:
            assert event["item_id"] == reader.added["id"]
        assert event.get("content_index", 0) == event.get("summary_index", 0) == 0
        if kind.startswith("response.reasoning_summary"):
            reader.read_summary(event)
        elif kind.startswith("response.shell_call_command"):
            reader.read_command(event)
        else:
            reader.read(event)
        if kind == "response.output_item.done":
            stream.items.append(event["item"])


@dataclass
class _ItemReader:
    """What the events of one item said so far."""

    added: dict[str, Any] = field(default_factory=dict)
    said: str = ""
    last: str = ""
    annotations: list[dict[str, Any]] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    spelled: list[Any] = field(default_factory=list)
    summary: str = ""
    commands: list[str] = field(default_factory=list)

    def read(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        self.types.append(kind.removeprefix("response."))
        if kind.endswith("annotation.added"):
            self._read_annotation(event)
        elif "delta" in event:
            self.last = event["delta"]
            self.said += self.last
            self.spelled += event.get("logprobs", [])
        elif kind.endswith("_part.added"):
            assert _text_of(event["part"]) == ""
        elif kind.endswith("content_part.done"):
            assert _text_of(event["part"]) == self.said
            self._check_logprobs(event["part"].get("logprobs", []))
        elif kind.endswith((".completed", ".failed")):
            pass
        elif kind.endswith(".done") and "item" not in event:
            assert _text_of(event) == self.said
            self._check_logprobs(event.get("logprobs", []))
        elif kind == "response.output_item.done":
            self._check_done(event["item"])

    def _read_annotation(self, event: dict[str, Any]) -> None:
        """It is about the last delta, all of it."""
        annotation = event["annotation"]
        assert event["annotation_index"] == len(self.annotations)
        start, end = annotation["start_index"], annotation["end_index"]
        assert (self.said[start:end], end) == (self.last, len(self.said))
        self.annotations.append(annotation)

    def read_summary(self, event: dict[str, Any]) -> None:
        self.summary += event.get("delta", "")
        if "text" in event:
            assert event["text"] == self.summary
        if "part" in event:
            text = "" if event["type"].endswith(".added") else self.summary
            assert event["part"] == {"type": "summary_text", "text": text}

    def read_command(self, event: dict[str, Any]) -> None:
        assert event["command_index"] == len(self.commands)
        if event["type"].endswith(".added"):
            assert event["command"] == ""
        elif event["type"].endswith(".done"):
            self.commands.append(event["command"])

    def _check_logprobs(self, logprobs: list[dict[str, Any]]) -> None:
        """All of the text is spelled, or none of it."""
        if logprobs:
            assert logprobs == self.spelled
            spelled = b"".join(bytes(entry["bytes"]) for entry in logprobs)
            assert spelled == self.said.encode()

    def _check_done(self, done: dict[str, Any]) -> None:
        added = self.added
        if done["type"] == "compaction":
            assert added == done
            assert list(done) == ["id", "type", "encrypted_content"]
            return
        late = {"encrypted_content"} | ({"error"} if done["type"] == "mcp_list_tools" else set())
        assert list(added) == [key for key in done if key not in late]
        for key in ("id", "type", "role", "phase", "call_id", "name", "namespace"):
            assert added.get(key) == done.get(key)
        if done["type"] == "mcp_approval_request":
            assert added == done
            return
        if done["type"] == "mcp_list_tools":
            assert (added["tools"], added.get("error")) == ([], None)
            failed = "mcp_list_tools.failed" in self.types
            assert failed == (done.get("error") is not None)
            return
        if done["type"] in _HOSTED:
            assert done["status"] in _ANSWERED
            assert (_HOSTED[done["type"]] in self.types) == (done["status"] == "completed")
        else:
            assert done["status"] in {"completed", "incomplete"}
        texts = {
            "function_call": "arguments",
            "custom_tool_call": "input",
            "mcp_call": "arguments",
            "code_interpreter_call": "code",
        }
        if done["type"] in texts:
            assert (added[texts[done["type"]]], done[texts[done["type"]]]) == ("", self.said)
        elif "content" in done:
            assert added["content"] == []
            assert [_text_of(part) for part in done["content"]] == [self.said]
            self._check_logprobs(done["content"][0].get("logprobs", []))
            assert done["content"][0].get("annotations", []) == self.annotations
        elif done["type"] == "shell_call":
            assert added["action"]["commands"] == []
            assert done["action"]["commands"] == self.commands
        if done["type"] == "reasoning":
            assert "".join(part["text"] for part in done["summary"]) == self.summary
            assert added["summary"] == []


_TEXTS: Final = ("text", "refusal", "arguments", "input", "code")


def _text_of(part: dict[str, Any]) -> Any:
    return next(part[name] for name in _TEXTS if name in part)


def _check_end(stream: Stream) -> None:
    """The Response of the end is what was streamed, and its status fits its items."""
    body = stream.response
    status = body["status"]
    assert body["output"] == stream.items
    assert len({item["id"] for item in stream.items}) == len(stream.items)
    ends = [
        item["status"] for item in stream.items if "status" in item and item["type"] not in _HOSTED
    ]
    assert all(end == "completed" for end in ends[:-1])
    if status == "completed":
        assert all(end == "completed" for end in ends)
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
