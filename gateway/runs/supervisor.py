"""Owns every task that may outlive the request which started it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.errors import RateLimited
from gateway.runs import outcome

if TYPE_CHECKING:
    from gateway.runs.runner import Run


class Supervisor:
    """Starts runs, bounds how many there are, and ends them when the process drains."""

    def __init__(self, *, in_flight_max: int) -> None:
        self._in_flight_max = in_flight_max
        self._runs: dict[asyncio.Task[None], Run] = {}

    @property
    def in_flight(self) -> int:
        """How many runs there are right now."""
        return len(self._runs)

    def admit(self) -> None:
        """Raise `RateLimited` when as many runs as this process takes are under way."""
        if len(self._runs) >= self._in_flight_max:
            raise RateLimited(
                "The server is processing as many requests as it can. Please retry in a moment.",
                code="rate_limit_exceeded",
            )

    def start(self, run: Run) -> None:
        """Run to the end, whatever becomes of the caller."""
        task = asyncio.create_task(run())
        self._runs[task] = run
        task.add_done_callback(self._runs.pop)

    async def drain(self) -> None:
        """End what still runs as failed; returns when all of it is committed.

        The server has let open streams finish before it ends the application, so what is left is
        past the grace.
        """
        for run in self._runs.values():
            run.cancel(outcome.shut_down)
        if self._runs:
            await asyncio.wait(self._runs)
