"""ASGI extension of `gateway.server`; other servers lack it, and serve requests without it."""

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
    """Disconnect of a client, or its failure to read."""


class ClientConnection(Protocol):
    """Connection of one request; that of a WebSocket has `trust` only.

    Middleware that wants to see the body must remove the extension from the scope.
    """

    def write_part(self, part: bytes, /) -> bool:
        """Write a part of the response's body without a coroutine.

        Returns False, with nothing written, if `send` would wait or refuse it.
        """
        ...

    def watch(self, on_disconnect: OnDisconnect | None, /) -> None:
        """Call back once, when the client leaves or now if it has left; None: stop."""
        ...

    def trust(self) -> None:
        """Exempt an authenticated client from being closed when connections are too many."""
        ...


def connection_of(scope: Scope) -> ClientConnection | None:
    extension = (scope.get("extensions") or {}).get(EXTENSION)
    return None if extension is None else extension["connection"]


class CancelOnDisconnect:
    """Context that cancels its task when the client leaves, and then raises `ClientDisconnected`.

    Read the body of the request before: until then `receive` reports a disconnect. With a server
    without the extension nothing is cancelled.
    """

    __slots__ = ("_connection", "_is_cancelled", "_is_over", "_task")

    def __init__(self, connection: ClientConnection | None = None) -> None:
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
        # Not now: a running task may be about to leave the block, and must not be cancelled after
        # it.
        asyncio.get_running_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        if not self._is_over and not self._is_cancelled and self._task is not None:
            self._is_cancelled = True
            self._task.cancel()
