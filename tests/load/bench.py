"""`make bench`: what the gateway costs, side by side with the bare backend, in one run.

    python -m tests.load.bench [--quick] [--repetitions N] [--only WORKLOAD] [--save]

Everything is a process of its own on the loopback interface: an embedded PostgreSQL with all its
durability, a backend that replays vLLM's frames (one token id in each), the gateway with its
default settings, and the client. CPU is what the operating system charges the process under
test. Every stream is checked; one that is wrong voids the run, which then exits with code 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.load.machine import Machine
from tests.load.measuring import Sample, measure, workloads
from tests.load.processes import RunVoid, interruptible
from tests.load.report import NOTES, table
from tests.load.stack import NGINX, running_stack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.load.measuring import Workload
    from tests.load.stack import Stack

RESULTS: Final = Path(__file__).parent / "results"
REPETITIONS: Final = 5
REPETITIONS_QUICK: Final = 2

Results = dict[str, dict[str, list[Sample]]]
"""Samples by workload and system."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 when the run is void, 130 when it was interrupted."""
    options = _options(arguments)
    chosen = [one for one in workloads(quick=options.quick) if options.only in {None, one.name}]
    repetitions = options.repetitions or (REPETITIONS_QUICK if options.quick else REPETITIONS)
    machine = Machine.current()
    print(f"{machine}\n{repetitions} repetitions, systems in turn; every figure is a median")
    try:
        with interruptible(), running_stack() as stack:
            _print_pids(stack)
            results = _run(stack, chosen, repetitions)
    except RunVoid as error:
        print(f"\nVOID: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    for workload in chosen:
        load = f"{workload.title}, {workload.length} tokens each"
        print(f"\n{workload.name}: {load}, {workload.streams * workload.requests} requests")
        print(table(workload.name, results[workload.name]))
    print(f"\n{NOTES}")
    if options.save:
        print(f"\nsaved as {_save(machine, results)}")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less of everything, in a minute")
    parser.add_argument("--repetitions", type=int, choices=range(1, 21), metavar="N")
    parser.add_argument("--only", choices=[one.name for one in workloads(quick=False)])
    parser.add_argument("--save", action="store_true", help=f"write JSON into {RESULTS.name}/")
    return parser.parse_args(arguments)


def _print_pids(stack: Stack) -> None:
    pids = {system.name.partition(",")[0]: system.child.pid for system in stack.systems}
    print("processes:", ", ".join(f"{name} {pid}" for name, pid in pids.items()))
    if NGINX not in pids:
        print("nginx is not installed here: no pass-through to compare with")


def _run(stack: Stack, chosen: Sequence[Workload], repetitions: int) -> Results:
    """All samples. Raises `RunVoid`."""
    results: Results = {
        workload.name: {system.name: [] for system in stack.systems} for workload in chosen
    }
    _warm_up(stack)
    began = time.monotonic()
    for repetition in range(repetitions):
        first = repetition % len(stack.systems)  # nobody always comes after the same one
        for workload in chosen:
            for system in (*stack.systems[first:], *stack.systems[:first]):
                sample = measure(stack, system, workload)
                results[workload.name][system.name].append(sample)
        seconds = time.monotonic() - began
        print(f"repetition {repetition + 1} of {repetitions} done after {seconds:.0f} s")
    return results


def _warm_up(stack: Stack) -> None:
    single = workloads(quick=True)[-1]
    for system in stack.systems:
        measure(stack, system, single)


def _save(machine: Machine, results: Results) -> Path:
    now = datetime.now(UTC)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{now:%Y%m%d-%H%M%S}-{machine.commit}.json"
    samples = {
        workload: {system: [asdict(one) for one in taken] for system, taken in by_system.items()}
        for workload, by_system in results.items()
    }
    document = {"at": now.isoformat(), "machine": asdict(machine), "samples": samples}
    path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
