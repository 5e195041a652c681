"""A client that sees bytes: what a server sent, and how the connection ended."""

from __future__ import annotations

import json
import re
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.fakes.harmony_oracle import vocabulary

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

TIMEOUT_S = 30.0
_CHUNK = re.compile(rb"([0-9a-f]+)\r\n")


@dataclass(frozen=True)
class RawResponse:
    """`body` has its chunks joined; `terminated` says whether it had a proper end."""

    status: int
    headers: dict[str, str]
    body: bytes
    terminated: bool

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of the events: JSON, or the text `[DONE]`."""
        frames = self.body.decode().split("\n\n")
        assert frames.pop() == ""
        texts = [frame.removeprefix("data: ") for frame in frames]
        return [text if text == "[DONE]" else json.loads(text) for text in texts]

    @property
    def choices(self) -> list[dict[str, Any]]:
        """The choices of the events that have one."""
        documents = [event for event in self.events if isinstance(event, dict)]
        return [event["choices"][0] for event in documents if event.get("choices")]

    @property
    def ids(self) -> list[int]:
        """All ids of a stream."""
        return [one for choice in self.choices for one in choice["token_ids"]]

    @property
    def finish_reasons(self) -> list[str]:
        """Those that are not null."""
        found = [choice["finish_reason"] for choice in self.choices]
        return [reason for reason in found if reason]


def plain_prompt(text: str) -> list[int]:
    """A prompt of one message of the user."""
    return [200006, 1428, 200008, *vocabulary().encode(text), 200007, 200006, 173781]


def completion_body(text: str, **fields: Any) -> dict[str, Any]:
    """The body of a streamed request as a gateway sends it."""
    return {
        "model": "gpt-oss-20b",
        "prompt": plain_prompt(text),
        "max_tokens": 1000,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        **fields,
    }


def without_stream(text: str, **fields: Any) -> dict[str, Any]:
    """The same, not streamed."""
    body = completion_body(text, stream=False, **fields)
    del body["stream_options"]
    return body


def request_bytes(
    method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> bytes:
    """An HTTP/1.1 request on a connection that is closed after it."""
    lines = [f"{method} {path} HTTP/1.1", "host: simulator", "connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    lines += [f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def reset(writer: asyncio.StreamWriter) -> None:
    """Leave at once: a server reads that before what comes later over other connections."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


def completion_bytes(body: dict[str, Any], **headers: str) -> bytes:
    """A request for a completion."""
    return request_bytes(
        "POST",
        "/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", **headers},
    )


def ask(port: int, request: bytes) -> RawResponse:
    """Send it and read until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.sendall(request)
        return read_response(connection)


def complete(port: int, body: dict[str, Any], **headers: str) -> RawResponse:
    """Ask for a completion."""
    return ask(port, completion_bytes(body, **headers))


def read_response(connection: socket.socket) -> RawResponse:
    """Everything up to the end of the connection."""
    data = b"".join(iter(lambda: _receive(connection), b""))
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value for name, value in (line.split(": ", 1) for line in lines if line)
    }
    status = int(first.split(" ")[1]) if first else 0
    if headers.get("transfer-encoding") != "chunked":
        return RawResponse(
            status, headers, rest, len(rest) == int(headers.get("content-length", -1))
        )
    parts = list(_chunks(rest))
    return RawResponse(status, headers, b"".join(parts), bool(parts) and parts[-1] == b"")


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16)
    except ConnectionResetError:
        return b""


def _chunks(data: bytes) -> Iterator[bytes]:
    """The chunks, the empty last one included if it came."""
    position = 0
    while match := _CHUNK.match(data, position):
        size = int(match[1], 16)
        position = match.end() + size + 2
        yield data[match.end() : match.end() + size]
