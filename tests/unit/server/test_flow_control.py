"""What uvicorn's own have to do, done in less memory."""

from __future__ import annotations

import asyncio

from typing_extensions import override

from gateway.server.cycle import BoundedFlowControl


class Wire(asyncio.Transport):
    """Notes whether it is read from."""

    is_read = True

    @override
    def pause_reading(self) -> None:
        self.is_read = False

    @override
    def resume_reading(self) -> None:
        self.is_read = True


async def test_who_writes_waits_for_as_long_as_the_client_does_not_read() -> None:
    flow = BoundedFlowControl(Wire())
    await flow.drain()
    flow.pause_writing()
    flow.pause_writing()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(flow.drain())
        await asyncio.sleep(0)
        assert (flow.write_paused, waiting.done()) == (True, False)
        flow.resume_writing()
    assert not flow.write_paused
    await flow.drain()


def test_a_connection_is_not_read_while_its_reading_is_paused() -> None:
    wire = Wire()
    flow = BoundedFlowControl(wire)
    flow.pause_reading()
    assert (flow.read_paused, wire.is_read) == (True, False)
    flow.resume_reading()
    assert (flow.read_paused, wire.is_read) == (False, True)
