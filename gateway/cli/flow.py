"""What uvicorn has for each connection, in less memory: a deque, and a lock that has one, are 700
bytes each, and a stream is a connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from typing_extensions import override
from uvicorn.protocols.http.flow_control import FlowControl

from gateway.runs.moment import Signal

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class Flow(FlowControl):
    """Whether a connection is read from, and takes what is written."""

    __slots__ = ("_takes",)

    def __init__(self, transport: asyncio.Transport) -> None:
        # Not uvicorn's, which would make the lock.
        self._transport = transport
        self.read_paused = False
        self.write_paused = False
        self._takes = Signal()
        self._takes.set()

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


class Pipeline(list[T]):
    """Requests that came before those before them were answered: hardly ever any."""

    __slots__ = ()

    def appendleft(self, one: T) -> None:
        """Put it behind all that wait: the next is `pop`ped."""
        self.insert(0, one)
