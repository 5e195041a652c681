"""What happened, as values: what clients saw, what the database holds, what is wrong between them.

A *transcript* is everything one reader was sent for one response, over all its connections. A
*record* is all that the database holds of one response. `checker` compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from typing_extensions import override

from gateway import ids
from gateway.protocol.stream_events import TERMINAL_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from tests.chaos.oracle import Asked


class Frame(NamedTuple):
    """One event as it was received: the JSON behind `data:`, and when (monotonic seconds)."""

    data: bytes
    at_s: float


@dataclass(slots=True)
class Connection:
    """One stream from one replica, asked to begin after sequence number `after`.

    `status` is 0 when no answer came at all; `body` is that of an answer that is no stream.
    `done` says that `[DONE]` came, `left` that it was the reader who hung up.
    """

    replica: int
    after: int = -1
    opened_s: float = 0.0
    frames: list[Frame] = field(default_factory=list)
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    done: bool = False
    left: bool = False

    def events(self) -> list[dict[str, Any]]:
        """The frames, decoded."""
        return [orjson.loads(frame.data) for frame in self.frames]


@dataclass(slots=True)
class Transcript:
    """One reader: what it asked, whether to store it, and its connections in order.

    `ended` says that it was told the end: a terminal event, and `[DONE]` behind it.
    """

    question: Asked
    stored: bool
    response_id: str | None = None
    connections: list[Connection] = field(default_factory=list)
    ended: bool = False

    @property
    def uuid(self) -> UUID | None:
        """Of the response it reads; None as long as it has not heard of any."""
        return ids.parse_response_id(self.response_id) if self.response_id else None

    @property
    def last_event(self) -> dict[str, Any] | None:
        """The last one that came; None when there was none."""
        frames = [frame for one in reversed(self.connections) for frame in one.frames[-1:]]
        return orjson.loads(frames[0].data) if frames else None

    @property
    def completed(self) -> bool:
        """Was it told that the response has been completed?"""
        last = self.last_event
        return last is not None and last["type"] == "response.completed"

    def frames(self) -> Iterator[Frame]:
        """Of all connections, in the order in which they came."""
        for connection in self.connections:
            yield from connection.frames

    def longest_silence_s(self) -> float:
        """Seconds between two events that followed each other."""
        times = [frame.at_s for frame in self.frames()]
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)


def is_terminal(event: dict[str, Any]) -> bool:
    """Does nothing follow this event?"""
    return event["type"] in TERMINAL_TYPES


@dataclass(frozen=True, slots=True)
class StoredEntries:
    """One row of `events`."""

    first_entry: int
    count: int
    epoch: int
    entries: bytes


@dataclass(frozen=True, slots=True)
class UsageLine:
    """One row of `usage`."""

    input_tokens: int
    output_tokens: int
    recomputed_tokens: int


@dataclass(frozen=True, slots=True)
class Record:
    """One row of `responses`, with its log and its usage. `body` is None until it has ended."""

    uuid: UUID
    status: str
    durable: bool
    background: bool
    created_at: int
    epoch: int
    next_entry: int
    request: bytes
    body: bytes | None
    log: tuple[StoredEntries, ...] = ()
    usage: tuple[UsageLine, ...] = ()


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something that must never be: the rule it breaks, the response, and what was found."""

    rule: str
    response: str
    found: str

    @override
    def __str__(self) -> str:
        return f"{self.rule} {self.response}: {self.found}"
