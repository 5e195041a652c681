"""What is read off a socket is exactly what was sent, however it was cut."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest

from tests.chaos.history import Connection
from tests.chaos.wire import Request, exchange, json_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

SILENCE_MAX_S: Final = 20.0
HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
STREAM: Final = b': hello\n\nevent: a\ndata: {"n":1}\n\nevent: b\ndata: {"n":2}\n\ndata: [DONE]\n\n'


def chunked(content: bytes, size: int) -> bytes:
    """The content in chunks of so many bytes, with the end of the body."""
    parts = [content[at : at + size] for at in range(0, len(content), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in [*parts, b""])


@asynccontextmanager
async def server(writes: Sequence[bytes]) -> AsyncIterator[str]:
    """Answers every request with these writes, and closes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for content in writes:
            writer.write(content)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        host, port = listening.sockets[0].getsockname()
        yield f"http://{host}:{port}"


async def ask(*writes: bytes) -> Connection:
    connection = Connection(0)
    async with server(writes) as url:
        await exchange(url, "key", Request("GET", "/"), connection, silence_max_s=SILENCE_MAX_S)
    return connection


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_frames_do_not_depend_on_how_they_were_cut(size: int) -> None:
    connection = await ask(HEAD, chunked(STREAM, size))
    assert [frame.data for frame in connection.frames] == [b'{"n":1}', b'{"n":2}']
    assert (connection.status, connection.done) == (200, True)


async def test_a_frame_that_was_not_finished_was_not_received() -> None:
    connection = await ask(HEAD, chunked(STREAM[:50], 8).removesuffix(b"0\r\n\r\n"))
    assert [frame.data for frame in connection.frames] == [b'{"n":1}']
    assert not connection.done


async def test_an_answer_that_is_no_stream_is_kept_whole() -> None:
    head = b"HTTP/1.1 503 Oh\r\nRetry-After: 1\r\nContent-Length: 11\r\n\r\n"
    connection = await ask(head, b'{"error":1}')
    assert (connection.status, connection.headers["retry-after"]) == (503, "1")
    assert json_body(connection) == {"error": 1}


async def test_no_server_is_no_answer() -> None:
    async with server([]) as url:
        pass
    connection = Connection(0)
    await exchange(url, "key", Request("GET", "/"), connection, silence_max_s=SILENCE_MAX_S)
    assert (connection.status, connection.frames) == (0, [])


async def test_a_reader_can_hang_up() -> None:
    connection = Connection(0)
    async with server([HEAD, chunked(STREAM, 1000)]) as url:
        await exchange(
            url,
            "key",
            Request("GET", "/"),
            connection,
            silence_max_s=SILENCE_MAX_S,
            stop=lambda one: one.status == 200,
        )
    assert connection.left
    assert not connection.done
