"""A run over a real pool and simulated backends that die, freeze and come back."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gateway.engine.failover import HopPolicy
from gateway.entries import Entry, Hop, Tokens
from gateway.telemetry.metrics import Metrics
from gateway.upstreams.backend import Backend, Timeouts
from gateway.upstreams.ejection import EjectionPolicy
from gateway.upstreams.http.client import build_client
from gateway.upstreams.pool import Pool, PoolPolicy, ProbeSchedule
from tests.fakes.following import following
from tests.fakes.harmony_script import script_ids
from tests.fakes.simulator import RunningSimulator, simulator, simulator_process
from tests.fakes.staged_run import Stage, run_spec
from tests.fakes.wayward_engine.directives import Attempts
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

PATIENT = HopPolicy(hop_wait_s=30.0, pause_s=0.01, pause_max_s=0.05)
STOP_IDS = (200002, 200012, 199999)
MODEL = "gpt-oss-20b"
BRISK = ProbeSchedule(health_interval_s=0.05, health_timeout_s=0.1)
TWICE = EjectionPolicy(failures_max=2)


@asynccontextmanager
async def pool_of(backends: Sequence[RunningSimulator], **policy: Any) -> AsyncIterator[Pool]:
    pool = Pool(
        [Backend(f"gpu-{number}", backend.url) for number, backend in enumerate(backends)],
        build_client(),
        policy=PoolPolicy(**policy),
        metrics=Metrics(),
    )
    try:
        await pool.start()
        yield pool
    finally:
        await pool.close()


def stage_of(pool: Pool, wish: str, said: Sequence[Entry] | None = None) -> Stage[Pool]:
    asked = f"<|start|>user<|message|>[[sim think=12 tokens=40 {wish}]]<|end|><|start|>assistant"
    spec = replace(run_spec(max_tokens=1000), model=MODEL, prompt_ids=script_ids(asked))
    return Stage(pool, spec=spec, hops=PATIENT, said=said)


def output(stage: Stage[Pool]) -> tuple[object, object]:
    fold = stage.live.fold
    return [turn.output_ids.tolist() for turn in fold.turns], fold.response()["output"]


def hops(stage: Stage[Pool]) -> int:
    return sum(isinstance(entry, Hop) for entry in stage.journal.entries)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["die_after=9", "abort_after=9", "error_after=9", "end_after=9", "stall_after=9"]
)
async def test_the_answer_is_the_same_however_a_backend_breaks_off(fault: str) -> None:
    attempts, options = Attempts(100), WaywardOptions()
    with ExitStack() as stack:
        fleet = [stack.enter_context(simulator(options, attempts)) for _ in range(2)]
        async with pool_of(fleet, timeouts=Timeouts(stall_s=0.3)) as pool:
            cut, whole = (stage_of(pool, f"{fault} times=2") for _ in range(2))
            await cut.run()
            await whole.run()
    assert output(cut) == output(whole)
    assert (hops(cut), hops(whole)) == (2, 0)
    assert cut.live.fold.response()["status"] == "completed"
    assert cut.live.fold.usage.output_tokens == whole.live.fold.usage.output_tokens


@pytest.mark.slow
async def test_a_request_that_kills_everybody_visits_two() -> None:
    with ExitStack() as stack:
        fleet = [stack.enter_context(simulator()) for _ in range(3)]
        async with pool_of(fleet) as pool:
            stage = stage_of(pool, "die_after=0")
            await stage.run()
        assert sum(len(backend.requests()) for backend in fleet) == 2
    assert stage.live.fold.response()["status"] == "failed"


async def until_tokens(stage: Stage[Pool]) -> None:
    """Return when something was said."""
    async for _ in following(stage.live.stream):
        if any(isinstance(entry, Tokens) for entry in stage.journal.entries):
            return


@pytest.mark.slow
async def test_a_killed_backend_costs_no_token() -> None:
    with ExitStack() as stack:
        fleet = [stack.enter_context(simulator_process(tokens_per_s=100.0)) for _ in range(2)]
        async with pool_of(fleet) as pool:
            cut = stage_of(pool, "")

            async def kill() -> None:
                await until_tokens(cut)
                busy = next(b for b in fleet if b.requests())
                busy.kill()

            await asyncio.gather(cut.run(), kill())
            whole = stage_of(pool, "")
            await whole.run()
    assert output(cut) == output(whole)
    assert hops(cut) == 1


@pytest.mark.slow
async def test_a_frozen_backend_is_left_before_patience_with_it_ends() -> None:
    with ExitStack() as stack:
        fleet = [stack.enter_context(simulator_process(tokens_per_s=100.0)) for _ in range(2)]
        async with pool_of(fleet, schedule=BRISK, ejection=TWICE, silent_s=0.2) as pool:
            cut = stage_of(pool, "")

            async def freeze() -> None:
                await until_tokens(cut)
                busy = next(b for b in fleet if b.requests())
                assert busy.process is not None
                os.kill(busy.process.pid, signal.SIGSTOP)

            async with asyncio.TaskGroup() as group:
                polling = group.create_task(pool.run())
                await asyncio.gather(cut.run(), freeze())
                polling.cancel()
            whole = stage_of(pool, "")
            await whole.run()
    assert output(cut) == output(whole)
    assert hops(cut) == 1


@asynccontextmanager
async def frozen(stage: Stage[Pool], pool: Pool, backend: RunningSimulator) -> AsyncIterator[None]:
    """The only backend, in the middle of a stream, until its checks have taken it out."""
    await until_tokens(stage)
    assert backend.process is not None
    os.kill(backend.process.pid, signal.SIGSTOP)
    member, *_ = pool.members()
    while not member.is_late:
        await pool.poll()
    try:
        yield
    finally:
        os.kill(backend.process.pid, signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.parametrize("drained_count", [0, 1])
async def test_a_stream_of_an_only_backend_outlives_a_pause_of_it(drained_count: int) -> None:
    """To break it off would end it: nobody else can go on with it, a drained one neither."""
    with ExitStack() as stack:
        starting = (simulator_process(tokens_per_s=100.0) for _ in range(1 + drained_count))
        backend, *_ = fleet = [stack.enter_context(one) for one in starting]
        async with pool_of(fleet, schedule=BRISK, ejection=TWICE, silent_s=0.0) as pool:
            pool.drain([member.name for member in pool.members()[1:]])
            cut, whole = (stage_of(pool, "") for _ in range(2))

            async def pause() -> None:
                async with frozen(cut, pool, backend):
                    await pool.poll()
                    await pool.poll()

            async with asyncio.TaskGroup() as group:
                polling = group.create_task(pool.run())
                await asyncio.gather(cut.run(), pause())
                polling.cancel()
            await whole.run()
    assert output(cut) == output(whole)
    assert hops(cut) == 0


@pytest.mark.slow
async def test_a_request_at_an_only_backend_that_stays_frozen_fails_soon() -> None:
    """It would wait for its first token for ten minutes."""
    policy = {"schedule": BRISK, "ejection": TWICE, "timeouts": Timeouts(stall_s=0.3)}
    with simulator_process(tokens_per_s=100.0) as backend:
        async with pool_of([backend], **policy) as pool:
            begun, late = (stage_of(pool, "") for _ in range(2))
            async with asyncio.TaskGroup() as group:
                polling = group.create_task(pool.run())
                running = group.create_task(begun.run())
                async with frozen(begun, pool, backend):
                    await late.run()
                await running
                polling.cancel()
    assert late.live.fold.response()["status"] == "failed"
