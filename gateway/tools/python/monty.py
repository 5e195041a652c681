"""Interpreter for a part of Python, for a demo: it knows neither files nor network, and needs no
rights. The extra: https://github.com/pydantic/monty.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from contextlib import AsyncExitStack, suppress
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from gateway.tools.python.container_engine import (
    DATA,
    Container,
    ContainerCapabilities,
    ContainerEngine,
    ContainerLimits,
    EngineBroken,
    EngineName,
    FileRefused,
    RunResult,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

OUTPUT_BYTES_MAX: Final = 1024 * 1024
FILES_MAX: Final = 1000
MEMORY_BYTES_MAX: Final = 256 * 1024**2
"""A twentieth of what CPython needs suffices."""
MISSING: Final = (
    "The interpreter knows only a part of Python: no generators, no inheritance, and few modules "
    "of the standard library (math, json, re, datetime and some others)."
)


class Printed:
    def __init__(self) -> None:
        self._parts: list[str] = []
        self._room = OUTPUT_BYTES_MAX
        self.dropped = 0

    def __call__(self, _stream: str, text: str) -> None:
        kept = text.encode("utf-8", "replace")[: self._room]
        self._room -= len(kept)
        self.dropped += len(text.encode("utf-8", "replace")) - len(kept)
        self._parts.append(kept.decode("utf-8", "replace"))

    @property
    def text(self) -> str:
        # Up to `OUTPUT_BYTES_MAX`.
        return "".join(self._parts)


class MontyContainer(Container):
    """Session with a folder of this machine as its `/mnt/data`."""

    handle: bytes | None = None

    def __init__(
        self, library: ModuleType, session: Any, folder: Path, opened: AsyncExitStack, data_max: int
    ) -> None:
        self._library = library
        self._session = session
        self._folder = folder
        self._opened = opened
        self._data_max = data_max
        self._turn = asyncio.Lock()
        self._is_closed = False
        self._results: dict[str, RunResult] = {}
        self._seen: dict[str, tuple[int, int]] = {}

    @property
    @override
    def is_alive(self) -> bool:
        return not self._is_closed

    @override
    async def run(self, code: str, *, timeout_s: float, key: str = "") -> RunResult:
        # Code cannot be interrupted: it is killed when its time is up.
        async with self._turn:
            self._check_open()
            printed = Printed()
            try:
                async with asyncio.timeout(timeout_s):
                    status, more = await self._feed(code, printed)
            except TimeoutError:
                await self.close()
                return RunResult(status="killed", output=printed.text, dropped=printed.dropped)
            except asyncio.CancelledError:
                await self.close()
                raise
            printed("stdout", more)
            before, self._seen = self._seen, self._files()
            ran = RunResult(
                status="error" if status else "ok",
                output=printed.text,
                dropped=printed.dropped,
                files=tuple(path for path, seen in self._seen.items() if before.get(path) != seen),
                gone=tuple(before.keys() - self._seen.keys()),
            )
            self._results = {key: ran}
            return ran

    async def _feed(self, code: str, printed: Printed) -> tuple[bool, str]:
        # Return True if the code failed, and the text to show behind its output.
        room = max(0, self._data_max - await asyncio.to_thread(self._used_bytes))
        try:
            with self._library.MountDir(
                host_path=self._folder, virtual_path=DATA, mode="read-write", write_bytes_limit=room
            ) as mount:
                value = await self._session.feed_run(
                    code, mount=mount, cwd=DATA, print_callback=printed
                )
        except (self._library.MontyCrashedError, self._library.MontyDisconnectError) as error:
            await self.close()
            raise EngineBroken(f"the interpreter ended: {error}") from error
        except self._library.MontyError as error:
            display = getattr(error, "display", error.__str__)
            return True, f"{display()}\n"
        return False, "" if value is None else f"{value!r}\n"

    @override
    async def result_of(self, key: str, *, timeout_s: float) -> RunResult | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._turn:
                return self._results.get(key)
        return None

    @override
    async def put(self, path: str, content: bytes) -> None:
        async with self._turn:
            self._check_open()
            place = self._place(path)
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
                self._seen[path] = _status(place)
            except OSError as error:
                raise FileRefused(f"{path}: {error.strerror}") from error

    @override
    async def get(self, path: str, *, bytes_max: int) -> bytes:
        async with self._turn:
            self._check_open()
            try:
                content = await asyncio.to_thread(_read, self._place(path), bytes_max + 1)
            except OSError as error:
                raise FileRefused(f"{path}: {error.strerror}") from error
        if len(content) > bytes_max:
            raise FileRefused(f"{path} is longer than {bytes_max} bytes")
        return content

    @override
    async def remove(self, path: str) -> None:
        async with self._turn:
            self._check_open()
            with suppress(OSError):
                self._place(path).unlink()
            self._seen.pop(path, None)

    @override
    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            try:
                with suppress(Exception):
                    await self._opened.aclose()
            finally:  # also if the caller is cancelled
                shutil.rmtree(self._folder, ignore_errors=True)

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineBroken("the container is gone")

    def _place(self, path: str) -> Path:
        return self._folder / path.removeprefix(f"{DATA}/")

    def _used_bytes(self) -> int:
        return sum(place.lstat().st_size for place in self._places())

    def _files(self) -> dict[str, tuple[int, int]]:
        # Size and modification time by path: of known files, and of the first others.
        files: dict[str, tuple[int, int]] = {}
        for place in chain(map(self._place, self._seen), islice(self._places(), FILES_MAX)):
            with suppress(OSError):
                files[f"{DATA}/{place.relative_to(self._folder)}"] = _status(place)
        return files

    def _places(self) -> Iterator[Path]:
        for folder, _, names in os.walk(self._folder):
            yield from (Path(folder, name) for name in names)


def _status(place: Path) -> tuple[int, int]:
    status = place.lstat()
    return status.st_size, status.st_mtime_ns


def _read(path: Path, bytes_max: int) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return file.read(bytes_max)


class MontyEngine(ContainerEngine):
    name: EngineName = "monty"

    def __init__(self, *, containers_max: int) -> None:
        # `containers_max` may live at a time.
        self._containers_max = containers_max
        self._pool: Any = None
        self._opened = AsyncExitStack()
        self._library: ModuleType | None = None

    @override
    async def describe(self) -> ContainerCapabilities:
        library = await self._begun()
        return ContainerCapabilities(
            f"Monty {library.__version__}, a part of Python", is_whole=False, missing=MISSING
        )

    @override
    async def open(self, limits: ContainerLimits) -> MontyContainer:
        library = await self._begun()
        memory_bytes = min(limits.memory_bytes, MEMORY_BYTES_MAX)
        opened = AsyncExitStack()
        try:
            folder = Path(tempfile.mkdtemp(prefix="gateway-python-"))
        except OSError as error:
            raise EngineBroken(f"there is no folder for temporary files: {error}") from error
        try:
            async with asyncio.timeout(limits.start_timeout_s):
                session = await opened.enter_async_context(
                    self._pool.checkout(
                        limits={
                            "max_memory": memory_bytes,
                            "max_feed_duration_secs": float(limits.cpu_s),
                        }
                    )
                )
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, TimeoutError | OSError | RuntimeError | library.MontyError):
                raise EngineBroken(f"the interpreter did not start: {error}") from error
            raise
        return MontyContainer(library, session, folder, opened, limits.data_bytes)

    @override
    async def close(self) -> None:
        self._pool = None
        with suppress(Exception):
            await self._opened.aclose()

    async def _begun(self) -> ModuleType:
        if self._library is None or self._pool is None:
            try:
                import pydantic_monty  # noqa: PLC0415 - an extra
            except ImportError as error:
                raise EngineBroken("pydantic-monty is not installed") from error
            self._library = pydantic_monty
            pool = pydantic_monty.AsyncMonty(
                min_processes=0, max_processes=self._containers_max, checkout_timeout=10.0
            )
            try:
                self._pool = await self._opened.enter_async_context(pool)
            except (OSError, RuntimeError, pydantic_monty.MontyError) as error:
                raise EngineBroken(f"its interpreters do not start: {error}") from error
        return self._library
