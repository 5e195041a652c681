from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from gateway.cache import LruCache
from gateway.errors import Leaving
from gateway.held_bytes import FairPlaces
from gateway.services.runs.history_source import History

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from gateway.protocol.context_item import ContextItem
    from gateway.telemetry.metrics import Metrics

CONNECTION_BYTES_MAX: Final = 64 << 20
REMEMBERED_BYTES_MAX: Final = 512 << 20
"""Bytes that all connections of a process remember."""
ITEM_BYTES: Final = 400
"""Estimate beside an item's JSON and ids."""
ID_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class _Remembered:
    history: History
    lane: str | None
    size_bytes: int


class Memory(Mapping[str, History]):
    """Unstored responses of one connection, by public id, within `bytes_max`.

    The least recently used is dropped first, but the latest of each lane last: its client has
    nothing else to continue. Each counts in full, though those of one chain share items.
    """

    def __init__(self, bytes_max: int, make_room: Callable[[], None] = lambda: None) -> None:
        # `make_room` is called when more is remembered.
        self.tool_values: LruCache[str, Any] = LruCache(size_max=bytes_max)
        """For unstored responses (pages shown in the browser), with an equal bound of their own."""
        self._bytes_max = bytes_max
        self._make_room = make_room
        self._by_id: OrderedDict[str, _Remembered] = OrderedDict()
        self._latest: dict[str | None, str] = {}
        self.size_bytes = 0
        """Upper bound of the memory that the histories take."""

    @property
    def held_bytes(self) -> int:
        return self.size_bytes + self.tool_values.size

    @override
    def __getitem__(self, response_id: str) -> History:
        history = self._by_id[response_id].history
        self._by_id.move_to_end(response_id)
        return history

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._by_id))

    @override
    def __len__(self) -> int:
        return len(self._by_id)

    def remember(self, lane: str | None, response_id: str, history: History) -> None:
        """Keep a finished response, unless it is larger than the whole memory: no other is dropped
        for it.
        """
        size_bytes = sum(map(_size_bytes, history.items))
        if size_bytes > self._bytes_max:
            return
        self._by_id[response_id] = _Remembered(history, lane, size_bytes)
        self._latest[lane] = response_id
        self.size_bytes += size_bytes
        while self.size_bytes > self._bytes_max:
            self.drop_least_wanted()
        self._make_room()

    def drop_least_wanted(self) -> None:
        """Drop a response; without any the values of tools."""
        if self._by_id:
            self._drop(self._least_wanted())
        else:
            self.tool_values.clear()

    def forget(self, lane: str | None, response_id: str | None) -> None:
        """Drop a response that this lane failed to continue."""
        entry = self._by_id.get(response_id) if response_id is not None else None
        if response_id is not None and entry is not None and entry.lane == lane:
            self._drop(response_id)

    def _least_wanted(self) -> str:
        latest = set(self._latest.values())
        others = (response_id for response_id in self._by_id if response_id not in latest)
        return next(others, None) or next(iter(self))

    def _drop(self, response_id: str) -> None:
        entry = self._by_id.pop(response_id)
        self.size_bytes -= entry.size_bytes
        if self._latest.get(entry.lane) == response_id:
            del self._latest[entry.lane]


def _size_bytes(item: ContextItem) -> int:
    texts = len(item.json) + len(item.includable or b"")
    return ITEM_BYTES + texts + ID_BYTES * len(item.ids or ())


class Sessions:
    """Connections of a process. `remembered_bytes_max` bounds their memories together."""

    def __init__(
        self,
        *,
        connections_max: int,
        metrics: Metrics,
        remembered_bytes_max: int = REMEMBERED_BYTES_MAX,
    ) -> None:
        self.places = FairPlaces(
            connections_max,
            "The server has as many open connections as it takes. Please retry in a moment, or use "
            "POST /v1/responses.",
        )
        self._metrics = metrics
        self._remembered_bytes_max = remembered_bytes_max
        self._memories: dict[int, tuple[Hashable, Memory]] = {}
        self.leaving = asyncio.Event()
        """Set when the process ends: connections close once they are at rest."""

    @contextmanager
    def connected(self, tenant: Hashable) -> Iterator[Memory]:
        """Hold a place for a connection. Raises `RateLimited`, and `Leaving`."""
        if self.leaving.is_set():
            raise Leaving
        memory = Memory(CONNECTION_BYTES_MAX, self._make_room)
        with self.places.taken(tenant):
            self._memories[id(memory)] = tenant, memory
            self._metrics.connection_opened()
            try:
                yield memory
            finally:
                del self._memories[id(memory)]
                self._metrics.connection_closed()

    def _make_room(self) -> None:
        # Drops from the largest memories of the tenant that has most, until the rest fits.
        memories = self._memories.values()
        while sum(memory.held_bytes for _, memory in memories) > self._remembered_bytes_max:
            of_tenants: Counter[Hashable] = Counter()
            for tenant, memory in memories:
                of_tenants[tenant] += memory.held_bytes
            [(most, _)] = of_tenants.most_common(1)
            own = (memory for tenant, memory in memories if tenant == most)
            max(own, key=lambda memory: memory.held_bytes).drop_least_wanted()

    def close(self) -> None:
        self.leaving.set()
