"""One workload on one system: what the client saw, and what the operating system charged for it."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING, Final

import orjson

from tests.load import processes, script
from tests.load.backend import PACE_PER_S, PACED, UNPACED
from tests.load.client import Load, Outcome

if TYPE_CHECKING:
    from tests.load.stack import Stack, System

STREAM_TIMEOUT_S: Final = 60.0
"""For all streams of one load, beyond what their pace makes them take."""
MICRO: Final = 1e6
CPU_RESOLUTION_S: Final = 1 / os.sysconf("SC_CLK_TCK")
"""The operating system counts in such steps; less than one is counted as one."""


@dataclass(frozen=True, slots=True)
class Workload:
    """`streams` connections, each with `requests` requests for `length` ids, one by one."""

    name: str
    title: str
    model: str
    length: int
    streams: int
    requests: int

    @property
    def tokens(self) -> int:
        """Of the whole load."""
        return self.streams * self.requests * self.length

    @property
    def ramp_s(self) -> float:
        """Paced streams start one by one, over the time of a stream, as users do."""
        return self.length / PACE_PER_S if self.model == PACED else 0.0

    @property
    def timeout_s(self) -> float:
        """After that the load is given up."""
        return self.ramp_s * (self.requests + 1) + STREAM_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Sample:
    """One repetition. CPU is of the system's own process; `busy` are cores used, 1.0 is one.

    `pace_per_s` is the median stream's tokens a second from its first word on.
    """

    tokens_per_s: float
    pace_per_s: float
    tokens_per_event: float
    cpu_us_per_token: float
    database_us_per_token: float
    cpu_ms_per_request: float
    first_token_p50_us: float
    first_token_p99_us: float
    system_busy: float
    backend_busy: float
    client_busy: float

    @property
    def tokens_per_core_s(self) -> float:
        """Tokens that one second of CPU of this system pays for, the database left out."""
        return MICRO / self.cpu_us_per_token


def workloads(*, quick: bool) -> tuple[Workload, ...]:
    """What is measured; quick: the same with less of it."""
    fast = "64 streams, as fast as possible"
    steady = f"64 streams of {PACE_PER_S} tokens/s"
    return (
        Workload("saturated", fast, UNPACED, length=1000, streams=64, requests=2 if quick else 4),
        Workload(
            "paced",
            steady,
            PACED,
            length=100 if quick else 200,
            streams=64,
            requests=1 if quick else 2,
        ),
        Workload("single", "one stream at a time", UNPACED, length=32, streams=1, requests=50),
    )


def measure(stack: Stack, system: System, workload: Workload) -> Sample:
    """Run the load once. Raises `RunVoid`."""
    pids = {"system": system.child.pid, "backend": stack.backend.pid}
    if system.database_pid is not None:
        pids["database"] = system.database_pid
    before = {name: processes.cpu_s(pid) for name, pid in pids.items()}
    outcome = _run(stack, system, workload)
    used = {
        name: max(processes.cpu_s(pid) - before[name], CPU_RESOLUTION_S)
        for name, pid in pids.items()
    }
    rest_s = max(median(outcome.rest_s), 1 / MICRO)  # a short answer may come in one read
    requests = workload.streams * workload.requests
    *_, p99 = quantiles(outcome.first_word_s, n=100, method="inclusive")
    return Sample(
        tokens_per_s=workload.tokens / outcome.seconds,
        pace_per_s=(workload.length - script.LEAD) / rest_s,
        tokens_per_event=workload.tokens / outcome.events,
        cpu_us_per_token=used["system"] * MICRO / workload.tokens,
        database_us_per_token=used.get("database", 0.0) * MICRO / workload.tokens,
        cpu_ms_per_request=used["system"] * 1e3 / requests,
        first_token_p50_us=median(outcome.first_word_s) * MICRO,
        first_token_p99_us=p99 * MICRO,
        system_busy=used["system"] / outcome.seconds,
        backend_busy=used["backend"] / outcome.seconds,
        client_busy=outcome.cpu_s / outcome.seconds,
    )


def _run(stack: Stack, system: System, workload: Workload) -> Outcome:
    load = Load(
        port=system.child.port,
        key=stack.key,
        dialect=system.dialect,
        model=workload.model,
        length=workload.length,
        streams=workload.streams,
        requests=workload.requests,
        ramp_s=workload.ramp_s,
        timeout_s=workload.timeout_s,
    )
    # The client gives up first, and says why.
    timeout_s = workload.timeout_s + STREAM_TIMEOUT_S
    said = processes.call("tests.load.client", orjson.dumps(asdict(load)), timeout_s)
    return Outcome(**orjson.loads(said))
