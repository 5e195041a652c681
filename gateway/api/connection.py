"""Stop working for a client that has gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from gateway.api.body import ClientDisconnected

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.types import Receive


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do `work` unless the client goes away first: then cancel it and raise `ClientDisconnected`.

    The request body must have been read: whatever `receive` brings next is the disconnect.
    """
    failure: Exception | None = None
    async with asyncio.TaskGroup() as group:
        scope = asyncio.timeout(None)
        watching = group.create_task(_watch(receive, scope))
        try:
            async with scope:
                await work
        except Exception as error:  # noqa: BLE001 - raised again below, outside of the group
            failure = error
        watching.cancel()
    if scope.expired():
        raise ClientDisconnected
    if failure is not None:
        raise failure


async def _watch(receive: Receive, scope: asyncio.Timeout) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.reschedule(asyncio.get_running_loop().time())
