"""Requests that give way: one tenant has most of the slots, and another has none and finds none.

What a tenant sent while nobody else was there may last for minutes, and backends may be slower than
they seemed when it was sent. So requests of a tenant that has more of the slots than the two would
divide them by their shares, half where these are alike, are called back until others find some:
first those that have no token yet, which wait at the backend and lose nothing, then the latest of
those that can go on with what they have. They wait in the queue again, before the others of their
tenant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gateway.upstreams.admission.fair import SHARE_OF_FREE_SLOTS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class Recallable(Protocol):
    """A request at a backend. `can_go_on`: with what was generated, too. `share` is how many times
    the usual share its tenant has.
    """

    @property
    def upstream(self) -> str: ...

    @property
    def share(self) -> float: ...

    @property
    def has_begun(self) -> bool: ...

    @property
    def can_go_on(self) -> bool: ...

    def recall(self) -> None:
        """Break it off; it waits for its turn again."""
        ...


def excess(running: int, free: int) -> int:
    """How many of so many requests of a tenant have to go, that it has its share of the slots that
    are free then; `free` is below zero where more are taken than there are.
    """
    more = running - SHARE_OF_FREE_SLOTS * free
    return max(0, -(-more // (SHARE_OF_FREE_SLOTS + 1)))


class Running:
    """All requests at backends, by tenant, in the order in which they were sent."""

    def __init__(self) -> None:
        self._of: dict[str, dict[Recallable, None]] = {}
        self._leaving: dict[Recallable, None] = {}

    @property
    def tenants(self) -> int:
        """Of how many tenants something runs."""
        return len(self._of)

    def add(self, tenant: str, one: Recallable) -> None:
        """It is sent."""
        self._of.setdefault(tenant, {})[one] = None

    def discard(self, tenant: str, one: Recallable) -> None:
        """It has ended, whatever became of it."""
        self._leaving.pop(one, None)
        own = self._of.get(tenant)
        if own is not None and own.pop(one, self) is None and not own:
            del self._of[tenant]

    def make_room(
        self, tenant: str, at: Collection[str], *, bound: int, free: int, share: float = 1.0
    ) -> int:
        """Call back what has to give way to `tenant`, which has a `share`, at these backends, which
        have so many slots; how many those are.

        Of several that have too much the one gives way that has most for its share. Nobody who has
        less than its part does: where several have something, turns are fair.
        """
        free += sum(one.upstream in at for one in self._leaving)
        hogs = {name: own for name in self._of if (own := self._beyond(name, at, bound, share))}
        hogs.pop(tenant, None)
        if not hogs:
            return 0
        hog = max(hogs, key=lambda name: len(hogs[name]) / hogs[name][-1].share)
        own = hogs[hog]
        # It keeps its part: a bound that seems to be far below what runs may be wrong.
        count = min(excess(len(own), free), int(len(own) * share / (own[-1].share + share)))
        waiting = [one for one in own if not one.has_begun]
        begun = [one for one in own if one.has_begun and one.can_go_on]
        chosen = [*reversed(waiting), *reversed(begun)][:count]
        for one in chosen:
            del self._of[hog][one]
            self._leaving[one] = None
            one.recall()
        return len(chosen)

    def _beyond(
        self, tenant: str, at: Collection[str], bound: int, share: float
    ) -> Sequence[Recallable]:
        """What a tenant has there, if that is more than its part of `bound` beside another one with
        that share; its own share is that of its latest request.
        """
        own = self._of[tenant]
        latest = next(reversed(own)).share
        part = bound * latest / (latest + share)
        if len(own) <= part:
            return ()
        here = [one for one in own if one.upstream in at]
        return here if len(here) > part else ()
