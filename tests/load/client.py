"""The load: many streams on connections of their own, read with as little work as possible.

`python -m tests.load.client` reads one `Load` as JSON from standard input and writes one `Outcome`
to standard output. While a stream runs, its bytes are only looked at for the first word and the
end; what they say is checked when all streams are over. A wrong answer ends it with code 1.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, cast

import orjson
import uvloop
from typing_extensions import override

from gateway.harmony.vocabulary import Vocabulary
from tests.load import script
from tests.load.dialects import PROMPT, Completions, Responses, WrongAnswer, unchunked

if TYPE_CHECKING:
    from tests.load.dialects import Dialect

END: Final = b"\r\n0\r\n\r\n"
DialectName = Literal["completions", "responses", "responses-stored"]


@dataclass(frozen=True, slots=True)
class Load:
    """Each of `streams` connections sends `requests` requests for `length` ids, one by one.

    The first request of the last connection is sent `ramp_s` seconds after the first one's.
    """

    port: int
    key: str
    dialect: DialectName
    model: str
    length: int
    streams: int
    requests: int
    ramp_s: float
    timeout_s: float


@dataclass(slots=True)
class Outcome:
    """`first_word_s` and `rest_s` (first word to end) are of every stream, `seconds` of all.

    `events` carried the ids; `cpu_s` is this process's own while the load ran.
    """

    seconds: float = 0.0
    cpu_s: float = 0.0
    events: int = 0
    first_word_s: list[float] = field(default_factory=list)
    rest_s: list[float] = field(default_factory=list)


class Reader(asyncio.Protocol):
    """One connection. `exchange` sends a request and returns the whole answer with its times."""

    def __init__(self, first_word: bytes) -> None:
        self._first_word = first_word
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self._first_at = 0.0
        self._done: asyncio.Future[float] | None = None

    async def exchange(self, request: bytes) -> tuple[bytes, float, float]:
        """Bytes of the answer, seconds to the first word, seconds from there to the end."""
        if self._transport is None:
            raise WrongAnswer("the server closed the connection")
        self._parts, self._first_at = [], 0.0
        self._done = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        self._transport.write(request)
        ended = await self._done
        return b"".join(self._parts), self._first_at - began, ended - self._first_at

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._done is not None and not self._done.done():
            self._done.set_exception(WrongAnswer(f"cut off: {b''.join(self._parts)[-500:]!r}"))

    @override
    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._parts.append(data)
        if not self._first_at and self._first_word in self._so_far():
            self._first_at = now
        if self._is_end(data) and self._done is not None and not self._done.done():
            self._done.set_result(now)

    def _so_far(self) -> bytes:
        """Everything up to now; asked for only until the first word is there."""
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0]

    def _is_end(self, data: bytes) -> bool:
        if len(data) < len(END):
            data = b"".join(self._parts[-len(END) :])
        if data.endswith(END):
            return True
        return not self._first_at and not self._so_far().startswith(b"HTTP/1.1 200 ")


class Generator:
    """Runs one load."""

    def __init__(self, load: Load) -> None:
        vocabulary = Vocabulary.load()
        self._load = load
        self._dialect = _dialect(load.dialect, vocabulary)
        self._expected = script.turn(vocabulary, load.length)
        self._request = self._encode()
        self._outcome = Outcome()
        self._answers: list[bytes] = []

    async def __call__(self) -> Outcome:
        """Raises `WrongAnswer` and `TimeoutError`."""
        load, loop = self._load, asyncio.get_running_loop()
        connect = partial(Reader, self._dialect.first_word)
        readers = [
            (await loop.create_connection(connect, "127.0.0.1", load.port))[1]
            for _ in range(load.streams)
        ]
        began, cpu = time.perf_counter(), time.process_time()
        async with asyncio.timeout(load.timeout_s), asyncio.TaskGroup() as group:
            for index, reader in enumerate(readers):
                group.create_task(self._drive(reader, load.ramp_s * index / load.streams))
        self._outcome.seconds = time.perf_counter() - began
        self._outcome.cpu_s = time.process_time() - cpu
        self._check()
        return self._outcome

    async def _drive(self, reader: Reader, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        for _ in range(self._load.requests):
            answer, first_word_s, rest_s = await reader.exchange(self._request)
            self._answers.append(answer)
            self._outcome.first_word_s.append(first_word_s)
            self._outcome.rest_s.append(rest_s)
        reader.close()

    def _check(self) -> None:
        bodies = [unchunked(answer) for answer in self._answers]
        self._outcome.events = sum(self._dialect.check(body, self._expected) for body in bodies)
        self._dialect.check_in_full(bodies[-1], self._expected)

    def _encode(self) -> bytes:
        load = self._load
        body = self._dialect.body(load.model, load.length)
        head = (
            f"POST {self._dialect.path} HTTP/1.1\r\nhost: 127.0.0.1:{load.port}\r\n"
            f"authorization: Bearer {load.key}\r\ncontent-type: application/json\r\n"
            f"accept: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def _dialect(name: DialectName, vocabulary: Vocabulary) -> Dialect:
    if name == "completions":
        return Completions(vocabulary.encode(PROMPT))
    return Responses(store=name == "responses-stored")


def main() -> int:
    load = Load(**orjson.loads(sys.stdin.buffer.read()))
    try:
        outcome = uvloop.run(Generator(load)())
    except (ExceptionGroup, WrongAnswer, TimeoutError, OSError, AssertionError) as error:
        print(f"{load.dialect} {load.model}: {_cause(error)!r}", file=sys.stderr)
        return 1
    sys.stdout.buffer.write(orjson.dumps(outcome))
    return 0


def _cause(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    sys.exit(main())
