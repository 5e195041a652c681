"""Process that speaks the protocol of `worker.py`. The caller isolates it (`linux.py`)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

import orjson
from pydantic import ValidationError
from typing_extensions import override

from gateway.cache import LruCache
from gateway.concurrency import OnceEvent
from gateway.tools.python.container_engine import (
    INTERRUPT_GRACE_S,
    Container,
    EngineBroken,
    FileRefused,
    RunResult,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    FileOrder = Callable[..., Awaitable[Mapping[str, Any]]]

FRAME_BYTES_MAX: Final = 8 * 1024 * 1024
FRAMES_MAX: Final = 4
"""After each frame to a worker: the answer, what an interrupt printed, and one that nobody waits
for. To read one may take most of a second, and code can write them."""
PIECE_BYTES: Final = 3 * 1024 * 1024
FILE_TIMEOUT_S: Final = 20.0
"""For one piece: the container does nothing else meanwhile."""
_WORDS_BYTES_MAX: Final = 1000
UNBEGUN_GRACE_S: Final = 2.0
"""For one that is still being started."""
RESULTS_MAX: Final = 8
"""Kept for repeated requests."""


async def put_file(order: FileOrder, path: str, content: bytes, *, piece_bytes: int) -> None:
    """Write a file, which may be empty, in pieces."""
    for start in range(0, max(len(content), 1), piece_bytes):
        piece = base64.b64encode(content[start : start + piece_bytes]).decode()
        await order("put", path, at=start, content=piece)


async def get_file(order: FileOrder, path: str, *, piece_bytes: int, bytes_max: int) -> bytes:
    """Read a file in pieces. Raises `FileRefused` and `EngineBroken`."""
    content = bytearray()
    while True:
        answer = await order("get", path, at=len(content), size=piece_bytes)
        try:
            piece = base64.b64decode(answer.get("content", ""), validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise EngineBroken("the interpreter gave a piece of a file that is none") from error
        content += piece
        if len(content) > bytes_max:
            raise FileRefused(f"{path} is longer than {bytes_max} bytes")
        if len(piece) < piece_bytes:
            return bytes(content)


@dataclass(frozen=True, slots=True)
class Pipes:
    """Our ends of a worker's pipes, and the output of its start. uvloop would make sockets, which
    code must not have.
    """

    reader: asyncio.StreamReader
    reading: asyncio.ReadTransport
    writer: asyncio.StreamWriter
    words: IO[bytes]

    @classmethod
    async def opened(cls) -> tuple[Pipes, tuple[int, int]]:
        """Open the pipes; the caller closes the worker's. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        descriptors: list[int] = []
        try:
            descriptors += os.pipe()
            descriptors += os.pipe()
            descriptors.append(os.memfd_create("words"))
        except OSError:  # at their bound, a few more that stay open would keep it there
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        their_input, our_output, our_input, their_output, words = descriptors
        ours = os.fdopen(our_input, "rb"), os.fdopen(our_output, "wb"), os.fdopen(words, "w+b")
        reader = asyncio.StreamReader()
        reading: asyncio.ReadTransport | None = None
        try:
            reading, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), ours[0]
            )
            writing, protocol = await loop.connect_write_pipe(
                asyncio.streams.FlowControlMixin, ours[1]
            )
        except BaseException:
            # A file closed under its transport would stay in the selector, by a number that another
            # file gets.
            for pipe in (reading or ours[0], *ours[1:]):
                with suppress(OSError):  # uvloop has closed its descriptor
                    pipe.close()
            os.close(their_input)
            os.close(their_output)
            raise
        writer = asyncio.StreamWriter(writing, protocol, None, loop)
        return cls(reader, reading, writer, ours[2]), (their_input, their_output)

    def last_words(self) -> str:
        self.words.seek(0)
        return self.words.read(_WORDS_BYTES_MAX).decode("utf-8", "replace").strip()

    def close(self) -> None:
        self.writer.close()
        self.reading.close()
        self.words.close()


class WorkerContainer(Container):
    """Container whose answers are validated: code that it runs may forge them."""

    handle: bytes | None = None

    def __init__(self, process: asyncio.subprocess.Process, pipes: Pipes) -> None:
        self._process = process
        self._pipes = pipes
        self.on_closed: list[Callable[[], None]] = []
        self._runs = 0
        self._printed = ""
        self._orders = 0
        self._frames_left = FRAMES_MAX
        self._has_begun = False
        self._turn = asyncio.Lock()
        self._results: LruCache[str, RunResult] = LruCache(size_max=RESULTS_MAX)
        self._running: dict[str, OnceEvent] = {}
        self.packages: tuple[str, ...] = ()
        self.version = ""

    @classmethod
    async def start(cls, words: Sequence[str], *, pass_fds: Sequence[int]) -> WorkerContainer:
        """Start the container, not ready yet. Raises `OSError`."""
        pipes, stdio = await Pipes.opened()
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=stdio[0],
                stdout=stdio[1],
                stderr=pipes.words,
                pass_fds=pass_fds,
                env={"PATH": "/usr/bin:/bin"},
                cwd="/",
            )
        except BaseException:
            pipes.close()
            raise
        finally:
            for descriptor in stdio:
                os.close(descriptor)
        return cls(process, pipes)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    @override
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def begin(self, *, timeout_s: float) -> None:
        """Return once it is ready. Raises `EngineBroken` after ending it."""
        try:
            async with asyncio.timeout(timeout_s):
                ready = await self._read()
        except (TimeoutError, EngineBroken) as error:
            last_words = self._pipes.last_words()
            await self.close()
            raise EngineBroken(f"the sandbox did not start: {last_words or error}") from error
        except asyncio.CancelledError:
            await self.close()
            raise
        self._has_begun = True
        packages = ready.get("packages")
        self.packages = tuple(map(str, packages)) if isinstance(packages, list) else ()
        self.version = str(ready.get("ready", ""))

    @override
    async def run(self, code: str, *, timeout_s: float, key: str = "") -> RunResult:
        # Results of the last runs with a key are kept for `result_of`.
        async with self._turn:
            self._running[key] = ended = OnceEvent()
            try:
                ran = await self._run(code, timeout_s)
                if key:
                    self._results.put(key, ran, size=1)
                return ran
            finally:
                del self._running[key]
                ended.set()

    async def _run(self, code: str, timeout_s: float) -> RunResult:
        self._runs += 1
        number = self._runs
        self._printed = ""
        await self._write({"run": number, "code": code})
        loop = asyncio.get_running_loop()
        answer = loop.create_task(self._answer(number))
        try:
            done, _ = await asyncio.wait({answer}, timeout=timeout_s)
            if done and answer.result().status == "interrupted":
                # This process sent no interrupt, so the code raised it itself.
                return answer.result().model_copy(update={"status": "error"})
            if not done:
                await self._write({"interrupt": number})
                done, _ = await asyncio.wait({answer}, timeout=INTERRUPT_GRACE_S)
            if done:
                return answer.result()
            await self.close()
            return RunResult(ran=number, status="killed", output=self._printed)
        except asyncio.CancelledError:
            # The code goes on for a moment at most: names are kept where it takes the interrupt.
            await self._abandon(number, answer)
            raise
        finally:
            answer.cancel()

    async def _abandon(self, number: int, answer: asyncio.Task[RunResult]) -> None:
        # Interrupt a run whose result nobody needs. End a container that does not react.
        try:
            await self._write({"interrupt": number})
            async with asyncio.timeout(INTERRUPT_GRACE_S):
                await asyncio.shield(answer)
        except (TimeoutError, EngineBroken, asyncio.CancelledError):
            await self.close()

    @override
    async def result_of(self, key: str, *, timeout_s: float) -> RunResult | None:
        if (ended := self._running.get(key)) is not None:
            await ended.within(timeout_s)
        return self._results.get(key)

    @override
    async def put(self, path: str, content: bytes) -> None:
        async with self._turn:
            await put_file(self._order, path, content, piece_bytes=PIECE_BYTES)

    @override
    async def get(self, path: str, *, bytes_max: int) -> bytes:
        async with self._turn:
            return await get_file(self._order, path, piece_bytes=PIECE_BYTES, bytes_max=bytes_max)

    @override
    async def remove(self, path: str) -> None:
        async with self._turn:
            await self._order("remove", path)

    @override
    async def close(self) -> None:
        # A caller that is cancelled meanwhile leaves nothing open either.
        try:
            if not self._has_begun:
                await self._end_by_itself()
        finally:
            await self._kill()

    async def _kill(self) -> None:
        try:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
        finally:
            self._pipes.close()
            while self.on_closed:
                self.on_closed.pop()()

    async def _end_by_itself(self) -> None:
        # bubblewrap that is killed while it makes the sandbox leaves a process that waits for ever,
        # so the worker gets the time to see the closed pipe.
        self._pipes.writer.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(UNBEGUN_GRACE_S):
                await self._process.wait()

    async def _order(self, kind: str, path: str, /, **fields: object) -> Mapping[str, Any]:
        # A `FileOrder`.
        self._orders += 1
        number = self._orders
        await self._write({kind: number, "path": path, **fields})
        try:
            async with asyncio.timeout(FILE_TIMEOUT_S):
                while (answer := await self._read()).get(kind) != number:
                    pass
        except (TimeoutError, asyncio.CancelledError) as error:
            # Its answer would come when another is waited for.
            await self.close()
            if isinstance(error, TimeoutError):
                raise EngineBroken("the sandbox does not answer") from error
            raise
        if "refused" in answer:
            raise FileRefused(f"{path}: {str(answer['refused'])[:200]}")
        return answer

    async def _answer(self, number: int) -> RunResult:
        while True:
            frame = await self._read()
            if "printed" in frame:
                self._printed = str(frame.get("output", ""))
                continue
            try:
                ran = RunResult.model_validate(frame)
            except ValidationError as error:
                raise EngineBroken("the sandbox said something else than what it should") from error
            if ran.ran == number:
                return ran

    async def _write(self, frame: Mapping[str, Any]) -> None:
        data = orjson.dumps(frame)
        self._frames_left = FRAMES_MAX
        try:
            async with asyncio.timeout(FILE_TIMEOUT_S):
                self._pipes.writer.write(struct.pack(">I", len(data)) + data)
                await self._pipes.writer.drain()
        except TimeoutError as error:
            # Code has stopped what reads here.
            await self.close()
            raise EngineBroken("the sandbox does not listen") from error
        except asyncio.CancelledError:
            # The frame is on its way, and nobody would wait for its answer.
            await self.close()
            raise
        except (ConnectionError, RuntimeError) as error:
            raise EngineBroken("the container is gone") from error

    async def _read(self) -> Mapping[str, Any]:
        reader = self._pipes.reader
        self._frames_left -= 1
        if self._frames_left < 0:
            raise EngineBroken("the sandbox sends more than it should")
        try:
            (length,) = struct.unpack(">I", await reader.readexactly(4))
            if length > FRAME_BYTES_MAX:
                raise EngineBroken("a frame of the sandbox is too long")
            frame = orjson.loads(await reader.readexactly(length))
        except (asyncio.IncompleteReadError, orjson.JSONDecodeError, ConnectionError) as error:
            raise EngineBroken("the container is gone") from error
        if not isinstance(frame, dict):
            raise EngineBroken("a frame of the sandbox is no object")
        return frame
