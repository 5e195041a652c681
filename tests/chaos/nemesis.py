"""A schedule of blows, made from a seed alone, and the hand that deals them.

Every member of the fleet has a lane of its own; lanes overlap. One member is always left alone, so
that there is somebody to go on.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from random import Random

Kind = Literal["kill", "freeze"]


@dataclass(frozen=True, slots=True)
class Blow:
    """After `wait_s` of peace the member is killed, or frozen, and comes back `down_s` later."""

    wait_s: float
    kind: Kind
    down_s: float


@dataclass(frozen=True, slots=True)
class Terms:
    """How often and how long: seconds of peace between two blows on one member, and down."""

    blows_per_member: int
    peace_s: tuple[float, float]
    down_s: tuple[float, float]
    kinds: tuple[Kind, ...] = ("kill", "freeze")


class Target(Protocol):
    """What can be struck. All methods block."""

    def kill(self) -> None: ...
    def start(self) -> None: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...


@dataclass(slots=True)
class Dealt:
    """How many blows have been dealt, by kind."""

    kill: int = 0
    freeze: int = 0
    cut_short: bool = field(default=False)


def schedule(rng: Random, terms: Terms, members: int) -> list[list[Blow]]:
    """The lane of every member: a pure function of the seed behind `rng`."""
    return [
        [
            Blow(rng.uniform(*terms.peace_s), rng.choice(terms.kinds), rng.uniform(*terms.down_s))
            for _ in range(terms.blows_per_member)
        ]
        for _ in range(members)
    ]


@asynccontextmanager
async def unleashed(
    lanes: Sequence[Sequence[Blow]], targets: Sequence[Target]
) -> AsyncIterator[Dealt]:
    """Strikes while this is entered; afterwards every target is up again."""
    dealt = Dealt()
    over = asyncio.Event()
    may_be_down = asyncio.Semaphore(len(targets) - 1)
    async with asyncio.TaskGroup() as group:
        for lane, target in zip(lanes, targets, strict=True):
            group.create_task(_walk(lane, target, dealt, over, may_be_down))
        try:
            yield dealt
        finally:
            over.set()


async def _walk(
    lane: Sequence[Blow],
    target: Target,
    dealt: Dealt,
    over: asyncio.Event,
    may_be_down: asyncio.Semaphore,
) -> None:
    for blow in lane:
        if await _passes(blow.wait_s, over):
            dealt.cut_short = True
            return
        async with may_be_down:
            if over.is_set():
                return
            await _strike(blow, target, over)
            setattr(dealt, blow.kind, getattr(dealt, blow.kind) + 1)


async def _strike(blow: Blow, target: Target, over: asyncio.Event) -> None:
    fall, rise = (
        (target.kill, target.start) if blow.kind == "kill" else (target.freeze, target.thaw)
    )
    await asyncio.to_thread(fall)
    await _passes(blow.down_s, over)
    await asyncio.to_thread(rise)


async def _passes(seconds: float, over: asyncio.Event) -> bool:
    """Wait; True when it is all over before that."""
    try:
        async with asyncio.timeout(seconds):
            await over.wait()
    except TimeoutError:
        return False
    return True
