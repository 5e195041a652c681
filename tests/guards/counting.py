"""What a workload costs, in numbers that are the same on every machine.

Counted are the instructions of Python, the calls of functions written in C, and the blocks of
memory that are still held afterwards. Run as a program it prints these as JSON, because tracing and
the measuring of coverage disturb each other: guards start it as a process of its own.
"""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import asdict, dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from tests.guards.workloads import Workload, workloads

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

HEAVIER: Final = "--heavier"
"""Makes each workload walk along some more attributes for each token, as a careless change would."""
WALKS: Final = 24


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


def make_heavier(owner: Any, name: str, walks: int) -> None:
    """Let a function follow `walks` attributes more each time that it is called."""
    function = getattr(owner, name)

    @wraps(function)
    def heavier(*args: Any, **more: Any) -> Any:
        for _ in range(walks):
            args[0].__class__.__name__  # noqa: B018
        return function(*args, **more)

    setattr(owner, name, heavier)


def main() -> None:
    """Print what each workload costs, by its name."""
    watched = workloads()
    if HEAVIER in sys.argv:
        entrances = {(workload.owner, workload.name): workload for workload in watched.values()}
        for owner, name in entrances:
            make_heavier(owner, name, WALKS)
    print(json.dumps({name: asdict(cost(workload)) for name, workload in watched.items()}))


if __name__ == "__main__":
    main()
