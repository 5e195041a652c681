"""What a source of backends is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gateway.upstreams.membership.wanted import Fault

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from gateway.upstreams.backend import Backend
    from gateway.upstreams.membership.wanted import Answer


class SourceError(Exception):
    """A source cannot say which backends there are; its text says why."""


@dataclass(frozen=True, slots=True)
class Template:
    """How the backends of a source are made: `make` of a name and a URL, which begins with
    `scheme`. It raises `ValueError` for what cannot be one.
    """

    make: Callable[[str, str], Backend]
    scheme: str = "http"

    def backend(self, place: str, name: str | None = None) -> Backend:
        """The backend at `host:port`, which is its name, too, unless it has another. Raises
        `SourceError`.
        """
        try:
            return self.make(name or place, f"{self.scheme}://{place}")
        except ValueError as error:
            raise SourceError(f"{name or place} at {place} cannot be a backend: {error}") from error


class Source(Protocol):
    """Says which backends there are."""

    @property
    def name(self) -> str: ...

    @property
    def empty_s(self) -> float:
        """Seconds for which it is not believed that there are none."""
        ...

    async def look(self) -> tuple[Backend, ...]:
        """All that there are now. Raises `SourceError`."""
        ...

    def answers(self) -> AsyncGenerator[Answer]:
        """All that there are, each time that they may have changed; without an end."""
        ...


async def looked(
    look: Callable[[], Awaitable[tuple[Backend, ...]]], interval_s: float
) -> AsyncGenerator[Answer]:
    """The answers of a source that has to be asked, each `interval_s` after the one before."""
    while True:
        try:
            yield await look()
        except SourceError as error:
            yield Fault(str(error))
        await asyncio.sleep(interval_s)
