"""How bodies are read: bounded in size and time, and parsed where that holds up nobody else."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.api.body import read_body

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from starlette.types import Receive, Scope

    from gateway.protocol.limits import InputLimits
    from gateway.services.executor import Executor

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Bounds on what a client may send, and on how long a stream waits for its status."""

    body_bytes_max: int
    body_timeout_s: float
    start_grace_s: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What all endpoints that take a body share. `strict`: as in `requests.parse_create`."""

    threads: Executor
    limits: EdgeLimits
    input_limits: InputLimits
    strict: bool

    def body(self, scope: Scope, receive: Receive) -> Coroutine[Any, Any, bytes]:
        """All of it. Raises what `read_body` raises."""
        limits = self.limits
        return read_body(
            scope, receive, bytes_max=limits.body_bytes_max, timeout_s=limits.body_timeout_s
        )

    def parsed(self, body: bytes, parse: Callable[[bytes], T]) -> Coroutine[Any, Any, T]:
        """What `parse` makes of a body. Raises what it raises."""
        return self.threads.run(partial(parse, body), size_bytes=len(body))
