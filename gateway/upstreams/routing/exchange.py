"""Replicas tell each other what they placed: one batch each second, through a table in Postgres.

load     of each member: id (4 bytes), in flight (4), owed (4)
entries  digest (8), member (4), tail (2) each
"""

from __future__ import annotations

import asyncio
import struct
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

from gateway.errors import StoreError
from gateway.telemetry.logs import EventLog
from gateway.upstreams.routing.router import PeerReport, PlacedEntry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from gateway.upstreams.routing.router import Router

JITTER: Final = 0.2
WAIT_MAX_S: Final = 2.0
REPLICAS_MAX: Final = 1_000
"""Replicas whose last number is kept; the longest silent go first."""
_LOAD: Final = struct.Struct(">III")
_ENTRY: Final = struct.Struct(">QIH")
_COUNT_MAX: Final = 2**32 - 1

_log = EventLog(__name__)


class Posted(Protocol):
    """Message of a replica: its `number`th (1, 2, …), posted `age_s` ago."""

    @property
    def replica(self) -> str: ...

    @property
    def number(self) -> int: ...

    @property
    def age_s(self) -> float: ...

    @property
    def load(self) -> bytes: ...

    @property
    def entries(self) -> bytes: ...


if TYPE_CHECKING:
    Board = Callable[[int, bytes, bytes, Mapping[str, int]], Awaitable[Sequence[Posted]]]
    """Posts number, load and entries, and returns messages of others after the numbers in the
    mapping. Raises `StoreError`."""


def packed_load(loads: Mapping[int, tuple[int, int]]) -> bytes:
    # `loads` maps a member to (in flight, owed).
    return b"".join(
        _LOAD.pack(member, min(in_flight, _COUNT_MAX), min(owed, _COUNT_MAX))
        for member, (in_flight, owed) in loads.items()
    )


def packed_entries(entries: Iterable[PlacedEntry]) -> bytes:
    return b"".join(_ENTRY.pack(*entry) for entry in entries)


def in_flight_of(load: bytes) -> dict[int, int]:
    if len(load) % _LOAD.size:
        return {}
    return {member: here for member, here, _ in _LOAD.iter_unpack(load)}


def report_of(posted: Posted) -> PeerReport | None:
    """Return the report of a replica; None if another release wrote it."""
    if len(posted.load) % _LOAD.size or len(posted.entries) % _ENTRY.size:
        return None
    loads = {member: (here, owed) for member, here, owed in _LOAD.iter_unpack(posted.load)}
    entries = [PlacedEntry(*entry) for entry in _ENTRY.iter_unpack(posted.entries)]
    return PeerReport(posted.replica, posted.age_s, loads, entries)


class Exchange:
    def __init__(
        self,
        router: Router,
        board: Board,
        *,
        is_needed: Callable[[], bool] = lambda: True,
        random: Random | None = None,
    ) -> None:
        self._router = router
        self._board = board
        self._is_needed = is_needed
        self._random = random or Random()  # noqa: S311 - spreads load, no secret
        self._number = 0
        self._seen: dict[str, int] = {}
        """Number of the last message by replica."""
        self._is_well = True

    async def run(self) -> None:
        interval_s = self._router.policy.exchange_interval_s
        while True:
            await asyncio.sleep(interval_s * self._random.uniform(1 - JITTER, 1 + JITTER))
            if self._is_needed():
                await self.once()

    async def once(self) -> None:
        """Exchange one batch each way. A batch that cannot be sent is dropped: it would be old."""
        loads, entries = self._router.report()
        self._number += 1
        load, placed = packed_load(loads), packed_entries(entries)
        try:
            async with asyncio.timeout(WAIT_MAX_S):
                posted = await self._board(self._number, load, placed, self._seen)
        except (StoreError, TimeoutError) as error:
            if self._is_well:
                _log.warning("replicas cannot tell each other what they placed", error=error)
            self._is_well = False
            return
        self._is_well = True
        self._router.exchanged(self._new(posted))

    def _new(self, posted: Sequence[Posted]) -> list[PeerReport]:
        reports = []
        for one in sorted(posted, key=lambda one: one.number):
            if one.number > self._seen.get(one.replica, 0):
                self._seen.pop(one.replica, None)
                self._seen[one.replica] = one.number
                if (report := report_of(one)) is not None:
                    reports.append(report)
        while len(self._seen) > REPLICAS_MAX:
            del self._seen[next(iter(self._seen))]
        return reports
