"""The client of one request: its connection, and that it has left.

`gateway.server` offers the connection as an ASGI extension; with another server a request is served
without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, Self

if TYPE_CHECKING:
    from types import TracebackType

    from starlette.types import Scope


EXTENSION: Final = "gateway.connection"
"""In `scope["extensions"]`: `{"connection": ClientConnection}`."""

OnDisconnect = Callable[[], None]


class ClientDisconnected(Exception):
    """Loss of the client: it has closed its connection, or does not read."""


class ClientConnection(Protocol):
    """The connection of one request. That of a WebSocket has `trust` only.

    Middleware that wants to see the body takes the extension out of the scope.
    """

    def write_part(self, part: bytes, /) -> bool:
        """Write bytes of the response's body, without ending it, in one call instead of a
        coroutine.

        Return False, with nothing written, if `send` would wait or refuse it.
        """
        ...

    def watch(self, on_disconnect: OnDisconnect | None, /) -> None:
        """Call `on_disconnect` once when the client leaves, or now if it has left; None: stop.

        It replaces a task that waits in `receive`.
        """
        ...

    def trust(self) -> None:
        """Mark the connection as one whose client has shown a valid API key.

        When connections are too many, those without a key are closed first.
        """
        ...


def connection_of(scope: Scope) -> ClientConnection | None:
    """Return the connection of a request; None if the server lacks the extension."""
    extension = (scope.get("extensions") or {}).get(EXTENSION)
    return None if extension is None else extension["connection"]


class CancelOnDisconnect:
    """Context that cancels the task that entered it once its client has left; then
    `ClientDisconnected` is raised, whatever the result of the work.

    The body of the request must have been read: until then `receive` reports a disconnect. With a
    server without the extension nothing is cancelled, and the work goes on to its end.
    """

    __slots__ = ("_connection", "_is_cancelled", "_is_over", "_task")

    def __init__(self, connection: ClientConnection | None = None) -> None:
        """Watch `connection` for the client's disconnect; others may call `client_gone`, too."""
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
        # Later, when the task sleeps: a task that is running may be about to leave the block, and
        # must not be cancelled after it.
        asyncio.get_running_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        if not self._is_over and not self._is_cancelled and self._task is not None:
            self._is_cancelled = True
            self._task.cancel()
