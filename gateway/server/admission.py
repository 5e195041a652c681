"""Choice of the connections that a server keeps when there are too many.

A connection is keyless until a request on it has shown a valid API key. Keyless ones cost a client
nothing, so they never shut out others: they may use what connections with a key leave of
`connections_max`, but at least `reserved`. When there are more, the one that has sent no complete
head for longest is closed, after what came with it is read; never while a complete request on it is
answered. Where all have shown a key, the longest idle one is closed for the next that does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import Callable

LOG_INTERVAL_S: Final = 10.0
"""Seconds between two log lines about closed connections."""

_log = EventLog(__name__)


class Abortable(Protocol):
    def abort(self) -> None:
        """Close the connection without waiting for anything."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bounds on the number of connections. `reserved` are for keyless ones."""

    connections_max: int
    reserved: int
    per_peer_max: int | None = None


class Admission:
    def __init__(
        self,
        room: Room,
        clock: Callable[[], float],
        when_read: Callable[[Callable[[], None]], object],
    ) -> None:
        # `clock` gives seconds and never goes back, as `time.monotonic`; `when_read` calls a
        # function once all is read that had come on the open connections.
        self.room = room
        self._clock = clock
        self._when_read = when_read
        self._is_making_room = False
        self._keyless: dict[Abortable, None] = {}
        self._answering = set[Abortable]()
        self._trusted = set[Abortable]()
        self._idle: dict[Abortable, None] = {}
        self._by_peer: Counter[str] = Counter()
        self._closed: Counter[str] = Counter()
        self._logged_at: dict[str, float] = {}

    def enter(self, connection: Abortable, peer: str | None) -> bool:
        """Count a new connection; another may be closed for it. Return False if `peer` has too
        many.

        Call `leave` in either case.
        """
        self._keyless[connection] = None
        if self._is_overfull and not self._is_making_room:
            self._is_making_room = True
            self._when_read(self._make_room)
        if peer is None:
            return True
        self._by_peer[peer] += 1
        limit = self.room.per_peer_max
        return limit is None or self._by_peer[peer] <= limit

    def leave(self, connection: Abortable, peer: str | None) -> None:
        self._keyless.pop(connection, None)
        self._answering.discard(connection)
        self._trusted.discard(connection)
        self._idle.pop(connection, None)
        if peer is not None:
            self._by_peer[peer] -= 1
            if not self._by_peer[peer]:
                del self._by_peer[peer]

    def head_received(self, connection: Abortable) -> None:
        # The connection is not idle any more; of those without a key it is the last to be closed.
        self._idle.pop(connection, None)
        if connection in self._keyless:
            del self._keyless[connection]
            self._keyless[connection] = None

    def request_received(self, connection: Abortable) -> None:
        # Also without a key, the connection is not closed until the request is answered.
        if connection in self._keyless:
            del self._keyless[connection]
            self._answering.add(connection)

    def answered(self, connection: Abortable, *, is_idle: bool) -> None:
        # `is_idle`: no other request has come on it, so one with a key may be closed, too.
        if connection in self._answering:
            self._answering.remove(connection)
            self._keyless[connection] = None
        elif is_idle and connection in self._trusted:
            self._idle[connection] = None

    def trust(self, connection: Abortable) -> None:
        if connection in self._keyless or connection in self._answering:
            self._keyless.pop(connection, None)
            self._answering.discard(connection)
            if self._idle and len(self._trusted) >= self.room.connections_max:
                self._close(self._idle, "closed idle connections to make room for others")
            self._trusted.add(connection)

    def has_room_for(self, connection: Abortable, *, is_probe: bool, requests: int) -> bool:
        """Return True if the next request may start beside `requests` others."""
        if connection in self._trusted:
            return True
        if connection not in self._answering and len(self._answering) >= self._keyless_max:
            return False
        if is_probe:
            return True
        connections_max = self.room.connections_max
        is_full = len(self._trusted) >= connections_max and not self._idle
        return requests < connections_max and not is_full

    @property
    def _keyless_max(self) -> int:
        return max(self.room.connections_max - len(self._trusted), self.room.reserved)

    @property
    def _is_overfull(self) -> bool:
        return len(self._keyless) + len(self._answering) > self._keyless_max

    def _make_room(self) -> None:
        self._is_making_room = False
        while self._keyless and self._is_overfull:
            self._close(self._keyless, "closed connections without a key to make room")

    def _close(self, some: dict[Abortable, None], why: str) -> None:
        oldest = next(iter(some))
        del some[oldest]
        self._trusted.discard(oldest)
        oldest.abort()
        self._closed[why] += 1
        if self._clock() - self._logged_at.get(why, float("-inf")) >= LOG_INTERVAL_S:
            self._logged_at[why] = self._clock()
            _log.warning(why, count=self._closed.pop(why))
