"""What a workload costs, in numbers that are the same on every machine.

Counted are the instructions of Python, the calls of functions written in C, and the blocks of
memory that are still held afterwards. Run as a program it prints these as JSON, because tracing and
the measuring of coverage disturb each other: guards start it as a process of its own.
"""

from __future__ import annotations

import gc
import json
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import wraps
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from tests.guards.workloads import Workload, workloads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

HEAVIER: Final = "--heavier"
"""Makes each workload look at some more attributes, as a careless change would."""
MORE: Final = 0.25
WALK_INSTRUCTIONS: Final = 7
"""At least, in any version of Python, for a look at an attribute of an attribute in a loop."""


@dataclass(frozen=True, slots=True)
class Cost:
    """For each token; `blocks` is for a thousand."""

    instructions: float
    calls: float
    blocks: float


def cost(workload: Workload) -> Cost:
    """Of a workload, once all that is kept for good (caches, pieces of the vocabulary) is there."""
    workload.prepare()()
    return Cost(
        instructions=_instructions(workload.prepare()) / workload.tokens,
        calls=_calls(workload.prepare()) / workload.tokens,
        blocks=_blocks(workload.prepare()) * 1000 / workload.tokens,
    )


if sys.version_info >= (3, 12):

    def _instructions(work: Callable[[], object]) -> int:
        """Tracing each of them through a frame misses the first call of every function here."""
        count, monitoring = 0, sys.monitoring
        tool, kind = monitoring.PROFILER_ID, monitoring.events.INSTRUCTION

        def note(_code: object, _offset: int) -> None:
            nonlocal count
            count += 1

        monitoring.use_tool_id(tool, "guards")
        monitoring.register_callback(tool, kind, note)
        monitoring.set_events(tool, kind)
        try:
            work()
        finally:
            monitoring.set_events(tool, monitoring.events.NO_EVENTS)
            monitoring.free_tool_id(tool)
        return count

else:

    def _instructions(work: Callable[[], object]) -> int:
        count = 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal count
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            count += event == "opcode"
            return trace

        _during(sys.settrace, trace, work)
        return count


def _calls(work: Callable[[], object]) -> int:
    count = 0

    def profile(_frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "c_call"

    _during(sys.setprofile, profile, work)
    return count


def _during(install: Callable[[Any], None], observer: object, work: Callable[[], object]) -> None:
    install(observer)
    try:
        work()
    finally:
        install(None)


def _blocks(work: Callable[[], object]) -> int:
    """What the work leaves behind, beside its result."""
    gc.collect()
    before = sys.getallocatedblocks()
    work()
    gc.collect()
    return sys.getallocatedblocks() - before


@contextmanager
def heavier(workload: Workload, walks: int) -> Iterator[None]:
    """Let the work begin with a look at `walks` attributes, each time."""
    function = getattr(workload.owner, workload.name)

    @wraps(function)
    def looking(*args: Any, **more: Any) -> Any:
        for _ in range(walks):
            args[0].__class__.__name__  # noqa: B018
        return function(*args, **more)

    setattr(workload.owner, workload.name, looking)
    try:
        yield
    finally:
        setattr(workload.owner, workload.name, function)


def heavier_cost(workload: Workload) -> Cost:
    """What it would cost if it did a quarter more than it does."""
    each = cost(workload).instructions * workload.tokens / workload.begins
    with heavier(workload, ceil(each * MORE / WALK_INSTRUCTIONS)):
        return cost(workload)


def main() -> None:
    """Print what each workload costs, by its name."""
    count = heavier_cost if HEAVIER in sys.argv else cost
    print(json.dumps({name: asdict(count(one)) for name, one in workloads().items()}))


if __name__ == "__main__":
    main()
