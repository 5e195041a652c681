"""Streams of chunks, put together as clients do it."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]


def chunks_of(stream: str) -> list[Json]:
    """The objects of a stream that ended as it should; comments are left out."""
    frames = [frame for frame in stream.split("\n\n") if frame and not frame.startswith(":")]
    assert frames.pop() == "data: [DONE]"
    assert all(frame.startswith("data: {") and "\n" not in frame for frame in frames)
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def assembled_chat(chunks: list[Json]) -> Json:
    """The chat completion that the chunks say, without what a body alone has."""
    first = chunks[0]
    names = {name: value for name, value in first.items() if name not in _VARYING}
    assert all(
        name in chunk and chunk[name] == value for chunk in chunks for name, value in names.items()
    )
    message: Json = {}
    logprobs: list[Json] = []
    finish = None
    for chunk in chunks:
        for choice in chunk["choices"]:
            assert choice["index"] == 0
            assert finish is None
            _add(message, choice["delta"])
            logprobs += (choice["logprobs"] or {}).get("content") or []
            finish = choice["finish_reason"]
    for position, call in enumerate(message.get("tool_calls", ())):
        assert call.pop("index") == position
    return {
        **names,
        "object": "chat.completion",
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish,
        "usage": chunks[-1].get("usage"),
    }


def as_assembled(body: Json) -> Json:
    """A body, in the form of `assembled_chat`."""
    (choice,) = body["choices"]
    message = {name: value for name, value in choice["message"].items() if name != "annotations"}
    names = {name: value for name, value in body.items() if name not in {"choices", "metadata"}}
    logprobs = (choice["logprobs"] or {}).get("content") or []
    return {
        **names,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": choice["finish_reason"],
    }


_VARYING = {"object", "choices", "usage", "obfuscation"}


def _add(to: Json, delta: Json) -> None:
    """Texts are appended, calls found by their index; a null changes nothing but is kept."""
    for name, value in delta.items():
        if name == "tool_calls":
            calls = to.setdefault(name, [])
            for call in value:
                if call["index"] == len(calls):
                    calls.append({})
                _add(calls[call["index"]], call)
        elif isinstance(value, dict):
            _add(to.setdefault(name, {}), value)
        elif isinstance(value, str) and isinstance(to.get(name), str):
            to[name] += value
        elif value is not None or name not in to:
            to[name] = value
