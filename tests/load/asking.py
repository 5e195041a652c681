"""Single requests, one after the other on a connection that is kept, with the times of each."""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from tests.load.processes import RunVoid

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S: Final = 60.0
SHOWN_BYTES: Final = 400
_READ_BYTES: Final = 1 << 20
_HEAD_END: Final = b"\r\n\r\n"
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
"""No event has a line end of HTTP in it, so nothing else ends like this."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. Times are of the monotonic clock: before the request was written, and when
    the last byte of the answer was there."""

    status: int
    body: bytes
    asked_ns: int
    read_ns: int

    @property
    def us(self) -> float:
        """Microseconds from one to the other."""
        return (self.read_ns - self.asked_ns) / 1e3

    def json(self) -> Any:
        """The body as JSON."""
        return orjson.loads(self.body)


class Asking:
    """A connection to a gateway, with a key of its tenant."""

    def __init__(self, connection: socket.socket, key: str) -> None:
        self._connection = connection
        self._key = key
        self._piece = memoryview(bytearray(_READ_BYTES))

    def get(self, path: str) -> Answer:
        """Raises `RunVoid` unless it is answered 200."""
        return self.ask(self.request("GET", path))

    def post(self, path: str, body: object) -> Answer:
        """Raises `RunVoid` unless it is answered 200."""
        return self.ask(self.request("POST", path, orjson.dumps(body)))

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The bytes of a request, for `ask`."""
        lines = [
            f"{method} {path} HTTP/1.1",
            "host: 127.0.0.1",
            f"authorization: Bearer {self._key}",
        ]
        if method == "POST":
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body

    def ask(self, request: bytes) -> Answer:
        """Send it and read all of the answer. Raises `RunVoid` unless that is a 200."""
        asked_ns = time.monotonic_ns()
        self._connection.sendall(request)
        data = bytearray()
        while not is_whole(data):
            got = self._connection.recv_into(self._piece)
            if not got:
                raise RunVoid("the gateway closed the connection in the middle of an answer")
            data += self._piece[:got]
        answer = parsed(bytes(data), asked_ns, time.monotonic_ns())
        if answer.status != 200:
            raise RunVoid(f"answered {answer.status}: {answer.body[:SHOWN_BYTES]!r}")
        return answer


@contextmanager
def asking(port: int, key: str) -> Iterator[Asking]:
    """A new connection to a gateway on the loopback interface."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield Asking(connection, key)


def is_whole(data: bytearray) -> bool:
    """Whether that is all of an answer, which has a length or comes in chunks."""
    end = data.find(_HEAD_END)
    if end < 0:
        return False
    length = _length(bytes(data[:end]))
    if length is None:
        return data.endswith(_LAST_CHUNK)
    return len(data) == end + len(_HEAD_END) + length


def parsed(data: bytes, asked_ns: int, read_ns: int) -> Answer:
    """A whole answer, its chunks put together."""
    head, _, body = data.partition(_HEAD_END)
    if _length(head) is None:
        body = b"".join(_chunks(body))
    return Answer(int(head[9:12]), body, asked_ns, read_ns)


def _length(head: bytes) -> int | None:
    _, found, rest = head.lower().partition(b"\r\ncontent-length:")
    return int(rest.split(b"\r\n", 1)[0]) if found else None


def _chunks(body: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        line_end = body.index(b"\r\n", at)
        size = int(body[at:line_end], 16)
        yield body[line_end + 2 : line_end + 2 + size]
        at = line_end + 2 + size + 2
