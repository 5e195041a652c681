"""Stop working for a client that has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from gateway.api.body import ClientDisconnected

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.types import Receive, Scope

CONNECTION: Final = "gateway.connection"
"""The ASGI extension of a server that tells when a client has gone: `{"watch": Watch}`."""

TRUST: Final = "gateway.trust"
"""The ASGI extension of a server that wants to know who has a valid API key: `{"trust": ...}`. It
is there until that is known. When connections are too many, those without one are closed first.
"""

Watch = Callable[[Callable[[], None] | None], None]
"""Has the server call back once, when the connection is lost, or at once if it is; None: no more.

It spares a request the task that `receive` needs to say the same.
"""


def trust(scope: Scope) -> None:
    """Tell the server, if it wants to know, that the client has shown a valid API key."""
    extension = (scope.get("extensions") or {}).get(TRUST)
    if extension is not None:
        extension["trust"]()


class Absence:
    """What the loss of a connection does: the task that works for it is cancelled, once."""

    __slots__ = ("_is_over", "_task", "is_noticed")

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._is_over = False
        self.is_noticed = False

    def notice(self) -> None:
        """The client has gone: cancel the task when it sleeps. One that runs just now may be at
        its end, and then nothing must be left that would cancel it later.
        """
        asyncio.get_running_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        if not self._is_over and not self.is_noticed and self._task is not None:
            self.is_noticed = True
            self._task.cancel()

    def settle(self) -> bool:
        """The work is over, however it ended. Whether the task was cancelled for this alone."""
        self._is_over = True
        return self.is_noticed and self._task is not None and not self._task.uncancel()


def while_connected(
    scope: Scope, receive: Receive, work: Coroutine[Any, Any, None]
) -> Coroutine[Any, Any, None]:
    """Do `work` unless the client goes away first: then cancel it and raise `ClientDisconnected`.

    The request body must have been read: whatever `receive` brings next is the disconnect.
    """
    extension = (scope.get("extensions") or {}).get(CONNECTION)
    if extension is not None:
        return _watched(work, extension["watch"])
    return _listened(work, receive)


async def _listened(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    failure = None
    async with asyncio.TaskGroup() as group:
        watch = _Watching(receive, group)
        try:
            await _watched(work, watch)
        except Exception as error:  # noqa: BLE001 - raised again, outside of the group
            failure = error
    if failure is not None:
        raise failure


async def _watched(work: Coroutine[Any, Any, None], watch: Watch) -> None:
    absence = Absence()
    watch(absence.notice)
    try:
        await work
    except BaseException:
        if absence.settle():
            raise ClientDisconnected from None
        raise
    else:
        if absence.settle():
            raise ClientDisconnected
    finally:
        watch(None)


class _Watching:
    """`Watch` of a server that only tells through `receive`: it takes a task to listen."""

    def __init__(self, receive: Receive, group: asyncio.TaskGroup) -> None:
        self._receive = receive
        self._group = group
        self._listening: asyncio.Task[None] | None = None

    def __call__(self, when_lost: Callable[[], None] | None) -> None:
        if when_lost is not None:
            self._listening = self._group.create_task(self._listen(when_lost))
        elif self._listening is not None:
            self._listening.cancel()

    async def _listen(self, when_lost: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        when_lost()
