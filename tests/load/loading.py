"""One load on one system: what the clients saw, and what the operating system charged for it."""

from __future__ import annotations

import json
import struct
import subprocess
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from tests.load import accounting
from tests.load.processes import LOG_CHARS_SHOWN, RowFailed, RunVoid, end
from tests.load.systems import SYSTEMS
from tests.load.tape import FRAMING_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from tests.load.figures import Figures
    from tests.load.processes import Child
    from tests.load.stack import Stack
    from tests.load.systems import System

T = TypeVar("T")
MICRO: Final = 1e6
KEPT_OPEN_S: Final = 60.0
"""For the whole load, beyond what its pace makes it take."""


@dataclass(frozen=True, slots=True)
class Load:
    """`streams` connections send `requests` requests in all, for `tokens` ids each.

    `rate_per_s` is the pace of each stream, 0: as fast as possible. The last connection begins
    `ramp_s` after the first one. Responses are created on the system and read from the gateway that
    listens on the port `followed_on`, if that is not 0. A file `times`, if there is to be one, is
    given the times of every word (`word_times`).
    """

    streams: int
    requests: int
    tokens: int
    rate_per_s: float = 0.0
    ramp_s: float = 0.0
    streamed: bool = True
    followed_on: int = 0
    times: str = ""

    @property
    def words(self) -> int:
        return self.tokens - FRAMING_TOKENS

    def shared(self, share: float) -> Load:
        """As many streams with fewer requests, though every stream sends one."""
        return replace(self, requests=max(int(self.requests * share), self.streams))

    @property
    def seconds_max(self) -> float:
        """After that it is given up."""
        rounds = -(-self.requests // self.streams)
        pace_s = self.tokens / self.rate_per_s if self.rate_per_s and self.streamed else 0.0
        return self.ramp_s + rounds * pace_s * 2 + KEPT_OPEN_S


def measure(
    stack: Stack,
    system: System,
    load: Load,
    *,
    children: Sequence[Child] | None = None,
    body: bytes | None = None,
    during: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> dict[str, float]:
    """Run the load once; `children` are asked in turn, otherwise the system's own process.

    `body` is another request than the system's usual one, for as many tokens. `during` is called
    with the process of the clients once the load has begun.

    Figures: those of native/load.c, `cpu_us` (of the system, per token), `database_us` (of all of
    PostgreSQL's processes), `cpu_ms_per_request`, `tokens_per_s`, `tokens_per_event`, `busy` (cores
    used by the system), `backend_busy` and `client_busy`. Raises `RunVoid`, or `RowFailed` for a
    peer.
    """
    load = load.shared(system.share)
    asked = list(children or [stack.child(system)])
    pids = [child.pid for child in asked]
    accounting.settle([*pids, *stack.database_pids(system)])
    before = _charged(pids, stack.database_pids(system), stack.backend.pid)
    seen = run(stack, system, load, asked, body=body, during=during)
    accounting.settle([*pids, *stack.database_pids(system)])
    after = _charged(pids, stack.database_pids(system), stack.backend.pid)
    system_s, database_s, backend_s = (b - a for a, b in zip(before, after, strict=True))
    tokens, seconds = load.requests * load.tokens, seen["seconds"]
    return {
        **seen,
        "cpu_us": system_s * MICRO / tokens,
        "database_us": database_s * MICRO / tokens,
        "cpu_ms_per_request": system_s * 1e3 / load.requests,
        "database_ms_per_request": database_s * 1e3 / load.requests,
        "tokens_per_s": tokens / seconds,
        "requests_per_s": load.requests / seconds,
        "tokens_per_event": seen["words"] / seen["events"],
        "busy": system_s / seconds,
        "backend_busy": backend_s / seconds,
        "client_busy": seen["cpu_s"] / seconds,
    }


def charged(stack: Stack, system: System, work: Callable[[], T]) -> tuple[T, float, float]:
    """What `work` returns, and CPU ms of the system's own process and of PostgreSQL's meanwhile."""
    pids, databases = [stack.child(system).pid], stack.database_pids(system)
    accounting.settle([*pids, *databases])
    before = _charged(pids, databases, stack.backend.pid)
    done = work()
    accounting.settle([*pids, *databases])
    after = _charged(pids, databases, stack.backend.pid)
    return done, (after[0] - before[0]) * 1e3, (after[1] - before[1]) * 1e3


def warm_up(stack: Stack, names: Iterable[str], load: Load) -> None:
    """Run it on each of these systems, for nothing. A peer that fails will fail again."""
    for name in names:
        with suppress(RowFailed):
            measure(stack, SYSTEMS[name], load)


def run(
    stack: Stack,
    system: System,
    load: Load,
    children: Sequence[Child],
    *,
    body: bytes | None = None,
    during: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> Figures:
    """What the clients saw; see `measure`."""
    file = stack.new_path("body.json")
    file.write_bytes(body or system.body(load.tokens, streamed=load.streamed))
    stack.marks.set_rate(load.rate_per_s)
    process = subprocess.Popen(
        _arguments(stack, system, load, children, file),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        if during is not None:
            during(process)
        said, complaint = process.communicate(timeout=load.seconds_max + KEPT_OPEN_S)
    except subprocess.TimeoutExpired as error:
        raise RunVoid(f"the load on {system.name} does not end") from error
    finally:
        if process.poll() is None:
            end(process)
    if process.returncode:
        reason = complaint.decode("utf-8", "replace")[-LOG_CHARS_SHOWN:].strip()
        if system.is_peer:
            raise RowFailed(reason)
        raise RunVoid(f"{system.name}: {reason}\n{stack.complaints(system)}")
    figures: dict[str, float] = json.loads(said)
    return figures


def word_times(path: Path) -> list[tuple[int, int]]:
    """When the backend sent each word and when its client read it, on the monotonic clock (ns)."""
    return list(struct.iter_unpack("<QQ", path.read_bytes()))


def _arguments(
    stack: Stack, system: System, load: Load, children: Sequence[Child], body: Path
) -> list[str]:
    arguments = [str(stack.programs.load), "--tape", str(stack.tape), *stack.marks.arguments]
    arguments += ["--ports", ",".join(str(child.port) for child in children)]
    arguments += ["--path", system.path, "--kind", system.kind, "--body", str(body)]
    arguments += ["--key", stack.key, "--words", str(load.words)]
    arguments += ["--streams", str(load.streams), "--requests", str(load.requests)]
    arguments += ["--ramp", str(load.ramp_s), "--seconds-max", str(load.seconds_max)]
    arguments += ["--follow", str(load.followed_on)] * bool(load.followed_on)
    arguments += ["--times", load.times] * bool(load.times)
    return arguments if load.streamed else [*arguments, "--documents"]


def _charged(
    pids: Iterable[int], database_pids: Iterable[int], backend_pid: int
) -> tuple[float, float, float]:
    """CPU seconds so far of the system, the database, and the backend."""
    return (
        sum(map(accounting.cpu_s, pids)),
        sum(map(accounting.cpu_s, database_pids)),
        accounting.cpu_s(backend_pid),
    )
