"""One tenant floods one process, another one goes on: `python -m tests.load.noisy [FLOOD …]`.

Floods: `streams` (1,000 slow ones), `unpaced` (500, as fast as can be), `prompts` (16 of
4 MB at a time), `background` (10,000). Prints what the other tenant saw: statuses, and its time to
the first token, calm and during each. Beside it the backend is asked for the same, by nobody's key:
what is late there is late whatever the gateway does.

The flood comes from a process of its own that gives way to the others: what is measured is the
gateway, and not who asks. With `--running-max` the backend does so many at once.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
import tempfile
import time
from argparse import ArgumentParser
from asyncio.subprocess import PIPE
from collections import Counter
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx2

from gateway.store.migration.migrate import upgrade
from tests.fakes.gateway import gateway_settings, new_key
from tests.fakes.harmony_script import script_ids
from tests.fakes.postgres import PostgresServer, embedded, reachable_folder
from tests.fakes.processes import gateway_process, reserved_port, simulator_process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MODEL: Final = "gpt-oss-20b"
SLOW: Final = "[[sim tokens_per_s=1 tokens=100000 think=none]] go"
FAST: Final = "[[sim tokens=100000 think=none]] go"
SHORT: Final = "[[sim tokens=20 think=none]] go"
FLOODS: Final = ("streams", "prompts", "background", "unpaced")
ASKED: Final = 100
PATIENCE_S: Final = 20.0
"""Who has no first token by then has none."""
RISING_S: Final = 8.0
"""So long a flood rises until it is looked what the other tenant sees."""
SECTIONS: Final[dict[str, Any]] = {"server": {"connections_max": 4096}}


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


class Asking:
    """One request again and again: statuses, and seconds until a line of the answer has `first`."""

    def __init__(
        self, one: httpx2.AsyncClient, path: str, body: dict[str, Any], first: str
    ) -> None:
        self.statuses: Counter[int] = Counter()
        self.waits: list[float] = []
        self._one = one
        self._path = path
        self._body = {"model": MODEL, "stream": True, **body}
        self._first = first

    async def ask(self) -> None:
        began = time.perf_counter()
        wait_s = math.inf
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(PATIENCE_S),
                self._one.stream("POST", self._path, json=self._body) as answer,
            ):
                self.statuses[answer.status_code] += 1
                async for line in answer.aiter_lines():
                    if self._first in line:
                        wait_s = min(wait_s, time.perf_counter() - began)
        self.waits.append(wait_s)

    def told(self) -> str:
        waits = sorted(self.waits)
        p50, p99 = (1000 * waits[int(q * (len(waits) - 1))] for q in (0.5, 0.99))
        return f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, slowest {1000 * waits[-1]:.0f} ms"


async def seen(name: str, b: httpx2.AsyncClient, backend: httpx2.AsyncClient) -> None:
    """Print what the other tenant sees, ten times a second, and how soon the backend begins."""
    asked = Asking(b, "/v1/responses", {"input": SHORT, "store": False}, "output_text.delta")
    prompt = script_ids(f"<|start|>user<|message|>{SHORT}<|end|><|start|>assistant")
    wanted = {"prompt": prompt, "max_tokens": 100, "return_token_ids": True}
    alone = Asking(backend, "/v1/completions", wanted, "token_ids")
    async with asyncio.TaskGroup() as group:
        for _ in range(ASKED):
            for one in (asked, alone):
                group.create_task(one.ask())
                await asyncio.sleep(0.05)
    print(
        f"{name}: B {dict(asked.statuses)}, first token {asked.told()};"
        f" the backend's {alone.told()}",
        flush=True,
    )


async def many(count: int, work: Callable[[], Awaitable[None]], at_once: int) -> None:
    places = asyncio.Semaphore(at_once)

    async def one() -> None:
        async with places:
            await work()

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(one())


async def flooded(name: str, url: str, key: str) -> None:
    """Flood until it is done, or told to end (SIGTERM); then print the statuses."""
    os.nice(10)
    statuses: Counter[int] = Counter()
    async with client(url, key) as one:
        prompt = "word " * 800_000
        works: dict[str, tuple[int, Callable[[], Awaitable[None]], int]] = {
            "streams": (1_000, partial(stream, one, SLOW, statuses), 1_000),
            "unpaced": (500, partial(stream, one, FAST, statuses), 500),
            "prompts": (200, partial(post, one, statuses, input=prompt, store=False), 16),
            "background": (10_000, partial(post, one, statuses, input=SLOW, background=True), 64),
        }
        task = asyncio.create_task(many(*works[name]))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with suppress(asyncio.CancelledError, ExceptionGroup):
            await task
    print(json.dumps(statuses))


async def main(floods: list[str], running_max: int) -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(reachable_folder())
        server = PostgresServer(stack.enter_context(embedded(folder / "data")).url)
        url = server.database_url(await server.create())
        await upgrade(url, wait_s=30, connect_timeout_s=30)
        keys = [await new_key(gateway_settings(url, []), name) for name in ("a", "b")]
        port = stack.enter_context(reserved_port())
        simulator = stack.enter_context(simulator_process(port, running_max=running_max))
        own = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        gateway = stack.enter_context(gateway_process(own, url, [simulator.url], **SECTIONS))
        async with client(gateway.url, keys[1]) as b, client(simulator.url, "nobody") as backend:
            for name in ("at first", "calm"):
                await seen(name, b, backend)
            for flood in floods:
                command = (sys.executable, "-m", "tests.load.noisy", "--flood", flood)
                flooding = await asyncio.create_subprocess_exec(
                    *command, "--url", gateway.url, "--key", keys[0], stdout=PIPE
                )
                await asyncio.sleep(RISING_S)
                await seen(flood, b, backend)
                with suppress(ProcessLookupError):
                    flooding.terminate()
                output, _ = await flooding.communicate()
                print(f"  A: {output.decode().strip()}", flush=True)
                await asyncio.sleep(3)


if __name__ == "__main__":
    parser = ArgumentParser(description="One tenant floods one process, another one goes on.")
    parser.add_argument("floods", nargs="*", default=FLOODS)
    parser.add_argument("--running-max", type=int, default=256, help="of the backend, at once")
    parser.add_argument("--flood", help="be the flood")
    parser.add_argument("--url")
    parser.add_argument("--key")
    given = parser.parse_args()
    if given.flood:
        asyncio.run(flooded(given.flood, given.url, given.key))
    else:
        asyncio.run(main(given.floods, given.running_max))
