"""State that outlives a request but not its connection: unstored responses, and connections.

Only a connection that stays open can receive events of a response that nobody stores. So its memory
is bounded, belongs to it alone, and is gone with it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from gateway.cache import LruCache
from gateway.errors import Leaving, RateLimited
from gateway.services.runs.history_source import History

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.protocol.context_item import ContextItem
    from gateway.telemetry.metrics import Metrics

ITEM_BYTES: Final = 400
"""Bytes that an item costs beside its JSON and its ids: objects, and the references to them."""
ID_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class _Remembered:
    history: History
    lane: str | None
    size_bytes: int


class Memory(Mapping[str, History]):
    """The unstored responses of one connection, by their public ids: what continues them begins
    with what is here.

    Holds at most `bytes_max`. What was least recently used goes first, the latest response of a
    lane after all that are not: its client has nothing else to go on from. Every response is
    counted in full, though those of one chain share their items.
    """

    def __init__(self, bytes_max: int) -> None:
        self.tool_values: LruCache[str, Any] = LruCache(size_max=bytes_max)
        """Values that hosted tools keep for responses that are not stored: pages that the browser
        was shown. They have the same bound as the histories, and count beside them."""
        self._bytes_max = bytes_max
        self._by_id: OrderedDict[str, _Remembered] = OrderedDict()
        self._latest: dict[str | None, str] = {}
        self._size_bytes = 0

    @override
    def __getitem__(self, response_id: str) -> History:
        """Return a history and mark it as the most recently used."""
        history = self._by_id[response_id].history
        self._by_id.move_to_end(response_id)
        return history

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._by_id))

    @override
    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def size_bytes(self) -> int:
        # An upper bound of the memory that the histories take.
        return self._size_bytes

    def remember(self, lane: str | None, response_id: str, history: History) -> None:
        """Keep the history of a finished response of this lane.

        A history larger than the whole memory is not kept, and takes the place of no other.
        """
        size_bytes = sum(map(_size_bytes, history.items))
        if size_bytes > self._bytes_max:
            return
        self._by_id[response_id] = _Remembered(history, lane, size_bytes)
        self._latest[lane] = response_id
        self._size_bytes += size_bytes
        while self._size_bytes > self._bytes_max:
            self._drop(self._least_wanted())

    def forget(self, lane: str | None, response_id: str | None) -> None:
        """Drop a response that this lane failed to continue. One of another lane stays."""
        entry = self._by_id.get(response_id) if response_id is not None else None
        if response_id is not None and entry is not None and entry.lane == lane:
            self._drop(response_id)

    def _least_wanted(self) -> str:
        latest = set(self._latest.values())
        others = (response_id for response_id in self._by_id if response_id not in latest)
        return next(others, None) or next(iter(self))

    def _drop(self, response_id: str) -> None:
        entry = self._by_id.pop(response_id)
        self._size_bytes -= entry.size_bytes
        if self._latest.get(entry.lane) == response_id:
            del self._latest[entry.lane]


def _size_bytes(item: ContextItem) -> int:
    texts = len(item.json) + len(item.includable or b"")
    return ITEM_BYTES + texts + ID_BYTES * len(item.ids or ())


class Sessions:
    """The open connections of this process: how many there are, and when they have to go."""

    def __init__(self, *, connections_max: int, metrics: Metrics) -> None:
        self.connections_max = connections_max
        self._metrics = metrics
        self._open = 0
        self.leaving = asyncio.Event()
        """The process ends: nothing new may begin, and connections close once they are at rest."""

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Count one connection for the block. Raises `RateLimited` for too many, and `Leaving`."""
        if self.leaving.is_set():
            raise Leaving
        if self._open >= self.connections_max:
            raise RateLimited(
                "The server has as many open connections as it takes. Please retry in a moment, or "
                "use POST /v1/responses.",
                code="rate_limit_exceeded",
            )
        self._open += 1
        self._metrics.connection_opened()
        try:
            yield
        finally:
            self._open -= 1
            self._metrics.connection_closed()

    def close(self) -> None:
        # Connections close once they are at rest. May be called repeatedly.
        self.leaving.set()
