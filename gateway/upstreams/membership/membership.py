"""Keeps the pool in step with the sources of backends."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.telemetry.logs import EventLog
from gateway.upstreams.membership.desired import Fault, SourceBackends, merged
from gateway.upstreams.membership.source import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.telemetry.metrics import Metrics
    from gateway.upstreams.backend import Backend
    from gateway.upstreams.membership.desired import Answer
    from gateway.upstreams.membership.source import BackendSource

SETTINGS: Final = "settings"
START_WAIT_S: Final = 10.0
"""How long the start waits for a source: what is not known then joins later."""

_log = EventLog(__name__)


class SourceState(NamedTuple):
    """A source now: how many backends it has, and why it cannot say more; None: it can."""

    name: str
    members: int
    fault: str | None


class Membership:
    """Watches the sources, and calls `apply` with all backends whenever these have changed.

    `start` asks each once, `run` goes on until it is cancelled. A source that fails keeps what it
    said last.
    """

    def __init__(
        self,
        fixed: Sequence[Backend],
        sources: Sequence[BackendSource],
        apply: Callable[[Sequence[Backend]], None],
        *,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # `fixed` backends are always used, and precede those of the sources.
        self._fixed = tuple(fixed)
        self._sources = sources
        self._apply = apply
        self._metrics = metrics
        self._clock = clock
        self._known = {one.name: SourceBackends(one.empty_s) for one in sources}
        self._unused: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings about the sources, for operators."""
        faults = [
            f"{name} does not say which backends there are: {known.fault}. "
            f"Those known before count: {len(known.members)}"
            for name, known in self._known.items()
            if known.fault is not None
        ]
        doubted = [
            f"{name} says that there are no backends, and is not believed yet: "
            f"{len(known.members)} stay"
            for name, known in self._known.items()
            if known.is_doubted
        ]
        return (*faults, *doubted, *self._unused)

    def awaits_backends(self) -> bool:
        # True if a source has no members now.
        return any(not known.members for known in self._known.values())

    def states(self) -> tuple[SourceState, ...]:
        return tuple(
            SourceState(name, len(known.members), known.fault)
            for name, known in self._known.items()
        )

    async def start(self) -> None:
        async with asyncio.TaskGroup() as group:
            for source in self._sources:
                group.create_task(self._fetch(source))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for source in self._sources:
                group.create_task(self._follow(source))

    async def _fetch(self, source: BackendSource) -> None:
        try:
            async with asyncio.timeout(START_WAIT_S):
                answer: Answer = await source.fetch()
        except SourceError as error:
            answer = Fault(str(error))
        except TimeoutError:
            answer = Fault("it does not answer")
        self.update(source.name, answer)

    async def _follow(self, source: BackendSource) -> None:
        async with aclosing(source.watch()) as answers:
            async for answer in answers:
                self.update(source.name, answer)

    def update(self, source: str, answer: Answer) -> None:
        known = self._known[source]
        before = known.fault
        has_changed = known.update(answer, self._clock())
        if known.fault != before:
            if known.fault is None:
                _log.info("a source of backends is back", source=source)
            else:
                _log.warning("a source of backends fails", source=source, reason=known.fault)
        self._metrics.source_told(source, members=len(known.members), is_up=known.fault is None)
        if has_changed:
            self._apply_all()

    def _apply_all(self) -> None:
        said = {name: known.members for name, known in self._known.items()}
        desired = merged({SETTINGS: self._fixed, **said})
        for text in desired.unused:
            if text not in self._unused:
                _log.warning("a backend that was found is not used", reason=text)
        self._unused = desired.unused
        self._apply(tuple(desired.backends.values()))
