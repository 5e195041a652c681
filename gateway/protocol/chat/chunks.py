"""Stream events → chunks. Together they say what the body would have said (`bodies`).

A stream that fails after its start ends with an `error` in the place of a chunk.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.protocol.chat.bodies import (
    call_body,
    finish_reason,
    identity,
    stop_reason,
    text_choice,
    usage_of,
)
from gateway.protocol.chat.pieces import CALL_KINDS, CALL_TEXTS, FIELDS, MEMBERS, failure_of
from gateway.protocol.chat.steps import Called, Ended, Opened, Said, Steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.protocol.chat.bodies import ChatForm
    from gateway.protocol.chat.pieces import Field
    from gateway.protocol.chat.steps import Written
    from gateway.protocol.events import Event

    Json = dict[str, Any]

CHAT_CHUNK: Final = "chat.completion.chunk"
TEXT_CHUNK: Final = "text_completion"


class ChatChunks:
    """The chunks of one chat completion."""

    def __init__(self, form: ChatForm, *, include_usage: bool) -> None:
        self._form = form
        self._steps = Steps()
        self._frame = _Frame(CHAT_CHUNK, include_usage=include_usage)
        self._texts: dict[Field, _TextChunk] = {}
        self._is_silent = True

    def of(self, event: Event) -> list[bytes]:
        """The chunks that show the next event, encoded: none, one or several (`answers`)."""
        match self._steps.of(event):
            case Said() as said:
                return [self._say(said)]
            case None:
                return []
            case Opened(response):
                self._frame.name(response, service_tier=response["service_tier"])
                self._texts = {one: self._frame.text(_choice, *MEMBERS[one]) for one in FIELDS}
                delta = {"role": "assistant", "content": None, "refusal": None}
                return [self._frame.chunk(_choice(delta))]
            case Called(position, item):
                return self._call(position, call_body(item))
            case Ended(response):
                return self._frame.last(self._ending(response), response)
            case written:
                return self._write(written)

    def _say(self, said: Said) -> bytes:
        if said.field != "reasoning_content":
            self._is_silent = False
        if self._form.logprobs and said.field == "content":
            logprobs = {"content": said.logprobs or None, "refusal": None}
            content = orjson.Fragment(said.text)
            return self._frame.chunk(_choice({"content": content}, logprobs=logprobs))
        return self._texts[said.field].of(said.text)

    def _call(self, position: int, call: Json) -> list[bytes]:
        """A call, or more of one. The deprecated form knows only one."""
        self._is_silent = False
        if not self._form.is_deprecated:
            delta: Json = {"tool_calls": [{"index": position, **call}]}
        elif position == 0:
            delta = {"function_call": call["function"]}
        else:
            return []
        return [self._frame.chunk(_choice(delta))]

    def _write(self, written: Written) -> list[bytes]:
        """Only the first text of a call may be empty, and says nothing."""
        if not written.text:
            return []
        kind = written.item["type"]
        return self._call(written.position, {CALL_KINDS[kind]: {CALL_TEXTS[kind]: written.text}})

    def _ending(self, response: Json) -> Json:
        delta = {"content": ""} if self._is_silent else {}
        return _choice(delta, finish=finish_reason(response, self._form))


class CompletionChunks:
    """The chunks of one completion: the answer alone."""

    def __init__(self, *, include_usage: bool) -> None:
        self._steps = Steps()
        self._frame = _Frame(TEXT_CHUNK, include_usage=include_usage)
        self._text = _TextChunk((b"", b""))

    def of(self, event: Event) -> list[bytes]:
        """The chunks that show the next event, encoded: none, one or several (`answers`)."""
        match self._steps.of(event):
            case Said(field="content", text=text):
                return [self._text.of(text)]
            case Opened(response):
                self._frame.name(response)
                self._text = self._frame.text(_completed, "text")
            case Ended(response):
                return self._frame.last(text_choice("", stop_reason(response)), response)
            case _:
                pass
        return []


@dataclass(frozen=True, slots=True)
class _TextChunk:
    """A chunk that was encoded once, except for its text: there is one for each token.

    `around` is what stands before the text, behind it, and between it and the same once more.
    """

    around: tuple[bytes, ...]

    def of(self, text: bytes) -> bytes:
        return text.join(self.around)


class _Frame:
    """What is around the choice of every chunk of a stream."""

    def __init__(self, kind: str, *, include_usage: bool) -> None:
        self._kind = kind
        self._include_usage = include_usage
        self._head = b""
        # For those who ask for the usage, all chunks have one: null but in the last.
        self._tail = b'],"usage":null}' if include_usage else b"]}"

    def name(self, response: Json, **more: str) -> None:
        """Tell whose chunks they are, before the first."""
        named = orjson.dumps({**identity(response, self._kind), **more})
        self._head = named.removesuffix(b"}") + b',"choices":['

    def chunk(self, choice: Json) -> bytes:
        """One with its choice."""
        return self._head + orjson.dumps(choice) + self._tail

    def text(self, choice: Callable[[Json], Json], *fields: str) -> _TextChunk:
        """Those with this choice and any text, which stands in all the `fields`."""
        before, around = self.chunk(choice(dict.fromkeys(fields, ""))), deque[bytes]()
        for field in reversed(fields):
            before, name, behind = before.rpartition(b'"%b":""' % field.encode())
            before += name.removesuffix(b'""')
            around.appendleft(behind)
        return _TextChunk((before, *around))

    def last(self, choice: Json, response: Json) -> list[bytes]:
        """The end of a stream: why it ended, and perhaps the usage; or the error that ended it."""
        failure = failure_of(response)
        if failure is not None:
            return [orjson.dumps({"error": failure})]
        if not self._include_usage:
            return [self.chunk(choice)]
        usage = orjson.dumps(usage_of(response))
        return [self.chunk(choice), b'%b],"usage":%b}' % (self._head, usage)]


def _choice(delta: Json, *, logprobs: Json | None = None, finish: str | None = None) -> Json:
    return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _completed(text: Json) -> Json:
    return {**text_choice("", None), **text}
