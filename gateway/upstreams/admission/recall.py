"""Recalls running requests of a tenant that holds more than its share of the slots while another
tenant waits for one.

A tenant that was alone may have filled all slots with requests that take minutes. When a second
tenant finds none free, requests of the first are called back until it has no more slots than its
share beside the other (half, where their shares are equal). First come those that have no token
yet: they wait at the backend and lose nothing. Then come the latest of those that can be continued
from the tokens they have. A recalled request goes back into the queue, before the others of its
tenant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gateway.upstreams.admission.fair import SHARE_OF_FREE_SLOTS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class Recallable(Protocol):
    """A request that runs at a backend.

    `can_go_on`: it can be continued elsewhere from the tokens it has. `share` is the weight of its
    tenant; 1 is the usual one.
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
        """Stop the request and put it back into the queue."""
        ...


def excess(running: int, free: int) -> int:
    """Return how many of a tenant's `running` requests must end to bring it down to its share.

    This counts the slots that they free. `free` is negative if more slots are taken than exist.
    """
    more = running - SHARE_OF_FREE_SLOTS * free
    return max(0, -(-more // (SHARE_OF_FREE_SLOTS + 1)))


class Running:
    """The requests that run at backends, by tenant, in the order in which they were sent."""

    def __init__(self) -> None:
        self._of: dict[str, dict[Recallable, None]] = {}
        self._leaving: dict[Recallable, None] = {}

    @property
    def tenants(self) -> int:
        return len(self._of)

    def add(self, tenant: str, one: Recallable) -> None:
        self._of.setdefault(tenant, {})[one] = None

    def discard(self, tenant: str, one: Recallable) -> None:
        # For whatever reason the request has ended.
        self._leaving.pop(one, None)
        own = self._of.get(tenant)
        if own is not None and own.pop(one, self) is None and not own:
            del self._of[tenant]

    def make_room(
        self, tenant: str, at: Collection[str], *, bound: int, free: int, share: float = 1.0
    ) -> int:
        """Recall requests so that `tenant` finds a slot at one of the backends `at`.

        `share` is its weight. The backends have `bound` slots, of which `free` are free. Returns
        how many were recalled.

        They are taken from one tenant: the one that exceeds its share most. A tenant that holds no
        more than its share loses nothing.
        """
        free += sum(one.upstream in at for one in self._leaving)
        hogs = {name: own for name in self._of if (own := self._beyond(name, at, bound, share))}
        hogs.pop(tenant, None)
        if not hogs:
            return 0
        hog = max(hogs, key=lambda name: len(hogs[name]) / hogs[name][-1].share)
        own = hogs[hog]
        # The tenant keeps its share even if far more run than `bound` says: `bound` may be wrong.
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
        # The tenant's weight is that of its latest request.
        own = self._of[tenant]
        latest = next(reversed(own)).share
        part = bound * latest / (latest + share)
        if len(own) <= part:
            return ()
        here = [one for one in own if one.upstream in at]
        return here if len(here) > part else ()
