"""Backends from a file that is watched."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.errors import StartupError
from gateway.upstreams.membership.source import SourceError, polled

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from gateway.upstreams.backend import Backend
    from gateway.upstreams.membership.desired import Answer


class FileSource:
    """Reads the file at an interval: it may be replaced, be behind links, or on a network."""

    empty_s = 0.0

    def __init__(
        self, name: str, read: Callable[[], tuple[Backend, ...]], *, refresh_s: float
    ) -> None:
        # `read` may block. It raises `StartupError`, and `ValueError` for an entry that cannot be a
        # backend.
        self.name = name
        self._read = read
        self._refresh_s = refresh_s

    async def fetch(self) -> tuple[Backend, ...]:
        try:
            return await asyncio.to_thread(self._read)
        except (StartupError, ValueError) as error:
            raise SourceError(str(error)) from error

    def watch(self) -> AsyncGenerator[Answer]:
        return polled(self.fetch, self._refresh_s)
