"""How fast a stream goes: ids that are due, in whole events."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.simulator.directives import Pace
    from gateway.simulator.options import SimulatorOptions


@dataclass(frozen=True, slots=True)
class Tempo:
    """The pace of one stream: the request's wish, else the instance's setting."""

    tokens_per_s: float | None
    ids_per_event: int
    first_token_delay_s: float
    write_ids_max: int

    @classmethod
    def of(cls, options: SimulatorOptions, wish: Pace) -> Tempo:
        """What holds for one request."""
        size = wish.ids_per_event or options.ids_per_event
        delay = wish.first_token_delay_s
        return cls(
            tokens_per_s=wish.tokens_per_s or options.tokens_per_s,
            ids_per_event=size,
            first_token_delay_s=options.first_token_delay_s if delay is None else delay,
            write_ids_max=options.write_events_max * size,
        )

    def duration_s(self, count: int) -> float:
        """Seconds from the first id to the last of so many."""
        return max(count - 1, 0) / self.tokens_per_s if self.tokens_per_s else 0.0

    async def spans(self, count: int) -> AsyncIterator[tuple[int, int]]:
        """Yield `(start, end)` of ids to write now, until `count` are written.

        The first is due at once. One timer a stream; a stream that fell behind catches up with
        many events in one write. Without a pace other streams get their turn after each write.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        start = 0
        while start < count:
            end = self._due(start, count, clock() - began)
            if end == start:
                next_end = min(start + self.ids_per_event, count)
                await asyncio.sleep(began + self.duration_s(next_end) - clock())
                end = next_end
            yield start, end
            start = end
            await asyncio.sleep(0)

    def _due(self, start: int, count: int, elapsed_s: float) -> int:
        end = min(start + self.write_ids_max, count)
        if self.tokens_per_s is None:
            return end
        said = min(1 + int(elapsed_s * self.tokens_per_s), end)
        if said == count:
            return count
        whole = (said - start) // self.ids_per_event * self.ids_per_event
        return start + max(whole, 0)
