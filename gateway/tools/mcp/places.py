"""Places of sessions with MCP servers: so many of all tenants together, and so many of each.

Who finds none waits. A place that becomes free goes to the tenant that holds the fewest, and among
its questions to the first: whoever asks the most waits behind the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.tenancy import TenantId


class NoPlace(Exception):
    """Refusal of a session that waited for a place as long as it may."""


class SessionPlaces:
    """Count of the places that tenants hold; the pool holds the sessions in them."""

    def __init__(
        self,
        sessions_max: int,
        tenant_sessions_max: int,
        give_up: Callable[[TenantId | None], bool],
    ) -> None:
        # `give_up` ends an idle session of a tenant or (None) of any, which frees its place. False:
        # there is none.
        self._sessions_max = sessions_max
        self._tenant_sessions_max = tenant_sessions_max
        self._give_up = give_up
        self._held: Counter[TenantId] = Counter()
        self._waiting: dict[asyncio.Future[None], TenantId] = {}

    def held(self, tenant_id: TenantId) -> int:
        return self._held[tenant_id]

    async def take(self, tenant_id: TenantId, *, wait_s: float) -> None:
        """Take a place, waiting at most `wait_s`. Raises `NoPlace`."""
        if self._try(tenant_id):
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[place] = tenant_id
        try:
            async with asyncio.timeout(wait_s):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                # It was given one at the same moment.
                self.leave(tenant_id)
                self.offer()
            if isinstance(error, TimeoutError):
                raise NoPlace from error
            raise
        finally:
            self._waiting.pop(place, None)

    def leave(self, tenant_id: TenantId) -> None:
        """Free a place. Call `offer` to pass it on to those who wait."""
        self._held[tenant_id] -= 1
        if not self._held[tenant_id]:
            del self._held[tenant_id]

    def offer(self) -> None:
        """Give free places, and those of sessions that can be ended, to those who wait."""
        waiting = [place for place in self._waiting if not place.done()]
        while waiting:
            place = min(waiting, key=lambda one: self._held[self._waiting[one]])
            waiting.remove(place)
            if self._try(self._waiting[place]):
                place.set_result(None)

    def _try(self, tenant_id: TenantId) -> bool:
        if self._held[tenant_id] >= self._tenant_sessions_max and not self._give_up(tenant_id):
            return False
        if self._held.total() >= self._sessions_max and not self._give_up(None):
            return False
        self._held[tenant_id] += 1
        return True
