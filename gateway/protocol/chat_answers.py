"""Adapters: from a Response object to a chat completion or a completion, from events to chunks.

A chat has one text of each sort, so the texts of several items are joined by a blank line. The
commentary of an answer in a format becomes reasoning, because the content is the JSON alone. A
stream that fails after its start ends with an `error` in the place of a chunk.

Source: `ChatCompletion` and `Completion` of the OpenAI SDK (3.52). Servers of open models call the
chain of thought `reasoning_content` or `reasoning`; clients read one or the other.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import orjson
from typing_extensions import override

from gateway import __version__, ids
from gateway.protocol.hosted_tools import FAMILIES
from gateway.protocol.items import URL_CITATION
from gateway.protocol.stream_events import TERMINAL_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gateway.protocol.stream_events import Event

    Json = dict[str, Any]
    Around = tuple[bytes, ...]
    """Parts of an encoded chunk around each place of its text."""


def in_chat_words(message: str) -> str:
    for name, word in _WORDS.items():
        message = message.replace(name, word)
    return message


_WORDS: dict[str, str] = {
    "text.format": "response_format",
    "max_output_tokens": "max_completion_tokens",
}
Field = Literal["content", "refusal", "reasoning_content"]
MEMBERS: Final[Mapping[Field, tuple[str, ...]]] = {
    "content": ("content",),
    "refusal": ("refusal",),
    "reasoning_content": ("reasoning_content", "reasoning"),
}
FIELDS: Final[tuple[Field, ...]] = get_args(Field)
SEPARATOR: Final = "\n\n"
CALL_TEXTS: Final = {"function_call": "arguments", "custom_tool_call": "input"}
CALL_KINDS: Final = {"function_call": "function", "custom_tool_call": "custom"}
CANCELLED: Final = "The response was cancelled."
_RETRIED: Final = {
    None: "server_error",
    "server_error": "server_error",
    "rate_limit_exceeded": "requests",
}
"""Clients repeat the request after these. All other errors are caused by the request."""


@dataclass(frozen=True, slots=True)
class ItemText:
    field: Field
    index: int
    text: str
    logprobs: list[Json]
    annotations: list[Json]


def is_formatted(response: Json) -> bool:
    return bool(response["text"]["format"]["type"] != "text")


def field_of(item: Json, *, formatted: bool) -> Field:
    is_aside = formatted and item.get("phase") == "commentary"
    return "reasoning_content" if is_aside or item["type"] == "reasoning" else "content"


def texts_of(response: Json) -> Iterator[ItemText]:
    formatted = is_formatted(response)
    for index, item in enumerate(response["output"]):
        if item["type"] not in {"message", "reasoning"}:
            continue
        field = field_of(item, formatted=formatted)
        for part in item["content"]:
            if part["type"] == "refusal":
                yield ItemText("refusal", index, part["refusal"], [], [])
            else:
                logprobs, annotations = part.get("logprobs", []), part.get("annotations", [])
                yield ItemText(field, index, part["text"], logprobs, annotations)


def calls_of(response: Json) -> list[Json]:
    return [item for item in response["output"] if item["type"] in CALL_TEXTS]


def citation_body(annotation: Json, offset: int) -> Json:
    cited = {name: annotation[name] for name in ("url", "title")}
    for name in ("start_index", "end_index"):
        cited[name] = annotation[name] + offset
    return {"type": URL_CITATION, URL_CITATION: cited}


class Joiner:
    def __init__(self) -> None:
        self._last: dict[Field, int] = {}

    def add(self, field: Field, index: int, text: str) -> str:
        before = self._last.get(field, index)
        self._last[field] = index
        return text if before == index else SEPARATOR + text


def failure_of(response: Json) -> Json | None:
    """Return the error of a failed or cancelled response in envelope form."""
    if response["status"] not in {"failed", "cancelled"}:
        return None
    error = response["error"] or {"code": None, "message": CANCELLED}
    return {
        "message": in_chat_words(error["message"]),
        "type": _RETRIED.get(error["code"], "invalid_request_error"),
        "param": None,
        "code": error["code"],
    }


CHAT_PREFIX: Final = "chatcmpl-"
COMPLETION_PREFIX: Final = "cmpl-"
FINGERPRINT_CHARS: Final = 10


def identity(response: Json, kind: str) -> Json:
    """Return the first members of every body and chunk; `kind` is the `object`.

    Backends do not report their changes, so the fingerprint is of the model and the gateway's
    release.
    """
    prefix = COMPLETION_PREFIX if kind == "text_completion" else CHAT_PREFIX
    served = f"{__version__} {response['model']}".encode()
    return {
        "id": prefix + response["id"].removeprefix(ids.RESPONSE_PREFIX),
        "object": kind,
        "created": response["created_at"],
        "model": response["model"],
        "system_fingerprint": f"fp_{hashlib.sha256(served).hexdigest()[:FINGERPRINT_CHARS]}",
    }


def text_choice(text: str, finish: str | None) -> Json:
    return {"text": text, "index": 0, "logprobs": None, "finish_reason": finish}


def stop_reason(response: Json) -> str:
    if response["status"] != "incomplete":
        return "stop"
    is_filtered = response["incomplete_details"]["reason"] == "content_filter"
    return "content_filter" if is_filtered else "length"


def finish_reason(response: Json, *, is_deprecated: bool) -> str:
    reason = stop_reason(response)
    if reason == "stop" and calls_of(response):
        return "function_call" if is_deprecated else "tool_calls"
    return reason


def call_body(item: Json) -> Json:
    kind, text = CALL_KINDS[item["type"]], CALL_TEXTS[item["type"]]
    return {"id": item["call_id"], "type": kind, kind: {"name": item["name"], text: item[text]}}


def usage_of(response: Json) -> Json:
    usage = response["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    reasoning = usage["output_tokens_details"]["reasoning_tokens"]
    return {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _message(response: Json, calls: list[Json], *, is_deprecated: bool) -> Json:
    # Null only beside other output: clients call string methods on the text of an answer.
    texts = _join_texts(response)
    refusal = texts.get("refusal")
    is_other = bool(calls) or refusal is not None
    message: Json = {
        "role": "assistant",
        "content": texts.get("content", None if is_other else ""),
        "refusal": refusal,
        "annotations": _citations(response),
    }
    if "reasoning_content" in texts:
        message |= dict.fromkeys(MEMBERS["reasoning_content"], texts["reasoning_content"])
    if calls and is_deprecated:
        message["function_call"] = call_body(calls[0])["function"]
    elif calls:
        message["tool_calls"] = [call_body(call) for call in calls]
    return message


def _join_texts(response: Json) -> dict[Field, str]:
    joiner = Joiner()
    texts: dict[Field, str] = {}
    for piece in texts_of(response):
        more = joiner.add(piece.field, piece.index, piece.text)
        texts[piece.field] = texts.get(piece.field, "") + more
    return texts


def _citations(response: Json) -> list[Json]:
    joiner, length = Joiner(), 0
    citations: list[Json] = []
    for piece in texts_of(response):
        if piece.field == "content":
            length += len(joiner.add(piece.field, piece.index, piece.text))
            offset = length - len(piece.text)
            cited = (one for one in piece.annotations if one["type"] == URL_CITATION)
            citations += [citation_body(one, offset) for one in cited]
    return citations


def _logprobs(response: Json) -> Json:
    pieces = [piece for piece in texts_of(response) if piece.field == "content"]
    entries = [entry for piece in pieces for entry in piece.logprobs]
    return {"content": entries or None, "refusal": None}


_CREATED: Final = "response.created"
_ADDED: Final = "response.output_item.added"
_TEXT_DELTAS: Final = {
    "response.output_text.delta": False,
    "response.reasoning_text.delta": False,
    "response.refusal.delta": True,
}
"""Whether the text is a refusal."""
_WRITTEN: Final = frozenset(
    {"response.function_call_arguments.delta", "response.custom_tool_call_input.delta"}
)
_ANNOTATED: Final = "response.output_text.annotation.added"
_READ: Final = frozenset({_CREATED, _ADDED, _ANNOTATED, *_TEXT_DELTAS, *_WRITTEN, *TERMINAL_TYPES})
CHAT_CHUNK: Final = "chat.completion.chunk"
TEXT_CHUNK: Final = "text_completion"


class Chunks:
    """Maker of the chunks of one stream, from its first event on."""

    def __init__(self, kind: str, *, include_usage: bool) -> None:
        self._kind = kind
        self._include_usage = include_usage
        self._head = b""
        # For those who ask for the usage, all chunks have one: null but in the last.
        self._tail = b'],"usage":null}' if include_usage else b"]}"
        self._formatted = False
        self._index = 0
        self._field: Field = "content"
        self._is_begun = False
        self._calls: dict[int, tuple[int, Json]] = {}
        self._joiner = Joiner()

    def from_event(self, event: Event) -> list[bytes]:
        """Return the chunks that show the next event, encoded. An error is a chunk, too.

        Their text is as long as the event's, except for separators.
        """
        is_refusal = _TEXT_DELTAS.get(event.type)
        if is_refusal is not None:
            return self._text(event, "refusal" if is_refusal else self._field)
        if event.type not in _READ:
            return []
        data = orjson.loads(event.data)
        if "response" not in data:
            return self._from_item(event.type, data)
        response = data["response"]
        if event.type == _CREATED:
            self._formatted = is_formatted(response)
            return self._first(response)
        return self._last(self._last_choice(response), response)

    def _from_item(self, kind: str, data: Json) -> list[bytes]:
        if kind == _ADDED:
            return self._add(data["output_index"], data["item"])
        if kind == _ANNOTATED:
            return self._annotation_chunks(data["annotation"])
        position, item = self._calls[data["output_index"]]
        # Only the first text of a call may be empty, and says nothing.
        written = {CALL_TEXTS[item["type"]]: data["delta"]}
        call = {CALL_KINDS[item["type"]]: written}
        return self._call(position, call) if data["delta"] else []

    def _text(self, event: Event, field: Field) -> list[bytes]:
        # Items never overlap, so the text belongs to the item added last.
        logprobs: list[Json] = []
        text = event.text
        if not text:
            data = orjson.loads(event.data)
            text, logprobs = orjson.dumps(data["delta"]), data["logprobs"]
        if not self._is_begun:
            self._is_begun = True
            separator = self._joiner.add(field, self._index, "")
            self._begin(field, separator)
            text = orjson.dumps(separator)[:-1] + text[1:]
        return self._text_chunks(field, text, logprobs)

    def _add(self, index: int, item: Json) -> list[bytes]:
        if item["type"] in CALL_TEXTS:
            position = len(self._calls)
            self._calls[index] = position, item
            return self._call(position, call_body(item))
        self._index, self._field = index, field_of(item, formatted=self._formatted)
        self._is_begun = False
        return []

    def _begin(self, field: Field, separator: str) -> None: ...

    def _annotation_chunks(self, annotation: Json) -> list[bytes]:  # noqa: ARG002 - an API may show none
        return []

    def _name(self, response: Json, **more: str) -> None:
        # Must run before the first chunk of the stream.
        named = orjson.dumps({**identity(response, self._kind), **more})
        self._head = named.removesuffix(b"}") + b',"choices":['

    def _chunk(self, choice: Json) -> bytes:
        return self._head + orjson.dumps(choice) + self._tail

    def _around(self, choice: Callable[[Json], Json], *fields: str) -> Around:
        before, around = self._chunk(choice(dict.fromkeys(fields, ""))), deque[bytes]()
        for field in reversed(fields):
            before, name, behind = before.rpartition(b'"%b":""' % field.encode())
            before += name.removesuffix(b'""')
            around.appendleft(behind)
        return (before, *around)

    def _last(self, choice: Json, response: Json) -> list[bytes]:
        failure = failure_of(response)
        if failure is not None:
            return [orjson.dumps({"error": failure})]
        if not self._include_usage:
            return [self._chunk(choice)]
        usage = orjson.dumps(usage_of(response))
        return [self._chunk(choice), b'%b],"usage":%b}' % (self._head, usage)]

    def _first(self, response: Json) -> list[bytes]:
        raise NotImplementedError

    def _text_chunks(self, field: Field, text: bytes, logprobs: list[Json]) -> list[bytes]:
        raise NotImplementedError

    def _call(self, position: int, call: Json) -> list[bytes]:  # noqa: ARG002 - nor calls
        # `position` counts the calls of the response from 0.
        return []

    def _last_choice(self, response: Json) -> Json:
        raise NotImplementedError


class ChatChunks(Chunks):
    def __init__(self, form: ChatAdapter) -> None:
        super().__init__(CHAT_CHUNK, include_usage=form.include_usage)
        self._form = form
        self._texts: dict[Field, Around] = {}
        self._is_silent = True
        self._cites = False
        self._content_chars = 0
        self._offset = 0

    @override
    def _first(self, response: Json) -> list[bytes]:
        self._cites = any(FAMILIES.get(tool["type"]) == "web_search" for tool in response["tools"])
        self._name(response, service_tier=response["service_tier"])
        self._texts = {one: self._around(_choice, *MEMBERS[one]) for one in FIELDS}
        return [self._chunk(_choice({"role": "assistant", "content": None, "refusal": None}))]

    @override
    def _text_chunks(self, field: Field, text: bytes, logprobs: list[Json]) -> list[bytes]:
        if field != "reasoning_content":
            self._is_silent = False
        if self._cites and field == "content":
            self._content_chars += len(orjson.loads(text))
        if not self._form.logprobs or field != "content":
            return [text.join(self._texts[field])]
        shown = {"content": logprobs or None, "refusal": None}
        return [self._chunk(_choice({"content": orjson.Fragment(text)}, logprobs=shown))]

    @override
    def _begin(self, field: Field, separator: str) -> None:
        if field == "content":
            self._offset = self._content_chars + len(separator)

    @override
    def _annotation_chunks(self, annotation: Json) -> list[bytes]:
        if self._field != "content" or annotation["type"] != URL_CITATION:
            return []
        cited = [citation_body(annotation, self._offset)]
        return [self._chunk(_choice({"annotations": cited}))]

    @override
    def _call(self, position: int, call: Json) -> list[bytes]:
        # The deprecated `function_call` form has room for one call only.
        self._is_silent = False
        if not self._form.is_deprecated:
            delta: Json = {"tool_calls": [{"index": position, **call}]}
        elif position == 0:
            delta = {"function_call": call["function"]}
        else:
            return []
        return [self._chunk(_choice(delta))]

    @override
    def _last_choice(self, response: Json) -> Json:
        delta = {"content": ""} if self._is_silent else {}
        reason = finish_reason(response, is_deprecated=self._form.is_deprecated)
        return _choice(delta, finish=reason)


class CompletionChunks(Chunks):
    def __init__(self, *, include_usage: bool) -> None:
        super().__init__(TEXT_CHUNK, include_usage=include_usage)
        self._around_text: Around = ()

    @override
    def _first(self, response: Json) -> list[bytes]:
        self._name(response)
        self._around_text = self._around(lambda text: {**text_choice("", None), **text}, "text")
        return []

    @override
    def _text_chunks(self, field: Field, text: bytes, logprobs: list[Json]) -> list[bytes]:
        return [text.join(self._around_text)] if field == "content" else []

    @override
    def _last_choice(self, response: Json) -> Json:
        return text_choice("", stop_reason(response))


def _choice(delta: Json, *, logprobs: Json | None = None, finish: str | None = None) -> Json:
    return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


@dataclass(frozen=True, slots=True)
class ChatAdapter:
    logprobs: bool = False
    is_deprecated: bool = False
    include_usage: bool = False

    def body(self, response: Json) -> Json:
        calls = calls_of(response)
        choice = {
            "index": 0,
            "message": _message(response, calls, is_deprecated=self.is_deprecated),
            "logprobs": _logprobs(response) if self.logprobs else None,
            "finish_reason": finish_reason(response, is_deprecated=self.is_deprecated),
        }
        return {
            **identity(response, "chat.completion"),
            "service_tier": response["service_tier"],
            "choices": [choice],
            "usage": usage_of(response),
            **({"metadata": response["metadata"]} if response["metadata"] else {}),
        }

    def chunks(self) -> Chunks:
        return ChatChunks(self)


@dataclass(frozen=True, slots=True)
class CompletionAdapter:
    include_usage: bool

    def body(self, response: Json) -> Json:
        text = _join_texts(response).get("content", "")
        return {
            **identity(response, TEXT_CHUNK),
            "choices": [text_choice(text, stop_reason(response))],
            "usage": usage_of(response),
        }

    def chunks(self) -> Chunks:
        return CompletionChunks(include_usage=self.include_usage)


Adapter = ChatAdapter | CompletionAdapter
