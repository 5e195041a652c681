"""Owns every task that may outlive the request which started it."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gateway.errors import RateLimited
from gateway.runs import outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.runs.runner import Run


class Supervisor:
    """Starts runs, bounds how many there are, and ends them when the process drains."""

    def __init__(self, *, in_flight_max: int) -> None:
        self._in_flight_max = in_flight_max
        self._admitted = 0
        self._runs: dict[asyncio.Task[None], Run] = {}

    @property
    def in_flight(self) -> int:
        """How many runs there are right now."""
        return len(self._runs)

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Holds a place while a run is being prepared; start it before leaving.

        Raises `RateLimited` when this process has as many as it takes, prepared or running.
        """
        if self._admitted + len(self._runs) >= self._in_flight_max:
            raise RateLimited(
                "The server is processing as many requests as it can. Please retry in a moment.",
                code="rate_limit_exceeded",
            )
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

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
