"""What uvicorn has for each connection, in less memory: its lock is 700 bytes, and a stream is a
connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override
from uvicorn.protocols.http.flow_control import FlowControl

from gateway.concurrency import Event

if TYPE_CHECKING:
    import asyncio


class BoundedFlowControl(FlowControl):
    """Whether a connection is read from, and takes what is written."""

    __slots__ = ("_is_full", "_takes")

    def __init__(self, transport: asyncio.Transport) -> None:
        # Not uvicorn's, which would make the lock.
        self._transport = transport
        self.read_paused = False
        self.write_paused = False
        self._is_full = False
        self._takes = Event()
        self._takes.set()

    def hold(self, *, is_full: bool) -> None:
        """While what was read already is too much, nobody has more read, whatever they wait for."""
        if is_full:
            self.pause_reading()
        self._is_full = is_full

    @override
    def resume_reading(self) -> None:
        if not self._is_full:
            super().resume_reading()

    @override
    async def drain(self) -> None:
        await self._takes.wait()

    @override
    def pause_writing(self) -> None:
        self.write_paused = True
        self._takes.clear()

    @override
    def resume_writing(self) -> None:
        self.write_paused = False
        self._takes.set()
