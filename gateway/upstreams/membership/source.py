"""The interface of a source of backends: a file, or DNS."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gateway.upstreams.membership.desired import Fault

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from gateway.upstreams.backend import Backend
    from gateway.upstreams.membership.desired import Answer


class SourceError(Exception):
    """A source cannot say which backends there are; its text says why."""


@dataclass(frozen=True, slots=True)
class BackendTemplate:
    """Template of the backends of a source: `make` takes a name and a URL, which begins with
    `scheme`. It raises `ValueError` if no backend can have them.
    """

    make: Callable[[str, str], Backend]
    scheme: str = "http"

    def backend(self, place: str, name: str | None = None) -> Backend:
        # The address `host:port` is also the default name.
        try:
            return self.make(name or place, f"{self.scheme}://{place}")
        except ValueError as error:
            raise SourceError(f"{name or place} at {place} cannot be a backend: {error}") from error


class BackendSource(Protocol):
    """Finds backends."""

    @property
    def name(self) -> str: ...

    @property
    def empty_s(self) -> float:
        """Return for how many seconds an empty answer is not believed."""
        ...

    async def fetch(self) -> tuple[Backend, ...]:
        """Return all backends now. Raises `SourceError`."""
        ...

    def watch(self) -> AsyncGenerator[Answer]:
        """Yield all backends each time that they may have changed; never ends."""
        ...


async def polled(
    fetch: Callable[[], Awaitable[tuple[Backend, ...]]], interval_s: float
) -> AsyncGenerator[Answer]:
    """Fetch every `interval_s` and yield the backends, or a `Fault` for a `SourceError`."""
    while True:
        try:
            yield await fetch()
        except SourceError as error:
            yield Fault(str(error))
        await asyncio.sleep(interval_s)
