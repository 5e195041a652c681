"""The client's connection: an ASGI extension of `gateway.server`, and work that ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, Self

from gateway.api.body import ClientDisconnected

if TYPE_CHECKING:
    from types import TracebackType

    from starlette.types import Scope

EXTENSION: Final = "gateway.connection"
"""In `scope["extensions"]`: `{"connection": Connection}`."""

OnDisconnect = Callable[[], None]
WritePart = Callable[[bytes], bool]


class Connection(Protocol):
    """The connection of one request. That of a WebSocket has `trust` only.

    Whoever stands between server and application and wants to see the body takes it out of the
    scope.
    """

    def write_part(self, part: bytes, /) -> bool:
        """Write bytes that are a part of the response's body and not its last, as `send` would, but
        in one call instead of a message and a coroutine. False, and nothing was written: `send`
        would wait, or would refuse it.
        """
        ...

    def watch(self, on_disconnect: OnDisconnect | None, /) -> None:
        """Have it called once when the client has gone, or at once if it has; None: no more.

        It spares a request the task that `receive` needs to tell the same.
        """
        ...

    def trust(self) -> None:
        """The client has shown a valid API key: when connections are too many, those without one
        are closed first.
        """
        ...


def connection_of(scope: Scope) -> Connection | None:
    """The connection of a request; None where another server than ours has it."""
    extension = (scope.get("extensions") or {}).get(EXTENSION)
    return None if extension is None else extension["connection"]


class CancelOnDisconnect:
    """While entered, the task that entered is cancelled once its client has gone; then
    `ClientDisconnected` is raised, whatever became of the work.

    The body of the request must have been read: until then `receive` tells of a disconnect. A
    server without the extension tells nothing, and the work goes on to its end.
    """

    __slots__ = ("_connection", "_is_cancelled", "_is_over", "_task")

    def __init__(self, connection: Connection | None = None) -> None:
        """`connection`: what tells that the client has gone; others may call `client_gone`."""
        self._connection = connection
        self._task = asyncio.current_task()
        self._is_over = False
        self._is_cancelled = False

    def __enter__(self) -> Self:
        if self._connection is not None:
            self._connection.watch(self.client_gone)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._connection is not None:
            self._connection.watch(None)
        self._is_over = True
        if self._is_cancelled and self._task is not None and not self._task.uncancel():
            raise ClientDisconnected from None

    def client_gone(self) -> None:
        """Cancel the task when it sleeps. One that runs just now may be at its end, and then
        nothing must be left that would cancel it later.
        """
        asyncio.get_running_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        if not self._is_over and not self._is_cancelled and self._task is not None:
            self._is_cancelled = True
            self._task.cancel()
