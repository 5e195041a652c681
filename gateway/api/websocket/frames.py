"""What clients are sent over a WebSocket: one JSON object a text frame, never `[DONE]`.

An event goes out as it is everywhere else, and says on which lane it came. A request that fails
before its first event is answered with one `error` frame and nothing else: clients take whatever
follows for the answer to their next request (responses-api §6.4).
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.api.errors import described, retry_headers


def event_frame(data: bytes, stream_id: str | None) -> str:
    """One event, whose JSON is `data`."""
    if stream_id is None:
        return data.decode()
    return (b'%s,"stream_id":"%s"}' % (data[:-1], stream_id.encode())).decode()


def error_frame(error: BaseException, *, stream_id: str | None, request_id: str) -> str:
    """The answer to a request that failed.

    `error.code` is a string, always: Open Responses demands it. The headers that the answer would
    have had over HTTP stand where OpenAI's SDK (`error.headers`) and where Codex looks for them.
    """
    answer, detail = described(error)
    headers = {"x-request-id": request_id, **retry_headers(answer)}
    return _frame(
        {
            "type": "error",
            "status": answer.status,
            "error": {
                "type": answer.type,
                "code": detail.code or answer.type,
                "message": detail.message,
                "param": detail.param,
                "headers": headers,
            },
            "headers": headers,
        },
        stream_id,
    )


def unsteered_frame(steer: dict[str, Any]) -> str:
    """The answer to any `response.steer`: what it wanted, given back."""
    return _frame(
        {
            "type": "response.steer.failed",
            "sequence_number": 0,
            "error": {
                "type": "invalid_request_error",
                "code": "steering_not_supported",
                "message": "A response cannot be steered while it is generated. Send the input in "
                "a response.create that continues it.",
            },
            "steer": steer,
        },
        None,
    )


def _frame(fields: dict[str, Any], stream_id: str | None) -> str:
    if stream_id is not None:
        fields["stream_id"] = stream_id
    return orjson.dumps(fields).decode()
