from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, NoReturn

from gateway.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


async def run_periodically(
    work: Callable[[], Awaitable[object]],
    interval_s: float,
    report: Callable[..., None],
    failure: str,
    *,
    at_once: bool = False,
) -> NoReturn:
    """Do `work` after pauses of half to all of `interval_s`, which spread the replicas out.

    Database errors are reported as a `failure`. `at_once`: without a first pause.
    """
    while True:
        if not at_once:
            await asyncio.sleep(random.uniform(0.5, 1.0) * interval_s)  # noqa: S311 - no secret
        at_once = False
        try:
            await work()
        except StoreError as error:
            report(failure, error=error)
