"""What a backend says on `POST /v1/completions`, spelled by hand: no timing, any content."""

from __future__ import annotations

import orjson

from tests.fakes.raw_server import STREAM_END, STREAM_HEAD, chunk

DONE = chunk(b"data: [DONE]\n\n")
COMMENT = chunk(b": keep-alive\n\n")


def said(ids: list[int], finish: str | None = None, **more: object) -> bytes:
    """An event with ids."""
    choice = {"index": 0, "text": "?", "finish_reason": finish, "token_ids": ids, **more}
    return chunk(b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n")


def told(ids: list[int]) -> dict[str, object]:
    """The `logprobs` of an event whose ids were certain."""
    names = [f"token_id:{one}" for one in ids]
    return {
        "tokens": names,
        "token_logprobs": [0.0] * len(ids),
        "top_logprobs": [{name: 0.0} for name in names],
    }


def usage(cached: int) -> bytes:
    """The event with the token counts."""
    counts = {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": cached}}
    return chunk(b"data: " + orjson.dumps({"choices": [], "usage": counts}) + b"\n\n")


def failed(code: int, message: str = "because") -> bytes:
    """An error inside a stream."""
    error = {"message": message, "type": "x", "param": None, "code": code}
    return chunk(b"data: " + orjson.dumps({"error": error}) + b"\n\n") + DONE + STREAM_END


def turn(ids: list[int], cached: int = 0) -> tuple[bytes, ...]:
    """A whole turn that ends well."""
    return (STREAM_HEAD, said(ids, "stop"), usage(cached), DONE, STREAM_END)
