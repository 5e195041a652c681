"""One tenant floods one process, another one goes on: `python -m tests.load.noisy [FLOOD …]`.

Floods: `streams` (1,000 slow ones), `unpaced` (500, as fast as can be), `prompts` (16 of
4 MB), `background` (10,000). Prints what the other tenant saw: statuses, and its time to the first
token, calm and during each.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx2

from gateway.store.migration.migrate import upgrade
from tests.fakes.gateway import gateway_settings, new_key
from tests.fakes.postgres import PostgresServer, embedded, reachable_folder
from tests.fakes.processes import gateway_process, reserved_port, simulator_process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MODEL: Final = "gpt-oss-20b"
SLOW: Final = "[[sim tokens_per_s=1 tokens=100000 think=none]] go"
FAST: Final = "[[sim tokens=100000 think=none]] go"
SHORT: Final = "[[sim tokens=20 think=none]] go"
ASKED: Final = 100
SECTIONS: Final[dict[str, Any]] = {
    "admission": {"slots_start": 4096, "slots_min": 4096},
    "server": {"connections_max": 4096},
}


def client(url: str, key: str) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=200)
    headers = {"authorization": f"Bearer {key}"}
    return httpx2.AsyncClient(
        base_url=url, headers=headers, timeout=60, limits=limits, trust_env=False
    )


async def stream(one: httpx2.AsyncClient, text: str, statuses: Counter[int]) -> None:
    body = {"model": MODEL, "input": text, "stream": True, "store": False}
    with suppress(httpx2.HTTPError):
        async with one.stream("POST", "/v1/responses", json=body) as answer:
            statuses[answer.status_code] += 1
            async for _ in answer.aiter_raw():
                pass


async def post(one: httpx2.AsyncClient, statuses: Counter[int], **body: Any) -> None:
    with suppress(httpx2.HTTPError):
        answer = await one.post("/v1/responses", json={"model": MODEL, **body})
        statuses[answer.status_code] += 1


async def seen(one: httpx2.AsyncClient) -> tuple[Counter[int], list[float]]:
    """Statuses and seconds to the first token of the other tenant's requests, ten a second."""
    statuses: Counter[int] = Counter()
    waits: list[float] = []

    async def ask() -> None:
        body = {"model": MODEL, "input": SHORT, "stream": True, "store": False}
        began, is_first = time.perf_counter(), True
        async with one.stream("POST", "/v1/responses", json=body) as answer:
            statuses[answer.status_code] += 1
            async for line in answer.aiter_lines():
                if is_first and "output_text.delta" in line:
                    is_first = False
                    waits.append(time.perf_counter() - began)

    async with asyncio.TaskGroup() as group:
        for _ in range(ASKED):
            group.create_task(ask())
            await asyncio.sleep(0.1)
    return statuses, sorted(waits)


def told(name: str, statuses: Counter[int], waits: list[float]) -> None:
    p50, p99 = (1000 * waits[int(q * (len(waits) - 1))] for q in (0.5, 0.99))
    print(f"{name}: B {dict(statuses)}, first token p50 {p50:.0f} ms, p99 {p99:.0f} ms", flush=True)


async def many(count: int, work: Callable[[], Awaitable[None]], at_once: int) -> None:
    places = asyncio.Semaphore(at_once)

    async def one() -> None:
        async with places:
            await work()

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(one())


async def main(floods: list[str]) -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(reachable_folder())
        server = PostgresServer(stack.enter_context(embedded(folder / "data")).url)
        url = server.database_url(await server.create())
        await upgrade(url, wait_s=30, connect_timeout_s=30)
        keys = [await new_key(gateway_settings(url, []), name) for name in ("a", "b")]
        port = stack.enter_context(reserved_port())
        simulator = stack.enter_context(simulator_process(port))
        own = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        gateway = stack.enter_context(gateway_process(own, url, [simulator.url], **SECTIONS))
        async with client(gateway.url, keys[0]) as a, client(gateway.url, keys[1]) as b:
            await seen(b)
            told("calm", *await seen(b))
            for flood in floods:
                statuses: Counter[int] = Counter()
                prompt = "word " * 800_000
                works: dict[str, tuple[int, Callable[[], Awaitable[None]], int]] = {
                    "streams": (1_000, partial(stream, a, SLOW, statuses), 1_000),
                    "unpaced": (500, partial(stream, a, FAST, statuses), 500),
                    "prompts": (200, partial(post, a, statuses, input=prompt, store=False), 16),
                    "background": (
                        10_000,
                        partial(post, a, statuses, input=SLOW, background=True),
                        64,
                    ),
                }
                task = asyncio.create_task(many(*works[flood]))
                await asyncio.sleep(5)
                told(flood, *await seen(b))
                task.cancel()
                with suppress(asyncio.CancelledError, ExceptionGroup):
                    await task
                print(f"  A: {dict(statuses)}", flush=True)
                await asyncio.sleep(3)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or ["streams", "prompts", "background", "unpaced"]))
