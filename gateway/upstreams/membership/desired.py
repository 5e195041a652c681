"""Desired backends of the pool, by the last answers of the sources. No I/O here.

SourceBackends  the backends of one source that are believed
merged          the desired backends of all sources
changes         the backends that have to join and leave the pool
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gateway.upstreams.backend import Backend


@dataclass(frozen=True, slots=True)
class Fault:
    """A source could not say what there is, and why."""

    reason: str


Answer = tuple["Backend", ...] | Fault
"""What a source says: all backends that there are, or that it cannot say."""


class SourceBackends:
    """The backends of one source, by its last answer.

    While a source fails its last answer stands. An empty answer is believed once it has been given
    for `empty_s`: name servers that have lost their data give it, too. Times are seconds of a clock
    that never goes back.
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
        if isinstance(answer, Fault):
            self.fault = answer.reason
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


class Desired(NamedTuple):
    """The backends that are desired by name, and what of the answers is not used, in words."""

    backends: dict[str, Backend]
    unused: tuple[str, ...] = ()


MEMBERS_MAX: Final = 1024
"""Backends in all; what is found beyond is not used."""


def merged(sources: Mapping[str, Sequence[Backend]], members_max: int = MEMBERS_MAX) -> Desired:
    """Return the backends of all sources, in their order; of several with one name the first."""
    backends: dict[str, Backend] = {}
    unused, beyond = [], 0
    for source, found in sources.items():
        for backend in found:
            if (known := backends.get(backend.name)) is not None:
                unused.append(
                    f"{backend.name} of {source} is not used: {known.source} has one of that name"
                )
            elif len(backends) >= members_max:
                beyond += 1
            else:
                backends[backend.name] = backend
    if beyond:
        unused.append(f"{beyond} more backends are not used: there are {members_max}")
    return Desired(backends, tuple(unused))


class Changes(NamedTuple):
    """Names of backends that `join` and `leave`; one that has changed does both."""

    join: tuple[str, ...]
    leave: tuple[str, ...]


def changes(known: Mapping[str, Backend], desired: Mapping[str, Backend]) -> Changes:
    return Changes(
        join=tuple(name for name, one in desired.items() if known.get(name) != one),
        leave=tuple(name for name, one in known.items() if desired.get(name) != one),
    )


def named(backends: Iterable[Backend]) -> dict[str, Backend]:
    # If two have one name, the last is used.
    return {backend.name: backend for backend in backends}
