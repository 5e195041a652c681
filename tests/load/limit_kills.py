"""What limits let through while processes die: `python -m tests.load.limit_kills [seconds] [n]`.

`n` replicas (2) as processes are asked for five times what a tenant may have. After a third of the
time one is killed and replaced, after two thirds PostgreSQL is (kill -9), and comes back. Prints
what was let through, as a share of what the limits allow (a full bucket, what comes back meanwhile,
and one more full bucket, since a crash of PostgreSQL fills them), then what is refused once the
buckets are full again, though nothing else runs: a leaked place, or a leaked reservation.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx2

from gateway.admin.limits import LimitOwner, Limits
from gateway.limits.rules import MINUTE_S
from gateway.store.migration.migrate import upgrade
from gateway.store.postgres.database import Database
from tests.chaos.database import ChaosPostgres
from tests.fakes.gateway import gateway_settings, new_key
from tests.fakes.postgres import reachable_folder
from tests.fakes.processes import gateway_process, reserved_port, simulator_process

if TYPE_CHECKING:
    from gateway.limits.rules import What

REQUESTS_PER_MINUTE: Final = 600
AT_ONCE: Final = 16
TIMES: Final = 5
DOWN_S: Final = 2.0
FORGOTTEN_S: Final = 6.0
"""A little longer than places of a process that is gone count."""
BODY: Final[dict[str, Any]] = {
    "model": "gpt-oss-20b",
    "input": "[[sim tokens=20 think=none]] go",
    "max_output_tokens": 64,
}


class Asked:
    """Requests with one key, in turn to each of the replicas that there are."""

    def __init__(self, key: str) -> None:
        self.urls: list[str] = []
        self.statuses: Counter[int | str] = Counter()
        self._count = 0
        headers = {"authorization": f"Bearer {key}"}
        self._client = httpx2.AsyncClient(headers=headers, timeout=20, trust_env=False)

    async def ask(self, **body: Any) -> None:
        """Once; a refusal is not asked again."""
        self._count += 1
        url = self.urls[self._count % len(self.urls)]
        try:
            answer = await self._client.post(f"{url}/v1/responses", json={**BODY, **body})
        except httpx2.HTTPError as error:
            self.statuses[type(error).__name__] += 1
        else:
            self.statuses[answer.status_code] += 1

    async def at_rate(self, per_s: float, seconds: float, **body: Any) -> Counter[int | str]:
        """So often for so long; what came of it."""
        self.statuses = Counter()
        ends_at = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            while time.monotonic() < ends_at:
                group.create_task(self.ask(**body))
                await asyncio.sleep(1 / per_s)
        return self.statuses


async def limited(url: str) -> str:
    """A key whose tenant has limits."""
    key = await new_key(gateway_settings(url, []), "limited")
    database = Database(url, command_timeout_s=30, connect_timeout_s=30, pool_size_max=2)
    limits = Limits(database)
    place = LimitOwner.of_tenant(await limits.tenant("limited"))
    wanted: dict[tuple[What, int], int | None] = {
        ("requests", MINUTE_S): REQUESTS_PER_MINUTE,
        ("tokens", MINUTE_S): REQUESTS_PER_MINUTE * 10_000,
        ("responses", 0): AT_ONCE,
    }
    await limits.set_limits(place, wanted)
    await database.close()
    return key


async def main(seconds: float, count: int) -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(reachable_folder())
        postgres = ChaosPostgres(folder / "data", stack.enter_context(reserved_port()))
        postgres.start()
        stack.callback(postgres.stop)
        url = postgres.url
        await upgrade(url, wait_s=30, connect_timeout_s=30)
        asked = Asked(await limited(url))
        port = stack.enter_context(reserved_port())
        simulator = stack.enter_context(simulator_process(port))
        own = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        replicas = []
        for number in range(count + 1):
            (own / f"r{number}").mkdir()
            one = gateway_process(own / f"r{number}", url, [simulator.url])
            replicas.append(stack.enter_context(one))
        asked.urls = [one.url for one in replicas[:count]]
        per_s = TIMES * REQUESTS_PER_MINUTE / MINUTE_S
        load = asyncio.create_task(asked.at_rate(per_s, seconds))
        await asyncio.sleep(seconds / 3)
        asked.urls = [one.url for one in replicas[1:]]
        replicas[0].child.kill()
        print("a replica was killed", flush=True)
        await asyncio.sleep(seconds / 3)
        await asyncio.to_thread(postgres.kill)
        print("PostgreSQL was killed", flush=True)
        await asyncio.sleep(DOWN_S)
        await asyncio.to_thread(postgres.start)
        statuses = await load
        # Unlogged, buckets are full again after the crash.
        allowed = REQUESTS_PER_MINUTE * (2 + seconds / MINUTE_S)
        print(f"{statuses[200] / allowed:.1%} of {allowed:.0f} let through: {dict(statuses)}")
        await asyncio.sleep(MINUTE_S + FORGOTTEN_S)
        again = await asked.at_rate(REQUESTS_PER_MINUTE / MINUTE_S / 2, 10)
        print(f"afterwards, at half of the limit: {dict(again)}")
        asked.statuses = Counter()
        slow = "[[sim tokens_per_s=20 tokens=40 think=none]] go"
        await asyncio.gather(*(asked.ask(input=slow, store=False) for _ in range(AT_ONCE)))
        print(f"as many at once as may be: {dict(asked.statuses)}", flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        given = [*sys.argv[1:], *("90", "2")[len(sys.argv) - 1 :]]
        asyncio.run(main(float(given[0]), int(given[1])))
