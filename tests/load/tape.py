"""What the backend of the benchmark says, frame by frame, as vLLM 0.32 frames it.

One token id in every event of a completion: `<|channel|>final<|message|>`, then words, then
`<|return|>`. A word is a space and three letters and one id; which word comes at which place of
which stream is `word_at` in native/shared.c, so that whoever reads can check each of them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.models.harmony.tokenizer import CHANNEL, MESSAGE, RETURN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.models.harmony.tokenizer import Vocabulary

MODEL: Final = "openai/gpt-oss-20b"
WORDS: Final = 64
WORD_LENGTH: Final = 4
FRAMING_TOKENS: Final = 4
"""Ids around the words, counted in what a request may have at most."""
PROMPT_IDS: Final = (200006, 17360) * 20
_FIRST_WORD: Final = 200
"""The very first ones in the vocabulary are `the` and its like; any will do."""
_USAGE: Final = {"prompt_tokens": 40, "total_tokens": 240, "completion_tokens": 200}
_CREATED: Final = 1_795_216_277
_COMPLETION: Final = {
    "id": "cmpl-66615907c7144918",
    "object": "text_completion",
    "created": _CREATED,
    "model": MODEL,
}
_CHAT: Final = {
    "id": "chatcmpl-66615907c7144918",
    "object": "chat.completion.chunk",
    "created": _CREATED,
    "model": MODEL,
}
_RESPONSE: Final[dict[str, Any]] = {
    "id": "resp_66615907c7144918",
    "created_at": _CREATED,
    "incomplete_details": None,
    "instructions": None,
    "metadata": None,
    "model": MODEL,
    "object": "response",
    "output": [],
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "none",
    "tools": [],
    "top_p": 1.0,
    "background": False,
    "max_output_tokens": 200,
    "previous_response_id": None,
    "reasoning": None,
    "service_tier": "auto",
    "status": "in_progress",
    "text": None,
    "truncation": "disabled",
    "usage": None,
    "user": None,
}
_MESSAGE: Final[dict[str, Any]] = {
    "id": "msg_66615907c7144918",
    "content": [],
    "role": "assistant",
    "status": "in_progress",
    "type": "message",
    "phase": None,
}
_CUT: Final = "CUT HERE"


def words(vocabulary: Vocabulary) -> list[tuple[int, str]]:
    """The words with their ids."""
    found: list[tuple[int, str]] = []
    token = 0
    while len(found) < _FIRST_WORD + WORDS:
        piece = vocabulary.piece(token)
        if len(piece) == WORD_LENGTH and piece[:1] == b" " and piece[1:].isalpha():
            word = piece.decode("utf-8", "replace")
            if word.isascii() and word.islower():
                found.append((token, word))
        token += 1
    return found[_FIRST_WORD:]


def write_tape(vocabulary: Vocabulary) -> bytes:
    """The file that the native programs read; its form is in native/shared.h."""
    chosen = words(vocabulary)
    pieces = ["".join(word for _, word in chosen).encode()]
    for dialect in (_completions(chosen, vocabulary), _chat(chosen), _responses(chosen)):
        pieces += dialect
    return b"".join(struct.pack("<I", len(piece)) + piece for piece in pieces)


def completion_frame(text: str, token: int, *, prompt_ids: Sequence[int] | None = None) -> bytes:
    """One event of a completion, not yet in a chunk of HTTP.

    What frames the words is given no text, so that in every dialect the words are all the text.
    """
    choice = {
        "index": 0,
        "text": text,
        "logprobs": None,
        "finish_reason": "stop" if token == RETURN else None,
        "stop_reason": None,
        "prompt_token_ids": prompt_ids,
        "token_ids": [token],
    }
    return _event({**_COMPLETION, "choices": [choice]})


def _completions(chosen: list[tuple[int, str]], vocabulary: Vocabulary) -> list[bytes]:
    (final,) = vocabulary.encode("final")
    opening = [
        completion_frame("", CHANNEL, prompt_ids=PROMPT_IDS),
        completion_frame("", final),
        completion_frame("", MESSAGE),
    ]
    usage = {**_COMPLETION, "choices": [], "usage": _USAGE, "system_fingerprint": "vllm-0.32.0"}
    closing = [completion_frame("", RETURN), _event(usage), b"data: [DONE]\n\n"]
    frames = [completion_frame(word, token) for token, word in chosen]
    choice = {"index": 0, "text": _CUT, "logprobs": None, "finish_reason": "stop"}
    document = {**_COMPLETION, "choices": [choice], "usage": _USAGE}
    return _dialect("/v1/completions", opening, frames, closing, document)


def _chat(chosen: list[tuple[int, str]]) -> list[bytes]:
    def frame(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _event({**_CHAT, "choices": [choice]})

    usage = {**_CHAT, "choices": [], "usage": _USAGE}
    closing = [frame({}, "stop"), _event(usage), b"data: [DONE]\n\n"]
    frames = [frame({"content": word}) for _, word in chosen]
    opening = [frame({"role": "assistant", "content": ""})]
    message = {"role": "assistant", "content": _CUT}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    document = {**_CHAT, "object": "chat.completion", "choices": [choice], "usage": _USAGE}
    return _dialect("/v1/chat/completions", opening, frames, closing, document)


def _responses(chosen: list[tuple[int, str]]) -> list[bytes]:
    place = {"item_id": _MESSAGE["id"], "output_index": 0, "content_index": 0}
    part: dict[str, Any] = {"annotations": [], "text": "", "type": "output_text", "logprobs": None}
    said = {**_MESSAGE, "status": "completed", "content": [{**part, "text": _CUT}]}
    usage = {
        "input_tokens": 40,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 200,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 240,
    }
    completed = {**_RESPONSE, "status": "completed", "output": [said], "usage": usage}
    opening = [
        named_event("response.created", response=_RESPONSE),
        named_event("response.in_progress", response=_RESPONSE),
        named_event("response.output_item.added", item=_MESSAGE, output_index=0),
        named_event("response.content_part.added", **place, part=part),
    ]
    frames = [
        named_event("response.output_text.delta", **place, delta=word, logprobs=[])
        for _, word in chosen
    ]
    closing = [
        named_event("response.output_text.done", **place, text=_CUT, logprobs=[]),
        named_event("response.content_part.done", **place, part={**part, "text": _CUT}),
        named_event("response.output_item.done", item=said, output_index=0),
        named_event("response.completed", response=completed),
    ]
    return _dialect("/v1/responses", opening, frames, closing, completed)


def _dialect(
    path: str,
    opening: list[bytes],
    frames: list[bytes],
    closing: list[bytes],
    document: dict[str, Any],
) -> list[bytes]:
    head, tail = orjson.dumps(document).split(_CUT.encode())
    return [
        path.encode(),
        _STREAM_HEAD + b"".join(map(chunk, opening)),
        *map(chunk, frames),
        b"".join(map(chunk, closing)) + b"0\r\n\r\n",
        head,
        tail,
    ]


_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    """A chunk of a chunked HTTP body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


def named_event(kind: str, **fields: Any) -> bytes:
    """One event of a Responses stream."""
    document = {**fields, "sequence_number": 4, "type": kind}
    return b"event: " + kind.encode() + b"\n" + _event(document)
