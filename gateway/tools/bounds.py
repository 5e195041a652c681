"""Slots and a breaker, which keep the hosted tools of one response from those of others."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Hashable

    _Of = Literal["all", "tenant", "server"]
    _Key = tuple[_Of, Hashable]
    _Keys = tuple[_Key, ...]

BREAKERS_MAX: Final = 4096
"""Servers whose failures are remembered, of all tenants together."""


class TooManyCalls(Exception):
    """Refusal of a call that waited `SlotBounds.wait_s` for a slot and got none."""


@dataclass(frozen=True, slots=True)
class SlotBounds:
    """Bounds of the calls that run at once: in a process, of one tenant, and at one MCP server. A
    call waits `wait_s` for a slot. One server has fewer slots than its tenant: where it hangs, the
    tenant's other tools go on.
    """

    running_max: int = 64
    tenant_running_max: int = 16
    server_running_max: int = 8
    wait_s: float = 5.0


class Slots:
    """Slots of the calls that run. Free slots go to the waiting calls in their order, past those
    that one of their own bounds still holds up.
    """

    def __init__(self, bounds: SlotBounds) -> None:
        self._bounds = bounds
        self._most: dict[_Of, int] = {
            "all": bounds.running_max,
            "tenant": bounds.tenant_running_max,
            "server": bounds.server_running_max,
        }
        self._taken: Counter[_Key] = Counter()
        self._waiting: dict[asyncio.Future[None], _Keys] = {}

    @asynccontextmanager
    async def taken(self, tenant: Hashable, server: Hashable | None) -> AsyncIterator[None]:
        """Hold a slot for the block; `server` None: the call is to no server. Raises
        `TooManyCalls`.
        """
        keys: _Keys = (("all", None), ("tenant", tenant))
        if server is not None:
            keys = (*keys, ("server", server))
        if self._has_room(keys):
            self._taken.update(keys)
        else:
            await self._wait(keys)
        try:
            yield
        finally:
            self._leave(keys)

    async def _wait(self, keys: _Keys) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[place] = keys
        try:
            async with asyncio.timeout(self._bounds.wait_s):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                # It was given one at the same moment.
                self._leave(keys)
            if isinstance(error, TimeoutError):
                raise TooManyCalls from error
            raise
        finally:
            self._waiting.pop(place, None)

    def _has_room(self, keys: _Keys) -> bool:
        return all(self._taken[key] < self._most[key[0]] for key in keys)

    def _leave(self, keys: _Keys) -> None:
        for key in keys:
            self._taken[key] -= 1
            if not self._taken[key]:
                del self._taken[key]
        for place, wanted in list(self._waiting.items()):
            if not place.done() and self._has_room(wanted):
                self._taken.update(wanted)
                place.set_result(None)


class Breaker:
    """Record of the servers that failed again and again, for each tenant: these are not called for
    a while.
    """

    def __init__(self, failures_max: int, rest_s: float, clock: Callable[[], float]) -> None:
        # After `failures_max` failures in a row a server rests for `rest_s`; then one call may try.
        self._failures_max = failures_max
        self._rest_s = rest_s
        self._clock = clock
        self._failures: OrderedDict[Hashable, tuple[int, float]] = OrderedDict()

    def is_open(self, key: Hashable) -> bool:
        """Return True if the server must not be called.

        After the rest one caller gets False and may try; the others get True meanwhile.
        """
        failures, since = self._failures.get(key, (0, 0.0))
        if failures < self._failures_max:
            return False
        now = self._clock()
        if now - since < self._rest_s:
            return True
        self._failures[key] = (failures, now)
        return False

    def failed(self, key: Hashable) -> None:
        """Count a call that could not reach the server, or had no answer in time."""
        failures = self._failures.pop(key, (0, 0.0))[0]
        self._failures[key] = (failures + 1, self._clock())
        if len(self._failures) > BREAKERS_MAX:
            self._failures.popitem(last=False)

    def answered(self, key: Hashable) -> None:
        # An answer of any kind shows that the peer works.
        self._failures.pop(key, None)
