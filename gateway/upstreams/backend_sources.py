from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from typing_extensions import override

from gateway.errors import StartupError, StoreError
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from gateway.telemetry.metrics import Metrics
    from gateway.upstreams.backend import Backend


class SourceError(Exception):
    """Reason why a source cannot list backends."""


Answer = tuple["Backend", ...] | SourceError


class SourceBackends:
    """Backends of one source, by its last answer.

    An empty answer counts only after `empty_s`: name servers that have lost their data give it,
    too.
    """

    def __init__(self, empty_s: float = 0.0) -> None:
        self.members: tuple[Backend, ...] = ()
        self.fault: str | None = None
        self._empty_s = empty_s
        self._empty_since: float | None = None

    @property
    def is_doubted(self) -> bool:
        # True while an empty answer is not believed yet.
        return self._empty_since is not None and bool(self.members)

    def update(self, answer: Answer, now: float) -> bool:
        """Take in an answer; returns True if the `members` have changed."""
        if isinstance(answer, SourceError):
            self.fault = str(answer)
            return False
        self.fault = None
        if answer:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = now
        if not answer and self._empty_since is not None and now - self._empty_since < self._empty_s:
            return False
        before, self.members = self.members, answer
        return before != answer


MEMBERS_MAX: Final = 1024


class Desired(NamedTuple):
    """Backends by name, and warnings about others that are not used."""

    backends: dict[str, Backend]
    unused: tuple[str, ...] = ()


def merged(sources: Mapping[str, Sequence[Backend]], members_max: int = MEMBERS_MAX) -> Desired:
    """Return the backends of all sources, in their order; of several with one name the first."""
    backends: dict[str, Backend] = {}
    unused, beyond = [], 0
    for source, listed in sources.items():
        for backend in listed:
            if (first := backends.get(backend.name)) is not None:
                unused.append(
                    f"{backend.name} of {source} is not used: {first.source} has one of that name"
                )
            elif len(backends) >= members_max:
                beyond += 1
            else:
                backends[backend.name] = backend
    if beyond:
        unused.append(f"{beyond} more backends are not used: at most {members_max} are")
    return Desired(backends, tuple(unused))


class Changes(NamedTuple):
    """Names of backends that `join` and `leave`; one that has changed does both."""

    join: tuple[str, ...]
    leave: tuple[str, ...]


def changes(current: Mapping[str, Backend], desired: Mapping[str, Backend]) -> Changes:
    return Changes(
        join=tuple(name for name, one in desired.items() if current.get(name) != one),
        leave=tuple(name for name, one in current.items() if desired.get(name) != one),
    )


def named(backends: Iterable[Backend]) -> dict[str, Backend]:
    # If two have one name, the last is used.
    return {backend.name: backend for backend in backends}


class BackendSource(ABC):
    """Lists backends every `refresh_s`; an empty answer counts only after `empty_s`."""

    empty_s = 0.0

    def __init__(self, name: str, *, refresh_s: float) -> None:
        self.name = name
        self.refresh_s = refresh_s

    @abstractmethod
    async def fetch(self) -> tuple[Backend, ...]:
        """Return all backends now. Raises `SourceError`."""


class FileSource(BackendSource):
    """Reads the file at an interval: it may be replaced, be behind links, or on a network."""

    def __init__(
        self, name: str, read: Callable[[], tuple[Backend, ...]], *, refresh_s: float
    ) -> None:
        # `read` may block. It raises `StartupError`, and `ValueError` for an entry that cannot be a
        # backend.
        super().__init__(name, refresh_s=refresh_s)
        self._read = read

    @override
    async def fetch(self) -> tuple[Backend, ...]:
        try:
            return await asyncio.to_thread(self._read)
        except (StartupError, ValueError) as error:
            raise SourceError(str(error)) from error


SETTINGS: Final = "settings"
START_WAIT_S: Final = 10.0
"""For a source at the start; its backends join later."""

_log = EventLog(__name__)


class Membership:
    """Watches the sources, and calls `apply` with all backends when these have changed."""

    def __init__(
        self,
        fixed: Sequence[Backend],
        sources: Sequence[BackendSource],
        apply: Callable[[Sequence[Backend]], Awaitable[None]],
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
        self._by_source = {one.name: SourceBackends(one.empty_s) for one in sources}
        self._unused: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        faults = [
            f"{name} does not say which backends there are: {state.fault}. "
            f"Those known before count: {len(state.members)}"
            for name, state in self._by_source.items()
            if state.fault is not None
        ]
        doubted = [
            f"{name} says that there are no backends, and is not believed yet: "
            f"{len(state.members)} stay"
            for name, state in self._by_source.items()
            if state.is_doubted
        ]
        return (*faults, *doubted, *self._unused)

    def awaits_backends(self) -> bool:
        return any(not state.members for state in self._by_source.values())

    async def start(self) -> None:
        async with asyncio.TaskGroup() as group:
            for source in self._sources:
                group.create_task(self._fetch(source, wait_s=START_WAIT_S))

    async def replace_fixed(self, fixed: Sequence[Backend]) -> None:
        self._fixed = tuple(fixed)
        await self._apply_all()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for source in self._sources:
                group.create_task(self._follow(source))

    async def _fetch(self, source: BackendSource, wait_s: float | None = None) -> None:
        try:
            async with asyncio.timeout(wait_s):
                answer: Answer = await source.fetch()
        except SourceError as error:
            answer = error
        except TimeoutError:
            answer = SourceError("it does not answer")
        await self.update(source.name, answer)

    async def _follow(self, source: BackendSource) -> None:
        while True:
            await self._fetch(source)
            await asyncio.sleep(source.refresh_s)

    async def update(self, source: str, answer: Answer) -> None:
        state = self._by_source[source]
        before = state.fault
        has_changed = state.update(answer, self._clock())
        if state.fault != before:
            if state.fault is None:
                _log.info("a source of backends is back", source=source)
            else:
                _log.warning("a source of backends fails", source=source, reason=state.fault)
        self._metrics.source_read(source, members=len(state.members), is_up=state.fault is None)
        if has_changed:
            await self._apply_all()

    async def _apply_all(self) -> None:
        by_source = {name: state.members for name, state in self._by_source.items()}
        desired = merged({SETTINGS: self._fixed, **by_source})
        for text in desired.unused:
            if text not in self._unused:
                _log.warning("a backend that was found is not used", reason=text)
        self._unused = desired.unused
        await self._apply(tuple(desired.backends.values()))


DRAIN_POLL_S: Final = 2.0
REPORT_INTERVAL_S: Final = 10.0
"""Without a report for longer a replica counts as gone."""


class Drainable(Protocol):
    def drain(self, names: Collection[str]) -> None: ...

    def in_flight(self) -> Mapping[str, int]: ...


class Drains:
    """Follows the table of drained backends; the last answer counts while the database is away."""

    def __init__(
        self,
        pool: Drainable,
        drained: Callable[[], Awaitable[Collection[str]]],
        report: Callable[[Mapping[str, int]], Awaitable[None]],
        *,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # `drained` reads the names, `report` sends how much is in flight at each. Both raise
        # `StoreError`.
        self._pool = pool
        self._drained = drained
        self._report = report
        self._metrics = metrics
        self._clock = clock
        self._reported: dict[str, int] = {}
        self._reported_at = float("-inf")
        self._is_well = True

    async def run(self) -> None:
        while True:
            await self.once()
            await asyncio.sleep(DRAIN_POLL_S)

    async def once(self) -> None:
        try:
            names = sorted(await self._drained())
            self._pool.drain(names)
            self._metrics.backends_drained(len(names))
            await self._tell(names)
        except StoreError as error:
            if self._is_well:
                _log.warning("it is not known which backends are drained", error=error)
            self._is_well = False
        else:
            self._is_well = True

    async def _tell(self, names: Collection[str]) -> None:
        # Reported also if nothing is in flight or the backend is unknown here: the drain command
        # waits for it.
        here = self._pool.in_flight()
        counts = {name: here.get(name, 0) for name in names}
        now = self._clock()
        if not counts or (counts == self._reported and now - self._reported_at < REPORT_INTERVAL_S):
            self._reported = counts
            return
        await self._report(counts)
        self._reported, self._reported_at = counts, now
