"""Break things on purpose: `python -m tests.chaos SCENARIO --form full|short --seed N`.

SCENARIO is a name, or `all`. The seed is printed and gives the same schedule again. Prints a line
for each scenario and ends with code 1 when one found what it should not.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from typing import TYPE_CHECKING, Final, cast

from tests.chaos import (
    backends,
    conversations,
    disconnects,
    drain,
    frozen,
    outage,
    races,
    replicas,
    resume,
    schemas,
    tools,
)
from tests.fakes import janitor

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from tests.chaos.report import Form, Report

SCENARIOS: Final[Mapping[str, Callable[[Form, int], Coroutine[None, None, Report]]]] = {
    "backends": backends.run,
    "replicas": replicas.run,
    "unfenced": replicas.run_unfenced,
    "frozen": frozen.run,
    "resume": resume.run,
    "postgres": outage.run,
    "races": races.run,
    "disconnects": disconnects.run,
    "drain": drain.run,
    "schemas": schemas.run,
    "conversations": conversations.run,
    "unlocked": conversations.run_unlocked,
    "tools": tools.run,
    "unfenced_tools": tools.run_unfenced,
}


def main() -> int:
    """0 when all went as it should."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("scenario", choices=[*SCENARIOS, "all"])
    parser.add_argument("--form", choices=["full", "short"], default="full")
    parser.add_argument("--seed", type=int, default=None, help="default: another one every time")
    arguments = parser.parse_args()
    seed = secrets.randbelow(10**6) if arguments.seed is None else arguments.seed
    form = cast("Form", arguments.form)
    names = list(SCENARIOS) if arguments.scenario == "all" else [arguments.scenario]
    passed = True
    for name in names:
        report = asyncio.run(SCENARIOS[name](form, seed))
        print("\n".join(report.lines()), flush=True)
        passed &= report.passed
    return 0 if passed else 1


if __name__ == "__main__":
    keeper = janitor.start()  # ends what a run leaves that is terminated or killed
    sys.exit(main())
