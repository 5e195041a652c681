"""`python -m gateway`, and a line for each time its event loop was held up.

A turn of the loop counts by the processor time that it took, so that it is no stall when the
machine has other things to do.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

import uvloop

from gateway.__main__ import main

if TYPE_CHECKING:
    import asyncio

STALL_S: Final = 0.1
TICK_S: Final = 0.01
EVENT: Final = "the event loop was held up"

_new_event_loop = uvloop.new_event_loop


def _watched_event_loop() -> asyncio.AbstractEventLoop:
    loop = _new_event_loop()
    loop.call_soon(_tick, loop, time.thread_time())
    return loop


def _tick(loop: asyncio.AbstractEventLoop, before_s: float) -> None:
    now_s = time.thread_time()
    if now_s - before_s > STALL_S:
        print(json.dumps({"event": EVENT, "seconds": round(now_s - before_s, 3)}), flush=True)
    loop.call_later(TICK_S, _tick, loop, now_s)


def stalls_s(output: str) -> list[float]:
    """The seconds of each stall among the lines of such a process."""
    lines = [line for line in output.splitlines() if EVENT in line]
    return [float(json.loads(line)["seconds"]) for line in lines]


if __name__ == "__main__":
    uvloop.new_event_loop = _watched_event_loop  # type: ignore[assignment]
    main()
