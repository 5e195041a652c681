"""Stop working for a client that has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gateway.api.body import ClientDisconnected

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.types import Receive, Scope

CONNECTION: Final = "gateway.connection"
"""The ASGI extension of a server that tells when a client has gone: `{"watch": Watch}`."""

Watch = Callable[[Callable[[], None] | None], None]
"""Has the server call back once, when the connection is lost, or at once if it is; None: no more.

It spares a request the task that `receive` needs to say the same.
"""


async def while_connected(scope: Scope, receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do `work` unless the client goes away first: then cancel it and raise `ClientDisconnected`.

    The request body must have been read: whatever `receive` brings next is the disconnect.
    """
    extension = (scope.get("extensions") or {}).get(CONNECTION)
    working = asyncio.timeout(None)
    if extension is not None:
        failure = await _outcome(working, work, extension["watch"])
    else:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(_watch(receive, working))
            failure = await _outcome(working, work, _nobody)
            watching.cancel()
    if working.expired():
        raise ClientDisconnected
    if failure is not None:
        raise failure


async def _outcome(
    working: asyncio.Timeout, work: Coroutine[Any, Any, None], watch: Watch
) -> Exception | None:
    """What `work` raised, to be raised where no group of tasks wraps it up."""
    try:
        async with working:
            watch(partial(_expire, working))
            try:
                await work
            finally:
                watch(None)
    except Exception as error:  # noqa: BLE001 - raised again by the caller
        return error
    return None


async def _watch(receive: Receive, working: asyncio.Timeout) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    _expire(working)


def _nobody(_: Callable[[], None] | None) -> None:
    """There is a task that watches."""


def _expire(working: asyncio.Timeout) -> None:
    working.reschedule(asyncio.get_running_loop().time())
