"""Bytes of one HTTP/1.1 response → status, headers, body. No I/O here."""

from __future__ import annotations

import httptools
import httpx2


class ResponseReader:
    """Reads exactly one response; interim (1xx) responses before it are skipped.

    `status` is 0 until the head is complete. Body bytes pile up until `take` fetches them. The
    `on_...` methods are called by httptools; `on_body` once for each piece of a chunked body, of
    which a read may bring hundreds, so it is nothing but the `append` of a list.
    """

    __slots__ = (
        "_bare_bytes", "_has_framing", "_head_bytes", "_head_bytes_max", "_interim", "_parser",
        "_piece_count", "_pieces", "complete", "headers", "on_body", "reusable", "status",
        "touched",
    )  # fmt: skip

    def __init__(self, head_bytes_max: int) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.touched = False
        self.complete = False
        self.reusable = False
        self._pieces: list[bytes] = []
        self._piece_count = 0
        self.on_body = self._pieces.append
        self._bare_bytes = 0  # since the last of the body
        self._head_bytes = 0
        self._head_bytes_max = head_bytes_max
        self._has_framing = False
        """The headers say where the body ends."""
        self._interim = False
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Parse bytes of the answer. Raises RemoteProtocolError if they are not HTTP/1.1."""
        if self._parser is None:
            self.reusable = False
            return
        self.touched = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            raise httpx2.RemoteProtocolError("backend switched protocols unasked") from error
        except httptools.HttpParserError as error:
            self.reusable = False
            if not self.complete:
                raise httpx2.RemoteProtocolError(f"backend sent no valid HTTP: {error}") from error
        # Bound what is no body: a head, interim ones, trailers, what stands before a chunk.
        if not self.status:
            self._head_bytes += len(data)
        elif self._pieces:
            self._bare_bytes = 0
        else:
            self._bare_bytes += len(data)
        bound = self._head_bytes_max
        if self._head_bytes > bound or self._bare_bytes > bound:
            raise httpx2.RemoteProtocolError(f"backend sent more than {bound} bytes of headers")
        if self.complete:
            del self._pieces[self._piece_count :]  # the body of an answer nobody asked for
            self.close()

    @property
    def buffered(self) -> int:
        return sum(map(len, self._pieces))

    def feed_eof(self) -> None:
        """End the answer.

        Raises RemoteProtocolError unless the body ends with the connection.
        """
        if self.complete:
            return
        if not self.touched:
            raise httpx2.RemoteProtocolError("backend disconnected without an answer")
        if not self.status or self._has_framing:
            raise httpx2.RemoteProtocolError("backend disconnected in the middle of its answer")
        self.complete = True
        self.close()

    def take(self) -> bytes:
        """Return the body bytes that have arrived since the last call; empty if there are none."""
        data = b"".join(self._pieces)  # of one piece it makes no copy
        self._pieces.clear()
        return data

    def close(self) -> None:
        # Breaks the cycle between parser and reader, so that no garbage collection is needed.
        self._parser = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            return  # trailers, or the head of an answer nobody asked for
        self._head_bytes += len(name) + len(value) + 4
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._parser is None or self.status:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._interim = True
            self.headers.clear()
            return
        self.status = status
        self._has_framing = any(_frames_body(name, value) for name, value in self.headers)

    def on_message_begin(self) -> None:
        if self.complete:
            self.reusable = False  # bytes after the end: whatever they are, they are not ours

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        elif not self.complete and self._parser is not None:
            self.complete = True
            self.reusable = self._parser.should_keep_alive()
            self._piece_count = len(self._pieces)


def _frames_body(name: bytes, value: bytes) -> bool:
    lowered = name.lower()
    if lowered == b"transfer-encoding":
        return b"chunked" in value.lower()
    return lowered == b"content-length"
