"""What simulated backends saw of the requests that carried a given text."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx2

WAIT_S = 60.0
SETTLED = frozenset({"stop", "length", "disconnected", "rejected", "die", "error", "end", "abort"})


@dataclass(frozen=True)
class Backends:
    """Simulated backends at `urls`."""

    urls: tuple[str, ...]
    client: httpx2.AsyncClient

    async def seen(self, request_id: str = "", *, with_ids: bool = True) -> list[dict[str, Any]]:
        """The requests of every backend; those only whose name begins so."""
        asked = {"ids": str(with_ids).lower(), "request_id": request_id}
        rows: list[dict[str, Any]] = []
        for url in self.urls:
            answer = await self.client.get(f"{url}/simulator/requests", params=asked)
            rows += answer.json()["requests"]
        return rows

    async def of_response(self, response_id: str) -> list[dict[str, Any]]:
        """The requests that were made for one response, in the order of its turns."""
        rows = await self.seen(response_id.removeprefix("resp_"))
        return sorted(rows, key=lambda row: row["request_id"])

    async def until(
        self, wanted: Callable[[list[dict[str, Any]]], bool], *, with_ids: bool = False
    ) -> list[dict[str, Any]]:
        """Look again until what they saw is as wanted; fails after `WAIT_S`."""
        async with asyncio.timeout(WAIT_S):
            while not wanted(rows := await self.seen(with_ids=with_ids)):  # noqa: ASYNC110 - HTTP
                await asyncio.sleep(0.01)
        return rows
