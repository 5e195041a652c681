"""`make fuzz`: requests that no client should send, to a whole gateway, and what became of it.

    python -m tests.fuzz [--requests N] [--visits N] [--seed N]

Two campaigns, each against a gateway of its own. In the first, bodies are made from the types of
OpenAI's client, then damaged: values of other types, nesting, huge numbers, lone surrogates, NUL,
keys twice, bytes that are no JSON. Some clients are rough with the transport, some send bodies
as frames of a WebSocket. The second is against how HTTP itself is read: requests that may be read
in two ways, trailers and bodies without an end, clients that end their side only, floods of
connections; nothing may shut out probes, or hold up the event loop for 100 ms of processor time.
Every answer must be documented and have an end, and memory must not grow. An embedded PostgreSQL, a
simulated backend and the gateway are processes of their own on the loopback interface. Exits with 1
when anything is found.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.store.migration.migrate import upgrade
from tests.fakes import janitor
from tests.fakes.gateway import gateway_settings, new_key
from tests.fakes.hosted_gateway import sections_with_tools
from tests.fakes.postgres import embedded, reachable_folder
from tests.fakes.processes import module_process, reserved_port, simulator_process
from tests.fuzz import watched, wire
from tests.fuzz.campaign import Campaign
from tests.fuzz.wire import WireCampaign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.fakes.processes import Child
    from tests.fuzz.campaign import Outcome

REQUESTS: Final = 100_000
VISITS: Final = 2000
GROWTH_BYTES_MAX: Final = 64 * 2**20
NOWHERE: Final = "127.0.0.1:9"
"""Nothing listens there: what fuzzed requests name are tools that fail, and those that run here."""
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    **sections_with_tools(NOWHERE),
    "limits": {"body_timeout_s": 3, "responses_in_flight_max": 1000},
    "background": {"tenant_queued_max": 10_000, "tenant_running_max": 500, "running_max": 500},
}


@dataclass(frozen=True)
class Target:
    """A running gateway."""

    url: str
    key: str
    child: Child

    @property
    def pid(self) -> int:
        return self.child.process.pid


@contextmanager
def running_target(settings: Mapping[str, Mapping[str, Any]]) -> Iterator[Target]:
    """A whole gateway, watched, gone afterwards."""
    with (
        reachable_folder() as folder,
        embedded(folder / "data") as postgres,
        reserved_port() as port,
        simulator_process(port) as simulator,
    ):
        asyncio.run(upgrade(postgres.url))
        key = asyncio.run(new_key(gateway_settings(postgres.url, []), "acme"))
        with module_process(
            watched.__name__, folder, postgres.url, [simulator.url], settings
        ) as gateway:
            yield Target(gateway.url, key, gateway.child)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 1 with findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--visits", type=int, default=VISITS)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args(arguments)
    print(f"{options.requests} requests, {options.visits} visits, seed {options.seed}")
    is_good = [
        _judged(_requests_to, SETTINGS, options.requests, options.seed),
        _judged(_visits_to, wire.SETTINGS, options.visits, options.seed),
    ]
    return 0 if all(is_good) else 1


def _judged(
    campaign: Callable[[Target, int, int], Outcome],
    settings: Mapping[str, Mapping[str, Any]],
    count: int,
    seed: int,
) -> bool:
    """Whether a campaign of so many found nothing; nothing is asked of one of none."""
    if not count:
        return True
    began = time.monotonic()
    with running_target(settings) as target:
        outcome = campaign(target, count, seed)
    print(report(outcome, time.monotonic() - began))
    return not outcome.findings and outcome.growth_bytes <= GROWTH_BYTES_MAX


def _requests_to(target: Target, count: int, seed: int) -> Outcome:
    campaign = Campaign(target.url, target.key, pid=target.pid, requests=count, seed=seed)
    return asyncio.run(campaign.run())


def _visits_to(target: Target, count: int, seed: int) -> Outcome:
    """Stalls are findings here: no visit asks for work."""
    known = len(watched.stalls_s(target.child.output))
    campaign = WireCampaign(target.url, target.key, pid=target.pid, visits=count, seed=seed)
    outcome = asyncio.run(campaign.run())
    stalls_s = watched.stalls_s(target.child.output)[known:]
    outcome.findings.update(f"the event loop was held up for {one} s" for one in stalls_s)
    return outcome


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
    keeper = janitor.start()  # ends what a run leaves that is terminated or killed
    sys.exit(main())
