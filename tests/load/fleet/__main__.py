"""A fleet in virtual time: the routing of the product beside others.

    python -m tests.load.fleet [--only agents,mix] [--replicas 1,3,8] [--load 0.9] [--seeds 1,2]
                               [--seconds 400] [--others]
    python -m tests.load.fleet --scenarios capacity,failure,burst,slow,large,overload

Members are models of servers (`member.py`), prompts and when they come are drawn (`traffic.py`);
what chooses is `gateway.upstreams.routing`. Times are those of the model: compare them, and do not
take them for a server's.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.load.fleet.run import POLICIES, Plan, simulate
from tests.load.fleet.scenarios import SCENARIOS, Missed
from tests.load.fleet.targets import TARGETS, lost_by_replicas, missed
from tests.load.fleet.traffic import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.load.fleet.run import Result


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 1 where a target is missed."""
    options = _options(arguments)
    misses: list[str] = []
    if options.scenarios:
        for name in options.scenarios:
            misses += _play(name, options)
    else:
        print(f"{'workload':9} {'policy':13} {'rep':>3} {'seed':>4} {HEADING}")
        for name in options.only:
            for seed in options.seeds:
                misses += _compare(name, seed, options)
    for miss in misses:
        print(f"MISSED: {miss}")
    return int(bool(misses))


HEADING = f"{'cached':>6} {'p50':>6} {'p99':>6} {'≤3 s':>6} {'tok/s':>6} {'busiest':>7}"


def _compare(name: str, seed: int, options: argparse.Namespace) -> Iterator[str]:
    plan = Plan(name, load=options.load, seconds=options.seconds, seed=seed)
    oracle = simulate(replace(plan, policy="oracle", replicas=1))
    _show(name, "oracle", 1, seed, oracle)
    shares = {}
    for replicas in options.replicas:
        ours = simulate(replace(plan, replicas=replicas))
        _show(name, "prefix", replicas, seed, ours)
        if name in TARGETS and options.load == 0.9:
            yield from missed(name, ours, oracle)
        shares[replicas] = ours.share
    yield from lost_by_replicas(name, shares)
    if options.others:
        for policy in POLICIES.keys() - {"oracle"}:
            _show(name, policy, 3, seed, simulate(replace(plan, policy=policy)))


def _play(name: str, options: argparse.Namespace) -> Iterator[str]:
    for seed in options.seeds:
        for line in SCENARIOS[name](seed, options.seconds):
            if isinstance(line, Missed):
                yield line
            else:
                print(f"{name:8} {seed:2}  {line}", flush=True)


def _show(name: str, policy: str, replicas: int, seed: int, result: Result) -> None:
    figures = (
        f"{result.share:6.3f} {result.quantile(0.5):6.2f} {result.quantile(0.99):6.2f} "
        f"{result.in_time:6.1%} {result.goodput / result.seconds:6.0f} {result.imbalance:7.2f}"
    )
    print(f"{name:9} {policy:13} {replicas:3} {seed:4} {figures}", flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.load.fleet", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", type=_names, default=list(TARGETS), metavar="WORKLOADS")
    parser.add_argument("--replicas", type=_numbers, default=[1, 3, 8], metavar="N,N")
    parser.add_argument("--seeds", type=_numbers, default=[1], metavar="N,N")
    parser.add_argument("--load", type=float, default=0.9, help="of what the oracle carries")
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--others", action="store_true", help="other policies, too")
    parser.add_argument("--scenarios", type=_scenarios, default=[], metavar="NAMES")
    return parser.parse_args(arguments)


def _names(words: str) -> list[str]:
    names = words.split(",")
    if unknown := set(names) - WORKLOADS.keys():
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
    return names


def _scenarios(words: str) -> list[str]:
    names = words.split(",")
    if unknown := set(names) - SCENARIOS.keys():
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
    return names


def _numbers(words: str) -> list[int]:
    return [int(word) for word in words.split(",")]


if __name__ == "__main__":
    sys.exit(main())
