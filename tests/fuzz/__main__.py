"""`make fuzz`: requests that no client should send, to a whole gateway, and what became of it.

    python -m tests.fuzz [--requests N] [--seed N]

Bodies are made from the types of OpenAI's client, then damaged: values of other types, nesting,
huge numbers, lone surrogates, NUL, keys twice, bytes that are no JSON. Some clients are rough with
the transport, some send their bodies as frames of a WebSocket. Every answer must be documented and
have an end, and memory must not grow. An embedded PostgreSQL, a simulated backend and the gateway
are processes of their own on the loopback interface. Exits with 1 when anything is found.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.store.migrate import upgrade
from tests.fakes.gateway import gateway_settings, new_key
from tests.fakes.postgres import embedded, reachable_folder
from tests.fakes.processes import gateway_process, reserved_port, simulator_process
from tests.fuzz.campaign import Campaign

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.fuzz.campaign import Outcome

REQUESTS: Final = 100_000
GROWTH_BYTES_MAX: Final = 64 * 2**20
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "limits": {"body_timeout_s": 3, "responses_in_flight_max": 1000},
    "background": {"tenant_queued_max": 10_000, "tenant_running_max": 500, "running_max": 500},
}


@dataclass(frozen=True)
class Target:
    """A running gateway."""

    url: str
    key: str
    pid: int


@contextmanager
def running_target() -> Iterator[Target]:
    """A whole gateway, gone afterwards."""
    with (
        reachable_folder() as folder,
        embedded(folder / "data") as postgres,
        reserved_port() as port,
        simulator_process(port) as simulator,
    ):
        asyncio.run(upgrade(postgres.url))
        key = asyncio.run(new_key(gateway_settings(postgres.url, []), "acme"))
        with gateway_process(folder, postgres.url, [simulator.url], **SETTINGS) as gateway:
            yield Target(gateway.url, key, gateway.child.process.pid)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 1 with findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args(arguments)
    print(f"{options.requests} requests, seed {options.seed}")
    began = time.monotonic()
    with running_target() as target:
        campaign = Campaign(
            target.url, target.key, pid=target.pid, requests=options.requests, seed=options.seed
        )
        outcome = asyncio.run(campaign.run())
    print(report(outcome, time.monotonic() - began))
    has_grown = outcome.growth_bytes > GROWTH_BYTES_MAX
    return 1 if outcome.findings or has_grown else 0


def report(outcome: Outcome, seconds: float) -> str:
    """What an operator wants to know of a campaign."""
    statuses = ", ".join(f"{status}: {count}" for status, count in sorted(outcome.statuses.items()))
    closes = ", ".join(f"{code}: {count}" for code, count in sorted(outcome.closes.items()))
    rough = ", ".join(f"{kind}: {count}" for kind, count in sorted(outcome.rough.items()))
    mib = 2**20
    lines = [
        f"{sum(outcome.statuses.values())} answers in {seconds:.0f} s: {statuses}",
        f"connections by close code: {closes}",
        f"rough clients: {rough}",
        f"memory: {min(outcome.memory) // mib} to {max(outcome.memory) // mib} MiB, "
        f"grown by {outcome.growth_bytes / mib:.1f} MiB since it was warm",
        f"{sum(outcome.findings.values())} findings",
        *(f"  {count} x {text}" for text, count in outcome.findings.most_common()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
