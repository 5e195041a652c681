"""What uvicorn's own have to do, done in less memory."""

from __future__ import annotations

import asyncio
from collections import deque

from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from gateway.cli.flow import Flow, Pipeline


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
    flow = Flow(Wire())
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
    flow = Flow(wire)
    flow.pause_reading()
    assert (flow.read_paused, wire.is_read) == (True, False)
    flow.resume_reading()
    assert (flow.read_paused, wire.is_read) == (False, True)


@given(st.lists(st.none() | st.integers()))
def test_a_pipeline_is_a_queue_as_a_deque_is(steps: list[int | None]) -> None:
    ours: Pipeline[int] = Pipeline()
    theirs: deque[int] = deque()
    for step in steps:
        if step is not None:
            ours.appendleft(step)
            theirs.appendleft(step)
        elif theirs:
            assert ours.pop() == theirs.pop()
        assert bool(ours) == bool(theirs)
