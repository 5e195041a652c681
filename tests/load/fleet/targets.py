"""What the simulation must show: below that the policy has lost something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.load.fleet.run import Result

BACK_WITHIN: Final = 0.03
"""So much less may be cached with eight replicas than with one, and after a failure than before."""
IN_TIME: Final = 0.95
"""The share of requests by which capacity is measured."""
CAPACITY_TIMES: Final = 1.8
"""So much more than round robin's it is."""
HERD_TIMES: Final = 2.0
"""A member that comes back gets at most so many times its share in its first minute."""


@dataclass(frozen=True, slots=True)
class Target:
    """At 90 % with half of the sessions unstored: the least share of cached tokens, the most times
    of the oracle's 99th percentile to the first token, the least share of requests in time.
    """

    share: float
    of_oracle_p99: float
    in_time: float


TARGETS: Final = {
    "agents": Target(0.95, 3.0, 0.94),
    "mix": Target(0.92, 2.2, 0.98),
    "chat": Target(0.98, 2.0, 0.99),
    "rag": Target(0.56, 2.5, 0.98),
}


def lost_by_replicas(workload: str, shares: Mapping[int, float]) -> Iterator[str]:
    """Where many replicas find less than one; `shares` are cached shares by number of replicas."""
    for replicas, share in shares.items():
        if share < shares.get(1, 0.0) - BACK_WITHIN:
            yield f"{workload}: {share:.3f} cached with {replicas} replicas, {shares[1]:.3f} with 1"


def missed(workload: str, ours: Result, oracle: Result) -> Iterator[str]:
    """The targets that a result does not reach."""
    target = TARGETS[workload]
    if ours.share < target.share:
        yield f"{workload}: {ours.share:.3f} cached, {target.share} wanted"
    limit_s = target.of_oracle_p99 * oracle.quantile(0.99)
    if ours.quantile(0.99) > limit_s:
        yield f"{workload}: p99 {ours.quantile(0.99):.2f} s, at most {limit_s:.2f} s wanted"
    if ours.in_time < target.in_time:
        yield f"{workload}: {ours.in_time:.1%} in time, {target.in_time:.0%} wanted"
