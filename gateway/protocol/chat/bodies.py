"""A finished Response object → a chat completion, or a completion.

Sources: `ChatCompletion` and `Completion` of the OpenAI SDK (3.52). Servers of open models call the
chain of thought `reasoning_content` or `reasoning`; clients read one or the other.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway import __version__, ids
from gateway.protocol.chat.pieces import CALL_KINDS, CALL_TEXTS, MEMBERS, Joiner, calls_of, texts_of

if TYPE_CHECKING:
    from gateway.protocol.chat.pieces import Field

    Json = dict[str, Any]

CHAT_PREFIX: Final = "chatcmpl-"
COMPLETION_PREFIX: Final = "cmpl-"
FINGERPRINT_CHARS: Final = 10


@dataclass(frozen=True, slots=True)
class ChatForm:
    """What a chat's client asked to see: `logprobs`, or calls as the deprecated `function_call`."""

    logprobs: bool = False
    is_deprecated: bool = False


def identity(response: Json, kind: str) -> Json:
    """The first members of every body and chunk; `kind` is the `object`.

    The id is that of the response, with another prefix. The fingerprint is that of the model and of
    the release that serves it: what changes at a backend, nobody tells the gateway.
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


def chat_body(response: Json, form: ChatForm) -> Json:
    """A `chat.completion` of one choice."""
    calls = calls_of(response)
    choice = {
        "index": 0,
        "message": _message(response, calls, form),
        "logprobs": _logprobs(response) if form.logprobs else None,
        "finish_reason": finish_reason(response, form),
    }
    return {
        **identity(response, "chat.completion"),
        "service_tier": response["service_tier"],
        "choices": [choice],
        "usage": usage_of(response),
        **({"metadata": response["metadata"]} if response["metadata"] else {}),
    }


def completion_body(response: Json) -> Json:
    """A `text_completion` of one choice: the answer without the reasoning."""
    return {
        **identity(response, "text_completion"),
        "choices": [text_choice(_joined(response).get("content", ""), stop_reason(response))],
        "usage": usage_of(response),
    }


def text_choice(text: str, finish: str | None) -> Json:
    """The only choice of a completion, or of a chunk of one."""
    return {"text": text, "index": 0, "logprobs": None, "finish_reason": finish}


def stop_reason(response: Json) -> str:
    """Why an answer ended where it does."""
    return "length" if response["status"] == "incomplete" else "stop"


def finish_reason(response: Json, form: ChatForm) -> str:
    """The same, where it may have ended with calls."""
    reason = stop_reason(response)
    if reason == "stop" and calls_of(response):
        return "function_call" if form.is_deprecated else "tool_calls"
    return reason


def call_body(item: Json) -> Json:
    """One of `tool_calls`, from the item of a call."""
    kind, text = CALL_KINDS[item["type"]], CALL_TEXTS[item["type"]]
    return {
        "id": item["call_id"],
        "type": kind,
        kind: {"name": item["name"], text: item[text]},
    }


def usage_of(response: Json) -> Json:
    """The same exact counts under the names of these APIs; what there is no notion of is 0."""
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


def _message(response: Json, calls: list[Json], form: ChatForm) -> Json:
    """Content is null only where there is something else: clients strip the text of an answer."""
    texts = _joined(response)
    refusal = texts.get("refusal")
    is_other = bool(calls) or refusal is not None
    message: Json = {
        "role": "assistant",
        "content": texts.get("content", None if is_other else ""),
        "refusal": refusal,
        "annotations": [],
    }
    if "reasoning_content" in texts:
        message |= dict.fromkeys(MEMBERS["reasoning_content"], texts["reasoning_content"])
    if calls and form.is_deprecated:
        message["function_call"] = call_body(calls[0])["function"]
    elif calls:
        message["tool_calls"] = [call_body(call) for call in calls]
    return message


def _joined(response: Json) -> dict[Field, str]:
    """The texts of each sort; a sort that the response has not is absent."""
    joiner = Joiner()
    texts: dict[Field, str] = {}
    for piece in texts_of(response):
        more = joiner.add(piece.field, piece.index, piece.text)
        texts[piece.field] = texts.get(piece.field, "") + more
    return texts


def _logprobs(response: Json) -> Json:
    pieces = [piece for piece in texts_of(response) if piece.field == "content"]
    told = [entry for piece in pieces for entry in piece.logprobs]
    return {"content": told or None, "refusal": None}
