"""`make bench`: what the gateway costs, side by side with others, in one run.

    python -m tests.load.bench [--quick] [--only a,b] [--systems …] [--repetitions N] [--save]

Everything is a process of its own on the loopback interface. CPU is what the operating system
charges the processes under test. Every answer is checked; one that is wrong voids the run.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from tests.load import programs, readme_figures, registry, results, table
from tests.load.machine import Machine
from tests.load.processes import RowFailed, RunVoid, interruptible
from tests.load.stack import running_stack
from tests.load.systems import EXPLANATIONS, SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.load.registry import Workload
    from tests.load.results import Measured
    from tests.load.stack import Stack

REPETITIONS: Final = 5
EXIT_VOID, EXIT_NO_COMPILER, EXIT_INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 when the run is void, 2 without a C compiler, 130 when interrupted."""
    options = _options(arguments)
    machine = Machine.current()
    repetitions = options.repetitions or (1 if options.quick else REPETITIONS)
    print(f"{machine}\nrepetitions: {repetitions}, rows in turn; every figure is a median")
    measured: list[Measured] = []
    try:
        built = programs.build()
        with interruptible(), running_stack(built, options.systems) as stack:
            _print_missing(options.systems, stack)
            for workload in options.only:
                taken = _measure(workload, stack, repetitions, quick=options.quick)
                print("\n" + table.render(taken), flush=True)
                measured.append(taken)
    except programs.NoCompiler as error:
        print(f"cannot measure: {error}", file=sys.stderr)
        return EXIT_NO_COMPILER
    except RunVoid as error:
        print(f"\nVOID: {error}", file=sys.stderr)
        return EXIT_VOID
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        exit_code = EXIT_INTERRUPTED
    else:
        exit_code = 0
    if options.save and measured:  # what is whole of a run that was interrupted, too
        print("\n" + results.save(machine, repetitions, measured))
        if not options.quick:
            now = datetime.now(UTC)
            readme_figures.keep(results.as_document(machine, repetitions, measured, at=now))
    return exit_code


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.load.bench",
        description=(__doc__ or "").splitlines()[0],
        epilog=f"systems:\n{EXPLANATIONS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="less of everything, in two minutes")
    parser.add_argument("--only", metavar="LETTERS", help="workloads, such as a,b")
    parser.add_argument("--systems", metavar="NAMES", help="default: all that are installed")
    parser.add_argument("--repetitions", type=int, choices=range(1, 21), metavar="N")
    parser.add_argument("--save", action="store_true", help="write files into tests/load/results")
    options = parser.parse_args(arguments)
    letters = options.only.split(",") if options.only else None
    try:
        options.only = registry.chosen(letters, quick=options.quick)
    except ValueError as error:
        parser.error(str(error))
    # Others take minutes where nginx and the gateway take seconds.
    ours = [name for name, system in SYSTEMS.items() if not (options.quick and system.is_peer)]
    options.systems = options.systems.split(",") if options.systems else ours
    unknown = [name for name in options.systems if name not in SYSTEMS]
    if unknown:
        parser.error(f"no system {', '.join(unknown)}: there are {', '.join(SYSTEMS)}")
    return options


def _print_missing(wanted: Sequence[str], stack: Stack) -> None:
    missing = [name for name in wanted if name not in stack.offered]
    if missing:
        print(f"not installed here, so not compared: {', '.join(missing)}")


def _measure(workload: Workload, stack: Stack, repetitions: int, *, quick: bool) -> Measured:
    """All samples of one workload. Raises `RunVoid`."""
    taken = results.Measured(workload, {row: [] for row in workload.rows(stack)})
    began = time.monotonic()
    with workload.opened(stack, quick=quick) as measure:
        for repetition in range(repetitions):
            for row in table.rotated(list(taken.samples), repetition):
                if row in taken.failures:
                    continue
                try:
                    taken.samples[row].append(measure(row))
                except RowFailed as error:
                    taken.failures[row] = str(error)
                    taken.samples[row].clear()
    taken.seconds = time.monotonic() - began
    return taken


if __name__ == "__main__":
    sys.exit(main())
