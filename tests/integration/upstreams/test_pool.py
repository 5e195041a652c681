"""The pool over real sockets, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx2
import orjson
import pytest

from gateway.errors import (
    ModelNotFound,
    NoUpstreamAvailable,
    UpstreamFailed,
    UpstreamLost,
    UpstreamRejected,
    UpstreamUnavailable,
)
from gateway.generation import Sampling, TokenRequest
from gateway.upstreams.backend import Backend, Timeouts
from gateway.upstreams.ejection import EjectionPolicy
from gateway.upstreams.engines import Capabilities
from gateway.upstreams.http.client import KeepAlivePolicy
from gateway.upstreams.pool import ModelInfo, ProbeSchedule
from tests.fakes.backend_captures import capture
from tests.fakes.completion_stream import failed, said, turn
from tests.fakes.failures import failure_of
from tests.fakes.fleet import BUSY, MISSING, REQUEST, backend_server, fleet, listing
from tests.fakes.raw_server import STREAM_HEAD, Act, Gate, RawServer, response
from tests.fakes.token_sinks import Faulty, Heard, Led

if TYPE_CHECKING:
    from tests.fakes.raw_server import Script


async def test_a_backend_serves_what_it_lists() -> None:
    async with fleet(backend_server(models=[listing("m", "n")])) as known:
        assert known.pool.models == (ModelInfo("m", 8192), ModelInfo("n", 8192))
        (state,) = known.pool.members()
        assert (state.version, state.healthy, state.problem) == ("0.32.0", True, None)
        assert await known.ids() == [1]


async def test_a_backend_that_lists_the_same_as_before_changes_nothing() -> None:
    lists = [listing("m"), listing("m"), listing("m", "n")]
    async with fleet(backend_server(models=lists)) as known:
        before = known.pool.models
        await known.pool.start()
        assert known.pool.models is before
        await known.pool.start()
        assert [model.id for model in known.pool.models] == ["m", "n"]


async def test_what_a_real_server_lists_is_understood() -> None:
    server = RawServer(
        {"/v1/models": [capture("l_models").reads], "/version": [capture("get_version").reads]}
    )
    async with fleet(server) as known:
        assert known.pool.models == (
            ModelInfo("gpt-oss-tiny", 8192),
            ModelInfo("my-adapter", 8192, "gpt-oss-tiny"),
        )
        assert known.pool.members()[0].version == "0.32.0"


async def test_a_server_need_not_tell_its_version() -> None:
    server = RawServer({"/v1/models": [listing("m")], "*": [MISSING]})
    async with fleet(server) as known:
        (state,) = known.pool.members()
        assert (state.version, state.models) == (None, {"m": 8192})
        assert state.can == Capabilities()


async def test_a_model_may_have_another_name_at_the_backend() -> None:
    backends = [Backend("a", "", {"m": "inner", "gone": "missing"})]
    async with fleet(backend_server(models=[listing("inner")]), backends=backends) as known:
        assert known.pool.models == (ModelInfo("m", 8192),)
        assert await known.ids() == [1]
        assert orjson.loads(known.servers[0].requests[-1].body)["model"] == "inner"


async def test_the_smallest_context_length_of_a_models_backends_counts() -> None:
    servers = [backend_server(models=[listing("m", length=n)]) for n in (9000, 7000)]
    async with fleet(*servers) as known:
        assert known.pool.models == (ModelInfo("m", 7000),)


async def test_a_configured_context_length_goes_before_what_is_listed() -> None:
    backends = [Backend("a", "", {"m": "m"}, context_lengths={"m": 4000})]
    async with fleet(backend_server(), backends=backends) as known:
        assert known.pool.models == (ModelInfo("m", 4000),)


async def test_an_unknown_model_is_not_found() -> None:
    async with fleet(backend_server()) as known:
        with pytest.raises(ModelNotFound):
            raise known.pool.absence("other")
        with pytest.raises(ModelNotFound):
            await known.ids(
                TokenRequest("r", "other", [1], Sampling(max_tokens=1), "", (), 1 << 31)
            )


async def test_a_context_length_nobody_told_is_no_backend() -> None:
    backends = [Backend("a", "", {"m": "m"})]
    async with fleet(backend_server(models=[BUSY]), backends=backends) as known:
        assert known.pool.models == ()
        with pytest.raises(NoUpstreamAvailable, match="what it serves") as caught:
            raise known.pool.absence("m")
        assert caught.value.retry_after_s == ProbeSchedule().health_interval_s
        (state,) = known.pool.members()
        assert state.problem == "GET /v1/models answered 503: busy"


async def test_a_context_length_that_no_server_tells_must_be_configured() -> None:
    untold: Script = (response(b'{"data":[{"id":"m"}]}'),)
    async with fleet(backend_server(models=[untold])) as known:
        with pytest.raises(NoUpstreamAvailable, match="context length") as caught:
            raise known.pool.absence("m")
        assert caught.value.retry_after_s == ProbeSchedule().describe_interval_s


async def test_backends_take_turns() -> None:
    async with fleet(*[backend_server() for _ in range(3)]) as known:
        for _ in range(6):
            await known.ids()
        assert known.served() == [2, 2, 2]


@pytest.mark.parametrize(
    "broken",
    [BUSY, (STREAM_HEAD, failed(503)), (Act.RESET,), (STREAM_HEAD, Act.CLOSE), (Act.CLOSE,)],
)
async def test_before_the_first_chunk_another_backend_is_tried(broken: Script) -> None:
    async with fleet(backend_server(broken), backend_server(turn([7]))) as known:
        assert await known.ids() == [7]
        assert known.in_flight() == [0, 0]
        assert known.metric("upstream_requests_total", upstream="gpu-0", outcome="unavailable") == 1
        assert known.metric("upstream_requests_total", upstream="gpu-1", outcome="ok") == 1


async def test_a_backend_that_is_gone_is_passed_over() -> None:
    async with fleet(backend_server(), backend_server(turn([7]))) as known:
        await known.servers[0].stop()
        assert await known.ids() == [7]


async def test_after_the_first_chunk_nothing_is_tried_again() -> None:
    broken: Script = (STREAM_HEAD, said([5]), Act.CLOSE)
    async with fleet(backend_server(broken), backend_server()) as known:
        with pytest.raises(UpstreamFailed) as caught:
            await known.ids()
        assert caught.value.upstream == "gpu-0"
        assert known.served() == [1, 0]
        assert known.in_flight() == [0, 0]
        assert known.metric("upstream_requests_total", upstream="gpu-0", outcome="failed") == 1


async def test_a_rejected_request_is_not_taken_elsewhere() -> None:
    refusal: Script = (response(b'{"error":{"message":"bad"}}', status=400),)
    async with fleet(backend_server(refusal), backend_server()) as known:
        with pytest.raises(UpstreamRejected):
            await known.ids()
        assert known.served() == [1, 0]
        assert known.pool.members()[0].health.failures == 0


async def test_prompts_too_long_for_a_proxy_take_no_backend_out() -> None:
    """As nginx refuses more than a megabyte, unless it is told otherwise."""
    large: Script = (response(b"<html>413 Request Entity Too Large</html>", status=413),)
    async with fleet(backend_server(*[large] * 3, turn([7]))) as known:
        for _ in range(3):
            with pytest.raises(UpstreamRejected, match="413 Request Entity Too Large"):
                await known.ids()
        assert known.pool.members()[0].health.failures == 0
        assert await known.ids() == [7]


async def test_a_rank_that_a_server_does_not_have_is_no_fault_of_a_request() -> None:
    """As where it was started anew with less of them."""
    recorded = capture("a_dprank_bad")
    refusal: Script = (response(recorded.body, status=recorded.status),)
    async with fleet(backend_server(refusal), backend_server(turn([7]))) as known:
        for _ in range(6):
            assert await known.ids() == [7]
        assert known.pool.members()[0].health.failures == 3
        assert not known.pool.members()[0].available


async def test_every_backend_is_tried_once_at_most_and_the_reasons_are_told() -> None:
    async with fleet(backend_server(BUSY), backend_server((Act.RESET,))) as known:
        with pytest.raises(NoUpstreamAvailable) as caught:
            await known.ids()
        assert "gpu-0: answered 503: busy" in str(caught.value)
        assert "gpu-1: ReadError" in str(caught.value)
        for name in ("gpu-0", "gpu-1"):
            tried = known.metric("upstream_requests_total", upstream=name, outcome="unavailable")
            assert tried == 1


@pytest.mark.parametrize(("told", "expected"), [("7", 7.0), ("soon", None)])
async def test_when_a_busy_backend_says_to_try_again_is_told(
    told: str, expected: float | None
) -> None:
    busy: Script = (response(b"busy", status=429, headers=f"Retry-After: {told}\r\n"),)
    async with fleet(backend_server(busy), backend_server(BUSY)) as known:
        with pytest.raises(NoUpstreamAvailable) as caught:
            await known.ids()
        assert caught.value.retry_after_s == expected


async def test_who_finds_no_backend_reachable_is_told_when_the_next_check_is() -> None:
    ejection = EjectionPolicy(failures_max=1)
    async with fleet(backend_server(BUSY, BUSY), ejection=ejection) as known:
        with pytest.raises(NoUpstreamAvailable) as caught:
            await known.ids()
        assert caught.value.retry_after_s is None, "it is tried with the next request"
        await known.servers[0].stop()
        (member,) = known.pool._members.values()
        await known.pool._poll(member)
        with pytest.raises(NoUpstreamAvailable) as caught:
            await known.ids()
        assert caught.value.retry_after_s == ProbeSchedule().health_interval_s


async def test_attempts_are_bounded() -> None:
    async with fleet(*[backend_server(BUSY) for _ in range(4)], attempts_max=2) as known:
        with pytest.raises(NoUpstreamAvailable):
            await known.ids()
        assert sum(known.served()) == 2


async def test_a_request_that_brings_backends_down_does_not_walk_through_the_fleet() -> None:
    async with fleet(
        *[backend_server((STREAM_HEAD, Act.CLOSE)) for _ in range(4)], attempts_max=4
    ) as known:
        with pytest.raises(UpstreamLost):
            await known.ids()
        assert sum(known.served()) == 2


async def test_refusals_between_losses_do_not_hide_them() -> None:
    scripts: list[Script] = [(STREAM_HEAD, Act.CLOSE), BUSY, (STREAM_HEAD, Act.CLOSE), turn([7])]
    async with fleet(*map(backend_server, scripts), attempts_max=4) as known:
        with pytest.raises(UpstreamLost):
            await known.ids()
        assert known.served() == [1, 1, 1, 0]


async def test_one_attempt_tells_how_it_failed() -> None:
    async with fleet(backend_server(BUSY), backend_server(BUSY)) as known:
        with pytest.raises(UpstreamUnavailable, match="gpu-0: answered 503: busy"):
            await known.pool.generate(REQUEST, Heard(), attempts_max=1)
        assert known.served() == [1, 0]


async def test_a_backend_to_avoid_is_used_only_when_no_other_is_left() -> None:
    async with fleet(backend_server(), backend_server()) as known:
        for _ in range(3):
            await known.ids(avoid=["gpu-0"])
        assert known.served() == [0, 3]
        await known.ids(avoid=["gpu-0", "gpu-1"])
        assert sum(known.served()) == 4


async def test_a_backend_that_keeps_failing_is_left_alone_until_its_trial() -> None:
    ejection = EjectionPolicy(failures_max=2, backoff_s=10.0)
    failing = backend_server(BUSY, BUSY, turn([7]))
    async with fleet(failing, backend_server(), ejection=ejection) as known:
        for _ in range(4):
            assert await known.ids() == [1]
        assert [state.healthy for state in known.pool.members()] == [False, True]
        assert known.metric("upstream_up", upstream="gpu-0") == 0
        assert known.served()[0] == 2
        known.now[0] += 10.0
        assert sorted([*await known.ids(), *await known.ids()]) == [1, 7]
        assert [state.healthy for state in known.pool.members()] == [True, True]
        assert known.metric("upstream_up", upstream="gpu-0") == 1


async def test_a_backend_without_requests_is_up_again_after_its_back_off() -> None:
    ejection = EjectionPolicy(failures_max=1, backoff_s=10.0)
    async with fleet(backend_server(BUSY), ejection=ejection) as known:
        with pytest.raises(NoUpstreamAvailable):
            await known.ids()
        seen = []
        for passed_s in (9.0, 1.0):
            known.now[0] += passed_s
            await known.pool.poll()
            (state,) = known.pool.members()
            seen.append(
                (state.healthy, state.problem, known.metric("upstream_up", upstream="gpu-0"))
            )
        assert seen == [(False, "answered 503: busy", 0), (True, None, 1)]
        assert known.served() == [1]


async def test_when_all_are_ejected_all_are_used() -> None:
    ejection = EjectionPolicy(failures_max=1, backoff_s=10.0)
    servers = [backend_server(BUSY, turn([i])) for i in (7, 8)]
    async with fleet(*servers, ejection=ejection) as known:
        with pytest.raises(NoUpstreamAvailable):
            await known.ids()
        assert not any(state.available for state in known.pool.members())
        assert await known.ids() in ([7], [8])


async def test_a_trial_that_is_cancelled_does_not_lock_the_backend_out() -> None:
    ejection = EjectionPolicy(failures_max=1, backoff_s=10.0)
    gate = Gate()
    failing = backend_server(BUSY, (gate, Act.STALL), turn([7]))
    async with fleet(failing, ejection=ejection) as known:
        with pytest.raises(NoUpstreamAvailable):
            await known.ids()
        known.now[0] += 10.0
        async with asyncio.TaskGroup() as group:
            task = group.create_task(known.ids())
            await gate.reached.wait()
            assert not known.pool.members()[0].available
            task.cancel()
        assert known.pool.members()[0].available
        gate.opened.set()
        assert await known.ids() == [7]


async def test_what_is_in_flight_is_counted_exactly() -> None:
    stalled: Script = (STREAM_HEAD, said([5]), Act.STALL)
    async with fleet(backend_server(stalled)) as known:
        assert known.in_flight() == [0]
        async with asyncio.TaskGroup() as group:
            tasks = []
            for _ in range(3):
                led = Led()
                tasks.append(group.create_task(known.pool.generate(REQUEST, led)))
                assert (await led.next()).ids == [5]
            assert known.in_flight() == [3]
            assert known.metric("upstream_requests_in_flight", upstream="gpu-0") == 3
            for left, task in zip((2, 1, 0), tasks, strict=True):
                task.cancel()
                await asyncio.wait([task])
                assert known.in_flight() == [left]
        assert known.metric("upstream_requests_in_flight", upstream="gpu-0") == 0
        assert known.metric("upstream_requests_total", upstream="gpu-0", outcome="cancelled") == 3
        assert known.pool.members()[0].health.failures == 0


async def test_who_has_heard_enough_says_nothing_against_the_backend() -> None:
    stalled: Script = (STREAM_HEAD, said([5]), Act.STALL)
    async with fleet(backend_server(stalled)) as known:
        await known.pool.generate(REQUEST, Led(stop_after=1))
        assert known.metric("upstream_requests_total", upstream="gpu-0", outcome="cancelled") == 1
        assert (known.in_flight(), known.pool.members()[0].health.failures) == ([0], 0)


async def test_what_a_listener_raises_comes_out_and_says_nothing_against_the_backend() -> None:
    async with fleet(backend_server(turn([5, 6])), backend_server()) as known:
        with pytest.raises(ZeroDivisionError):
            await known.pool.generate(REQUEST, Faulty(error=ZeroDivisionError()))
        assert known.served() == [1, 0]
        assert known.metric("upstream_requests_total", upstream="gpu-0", outcome="cancelled") == 1
        assert (known.in_flight(), known.pool.members()[0].health.failures) == ([0, 0], 0)


async def test_a_stalled_backend_counts_as_failed() -> None:
    stalled: Script = (STREAM_HEAD, said([5]), Act.STALL)
    timeouts = Timeouts(stall_s=0.02)
    async with fleet(backend_server(stalled), timeouts=timeouts) as known:
        with pytest.raises(UpstreamFailed):
            await known.ids()
        assert known.pool.members()[0].health.failures == 1


async def test_health_checks_take_a_backend_out_and_bring_it_back() -> None:
    down: Script = (response(b"", status=503),)
    server = backend_server(health=[down, down, (response(b""),)])
    async with fleet(server, ejection=EjectionPolicy(failures_max=2)) as known:
        await known.pool.poll()
        assert known.pool.members()[0].healthy
        await known.pool.poll()
        (state,) = known.pool.members()
        assert (state.healthy, state.available) == (False, False)
        assert state.problem == "GET /health answered 503"
        await known.pool.poll()
        assert known.pool.members()[0].healthy


SPEAKS: Script = (STREAM_HEAD, said([5]), Act.STALL)


async def test_streams_that_stop_where_there_is_no_connection_are_broken_off() -> None:
    server = backend_server(SPEAKS, health=[(Act.RESET,)])
    async with fleet(server, silent_s=0.0) as known:
        led = Led()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(failure_of(known.pool.generate(REQUEST, led)))
            assert (await led.next()).ids == [5]
            await known.pool.poll()
        assert isinstance(task.result(), UpstreamFailed)
        assert known.metric("upstream_requests_total", upstream="gpu-0", outcome="failed") == 1


async def test_connections_that_are_all_in_use_say_nothing_of_the_backend() -> None:
    async with fleet(backend_server(SPEAKS), ejection=EjectionPolicy(failures_max=1)) as known:
        origin = known.pool.client.transport.origin(httpx2.URL(known.servers[0].url))
        origin._keep_alive = KeepAlivePolicy(connections_max=1)
        led = Led()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(known.pool.generate(REQUEST, led))
            assert (await led.next()).ids == [5]
            with pytest.raises(NoUpstreamAvailable, match="all 1 connections"):
                await known.ids()
            (member,) = known.pool.members()
            assert member.available
            task.cancel()


async def test_what_has_not_begun_is_broken_off_where_nothing_can_be_reached() -> None:
    gate = Gate()
    server = backend_server((gate, Act.STALL), health=[(Act.RESET,)])
    ejection = EjectionPolicy(failures_max=2)
    async with fleet(server, ejection=ejection, silent_s=0.0, attempts_max=1) as known:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(failure_of(known.ids()))
            await gate.reached.wait()
            await known.pool.poll()
            assert known.in_flight() == [1]
            await known.pool.poll()
            gate.opened.set()
        assert isinstance(task.result(), UpstreamLost)


SLOW = ProbeSchedule(health_timeout_s=0.05, working_health_timeout_s=0.05)


def sglang_server(ready: Script, health: Script) -> RawServer:
    """An SGLang that speaks, and then pauses for as long as another's prompt is read."""
    told = orjson.dumps({"version": "0.5.23", "frontend": "python"})
    return RawServer(
        {
            "/v1/completions": [SPEAKS],
            "/v1/models": [listing("m")],
            "/server_info": [(response(told),)],
            "/ready": [ready],
            "/health": [health],
            "*": [MISSING],
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "polls"),
    [
        (sglang_server((response(b""),), (Act.STALL,)), 5),  # asked for its flag, it is not late
        (sglang_server(MISSING, (Act.STALL,)), 5),  # to answer it would have to generate
        (sglang_server((response(b"", status=503),), (response(b"", status=503),)), 5),  # it drains
        (backend_server(SPEAKS, health=[(Act.STALL,)]), 2),
        (backend_server(SPEAKS, health=[(response(b"", status=503),)]), 5),
    ],
    ids=["sglang", "an older sglang", "a draining sglang", "a late vllm", "a vllm that says no"],
)
async def test_no_late_or_bad_health_check_ends_a_stream_that_has_begun(
    server: RawServer, polls: int
) -> None:
    async with fleet(server, silent_s=0.0, schedule=SLOW) as known:
        led = Led()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(known.pool.generate(REQUEST, led))
            assert (await led.next()).ids == [5]
            for _ in range(polls):
                await known.pool.poll()
            assert known.in_flight() == [1]
            task.cancel()
        assert known.metric("upstream_requests_total", upstream="gpu-0", outcome="failed") == 0


@pytest.mark.parametrize(
    ("ready", "health", "asked"),
    [
        ((response(b""),), (Act.STALL,), ["/ready"]),
        (MISSING, (response(b""),), ["/ready", "/health"]),
        ((response(b"", status=503),), (response(b""),), ["/ready", "/health"]),
    ],
    ids=["it is ready", "it has no such flag", "nobody has asked it for its health yet"],
)
async def test_an_sglang_is_asked_for_its_flag_before_it_has_to_generate(
    ready: Script, health: Script, asked: list[str]
) -> None:
    async with fleet(sglang_server(ready, health)) as known:
        before = len(known.servers[0].requests)
        await known.pool.poll()
        assert [request.path for request in known.servers[0].requests[before:]] == asked
        (state,) = known.pool.members()
        assert (state.healthy, state.problem) == (True, None)


async def test_streams_of_a_backend_that_answers_nothing_are_broken_off() -> None:
    """As it is where a process is frozen: it accepts connections, and says nothing on any."""
    server = backend_server(SPEAKS, health=[(Act.STALL,)])
    ejection = EjectionPolicy(failures_max=2)
    async with fleet(server, silent_s=0.0, schedule=SLOW, ejection=ejection) as known:
        led = Led()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(failure_of(known.pool.generate(REQUEST, led)))
            assert (await led.next()).ids == [5]
            await known.pool.poll()
            assert known.in_flight() == [1]
            await known.pool.poll()
        assert isinstance(task.result(), UpstreamFailed)


async def test_a_backend_that_came_late_is_asked_what_it_serves() -> None:
    async with fleet(backend_server(models=[BUSY, listing("m")])) as known:
        assert not known.pool.models
        await known.pool.poll()
        assert known.pool.models == (ModelInfo("m", 8192),)


async def test_a_backend_that_came_back_is_asked_what_it_serves_now() -> None:
    down: Script = (response(b"", status=503),)
    server = backend_server(
        models=[listing("m"), listing("m", length=4096)], health=[down, (response(b""),)]
    )
    async with fleet(server, ejection=EjectionPolicy(failures_max=1)) as known:
        await known.pool.poll()
        await known.pool.poll()
        assert known.pool.models == (ModelInfo("m", 4096),)


async def test_an_unreachable_backend_is_not_healthy() -> None:
    async with fleet(backend_server(), ejection=EjectionPolicy(failures_max=1)) as known:
        await known.servers[0].stop()
        await known.pool.poll()
        assert not known.pool.members()[0].healthy


async def test_running_it_keeps_asking_until_it_is_cancelled() -> None:
    gates = [Gate(), Gate()]
    answers: list[Script] = [(response(b""),), (gates[0], response(b"")), (response(b""),)]
    listings: list[Script] = [*listing("m")], (gates[1], *listing("m", length=100)), listing("m")  # type: ignore[assignment]
    schedule = ProbeSchedule(health_interval_s=0.001, describe_interval_s=0.001)
    async with fleet(backend_server(models=listings, health=answers), schedule=schedule) as known:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(known.pool.run())
            for gate in gates:
                await gate.reached.wait()
                gate.opened.set()
            task.cancel()
        assert task.cancelled()
