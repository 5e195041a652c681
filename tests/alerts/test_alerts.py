"""Each alert fires for its fault, and for no other, and is over once the fault is.

A Prometheus has the rules of `deploy`, on a clock that goes `HURRY` times as fast.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.alerts import faults
from tests.alerts.deployment import deployment, until
from tests.alerts.hurried import HURRY
from tests.fakes.boards import rules
from tests.fakes.prometheus import PROGRAM, prometheus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from tests.alerts.deployment import Deployment
    from tests.fakes.prometheus import Prometheus

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.skipif(PROGRAM is None, reason="prometheus is not installed; Debian has it"),
]

SCRAPED_EACH: Final = "2s"
"""A scrape may take as long: a replica that is merely slow is not down."""
FIRES_WITHIN_S: Final = 6 * 3_600 / HURRY + 60.0
"""The longest window of the rules: behind it nothing of the tests before is in it."""
OVER_WITHIN_S: Final = 180.0
ERRORS: Final = frozenset({"ErrorBudgetBurnsFast", "ErrorBudgetBurns"})
LATE: Final = frozenset({"FirstTokensLateFast", "FirstTokensLate"})
SLOW: Final = frozenset({"CommitsSlowFast", "CommitsSlow"})
STORED: Final = SLOW | {"LimitsNotShared", "UsageBehind"}
"""What also needs the database."""


@dataclass(frozen=True)
class Case:
    """A fault, the alerts that it fires, and those that it may fire by what it does to users."""

    fault: Callable[[Deployment], AbstractAsyncContextManager[None]]
    fires: frozenset[str]
    may_fire: frozenset[str] = frozenset()


def case(fault: Any, *fires: str, may_fire: frozenset[str] = frozenset()) -> Case:
    return Case(fault, frozenset(fires), may_fire)


CASES: Final = (
    case(faults.failing_responses, *ERRORS),
    case(faults.slow_first_tokens, *LATE),
    case(faults.slow_commits, *SLOW),
    case(faults.replica_dead, "ReplicaDown"),
    case(faults.replica_dead_with_responses, "ReplicaDown", "TakeoversHigh"),
    case(faults.backend_dead, "BackendDown"),
    case(faults.backends_dead, "NoBackend", "BackendDown", *ERRORS),
    case(faults.broken_generations, "BackendsBreakOff"),
    case(faults.discovery_broken, "DiscoveryFails"),
    case(faults.no_slots, "FleetFull", may_fire=ERRORS | LATE),
    case(faults.database_dead, "DatabaseFails", *ERRORS, may_fire=STORED),
    case(faults.database_read_only, "DatabaseFails", *ERRORS, may_fire=STORED),
    case(faults.long_transaction, "UsageBehind"),
    case(faults.locked_sums, "UsageBehind", may_fire=frozenset({"DatabaseFails"})),
    case(faults.billing_down, "UsageExportBehind"),
    case(faults.wrong_sums, "UsageDisagrees"),
    case(faults.no_right_to_counters, "LimitsNotShared", "DatabaseFails"),
    case(faults.storage_used, "StorageNearlyFull"),
    case(faults.tool_server_dead, "McpServerFails"),
    case(faults.search_key_refused, "SearchKeyRefused"),
    case(faults.repaired_turns, "RepairsHigh"),
)


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deployment]:
    async with deployment(tmp_path_factory.mktemp("deployment")) as one:
        yield one


@pytest.fixture(scope="module")
def watching(running: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("prometheus")
    with prometheus(folder, running.targets, hurry=HURRY, scraped_each=SCRAPED_EACH) as server:
        yield server


def test_every_alert_has_a_fault() -> None:
    fired = {name for one in CASES for name in one.fires}
    assert fired == {rule["alert"] for rule in rules() if "alert" in rule}


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.fault.__name__)
async def test_a_fault_fires_its_alerts_and_no_others(
    one: Case, running: Deployment, watching: Prometheus
) -> None:
    await quiet(watching)
    since = time.time()
    async with one.fault(running):
        injected = time.monotonic()
        await until(
            lambda: watching.fired(since) >= one.fires,
            FIRES_WITHIN_S,
            lambda: f"of {set(one.fires)} only {watching.fired(since)} fired",
        )
        mended = time.monotonic()
    await quiet(watching)
    over = time.monotonic()
    fired = watching.fired(since)
    print(f"{sorted(fired)}: after {mended - injected:.0f} s, over {over - mended:.0f} s later")
    assert fired - one.may_fire == one.fires


async def quiet(watching: Prometheus) -> None:
    """Wait until no alert fires, and each replica was scraped: of a counter that has never been
    seen lower nobody can tell that it has grown.
    """
    await until(
        lambda: watching.scraped() and not watching.firing(),
        OVER_WITHIN_S,
        lambda: f"{watching.firing()} still fire",
    )
