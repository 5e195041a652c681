"""One tenant floods one process, another one goes on: `python -m tests.load.noisy [FLOOD …]`.

Floods: `streams` (1,000 slow ones), `unpaced` (500, as fast as can be), `prompts` (16 of
4 MB at a time), `background` (10,000). Prints what the other tenant saw: statuses, and its time to
the first token, calm and during each. Beside it the backend is asked for the same, by nobody's key:
what is late there is late whatever the gateway does.

The flood comes from a process of its own that gives way to the others: what is measured is the
gateway, and not who asks. The backend is the simulator, which does `--running-max` at once and lets
the others wait, as an engine does; or with `--native` that of `make bench`, which lets nobody wait,
and takes so little that what is late is late because of the gateway.
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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx2

from gateway.models.harmony.tokenizer import Vocabulary
from gateway.store.migration.migrate import upgrade
from tests.fakes.gateway import gateway_settings, new_key
from tests.fakes.harmony_script import script_ids
from tests.fakes.postgres import PostgresServer, embedded, reachable_folder
from tests.fakes.processes import gateway_process, reserved_port, simulator_process
from tests.load import programs
from tests.load.marks import shared_marks
from tests.load.stack import replaying
from tests.load.tape import MODEL as NATIVE_MODEL
from tests.load.tape import write_tape

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

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
ENDLESS: Final = 100_000
FEW: Final = 16
NATIVE_RATE_PER_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Backend:
    """Where it listens, what its model is called, and how its pace is set (tokens/s of a stream, 0:
    as fast as can be); that of the simulator is said in each request.
    """

    url: str
    model: str = "gpt-oss-20b"
    set_rate: Callable[[float], None] = lambda _: None


@contextmanager
def simulated(running_max: int) -> Iterator[Backend]:
    with reserved_port() as port, simulator_process(port, running_max=running_max) as simulator:
        yield Backend(simulator.url)


@contextmanager
def native(folder: Path) -> Iterator[Backend]:
    tape = folder / "tape"
    tape.write_bytes(write_tape(Vocabulary.load()))
    built = programs.build()
    with shared_marks() as marks, replaying(folder, built, tape, marks) as backend:
        yield Backend(f"http://127.0.0.1:{backend.port}", NATIVE_MODEL, marks.set_rate)


def client(url: str, key: str) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=200)
    headers = {"authorization": f"Bearer {key}"}
    return httpx2.AsyncClient(
        base_url=url, headers=headers, timeout=60, limits=limits, trust_env=False
    )


async def stream(one: httpx2.AsyncClient, statuses: Counter[int], **body: Any) -> None:
    body |= {"stream": True, "store": False, "max_output_tokens": ENDLESS}
    with suppress(httpx2.HTTPError):
        async with one.stream("POST", "/v1/responses", json=body) as answer:
            statuses[answer.status_code] += 1
            async for _ in answer.aiter_raw():
                pass


async def post(one: httpx2.AsyncClient, statuses: Counter[int], **body: Any) -> None:
    with suppress(httpx2.HTTPError):
        answer = await one.post("/v1/responses", json=body)
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
        self._body = {"stream": True, **body}
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


async def seen(name: str, model: str, b: httpx2.AsyncClient, backend: httpx2.AsyncClient) -> None:
    """Print what the other tenant sees, ten times a second, and how soon the backend begins."""
    wanted = {"model": model, "input": SHORT, "store": False, "max_output_tokens": FEW}
    asked = Asking(b, "/v1/responses", wanted, "output_text.delta")
    prompt = script_ids(f"<|start|>user<|message|>{SHORT}<|end|><|start|>assistant")
    wanted = {"model": model, "prompt": prompt, "max_tokens": FEW, "return_token_ids": True}
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


async def flooded(name: str, model: str, url: str, key: str) -> None:
    """Flood until it is done, or told to end (SIGTERM); then print the statuses."""
    os.nice(10)
    statuses: Counter[int] = Counter()
    async with client(url, key) as one:
        prompt = "word " * 800_000
        works: dict[str, tuple[int, Callable[[], Awaitable[None]], int]] = {
            "streams": (1_000, partial(stream, one, statuses, model=model, input=SLOW), 1_000),
            "unpaced": (500, partial(stream, one, statuses, model=model, input=FAST), 500),
            "prompts": (
                200,
                partial(post, one, statuses, model=model, input=prompt, store=False),
                16,
            ),
            "background": (
                10_000,
                partial(post, one, statuses, model=model, input=SLOW, background=True),
                64,
            ),
        }
        task = asyncio.create_task(many(*works[name]))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with suppress(asyncio.CancelledError, ExceptionGroup):
            await task
    print(json.dumps(statuses))


async def main(floods: list[str], running_max: int, *, is_native: bool) -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(reachable_folder())
        server = PostgresServer(stack.enter_context(embedded(folder / "data")).url)
        url = server.database_url(await server.create())
        await upgrade(url, wait_s=30, connect_timeout_s=30)
        keys = [await new_key(gateway_settings(url, []), name) for name in ("a", "b")]
        own = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        backend = stack.enter_context(native(own) if is_native else simulated(running_max))
        gateway = stack.enter_context(gateway_process(own, url, [backend.url], **SECTIONS))
        async with client(gateway.url, keys[1]) as b, client(backend.url, "nobody") as direct:
            for name in ("at first", "calm"):
                await seen(name, backend.model, b, direct)
            for flood in floods:
                backend.set_rate(0.0 if flood == "unpaced" else NATIVE_RATE_PER_S)
                arguments = ("--flood", flood, "--model", backend.model)
                flooding = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "tests.load.noisy", *arguments),
                    *("--url", gateway.url, "--key", keys[0]),
                    stdout=PIPE,
                )
                await asyncio.sleep(RISING_S)
                await seen(flood, backend.model, b, direct)
                with suppress(ProcessLookupError):
                    flooding.terminate()
                output, _ = await flooding.communicate()
                print(f"  A: {output.decode().strip()}", flush=True)
                await asyncio.sleep(3)


if __name__ == "__main__":
    parser = ArgumentParser(description="One tenant floods one process, another one goes on.")
    parser.add_argument("floods", nargs="*", default=FLOODS)
    parser.add_argument("--running-max", type=int, default=256, help="of the simulator, at once")
    parser.add_argument("--native", action="store_true", help="the backend of make bench instead")
    parser.add_argument("--flood", help="be the flood")
    parser.add_argument("--model")
    parser.add_argument("--url")
    parser.add_argument("--key")
    given = parser.parse_args()
    if given.flood:
        asyncio.run(flooded(given.flood, given.model, given.url, given.key))
    else:
        asyncio.run(main(given.floods, given.running_max, is_native=given.native))
