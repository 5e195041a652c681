"""Backends join, leave and are drained while the pool runs, over real sockets."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from gateway.errors import NoUpstreamAvailable, UpstreamFailed
from gateway.upstreams.admission.slots import AdmissionPolicy
from gateway.upstreams.backend import Backend, Prefill
from gateway.upstreams.pool import ProbeSchedule
from gateway.upstreams.routing.costs import RoutingPolicy
from gateway.upstreams.routing.router import NUMBERS_MIN, Router
from tests.fakes.completion_stream import said, turn, usage
from tests.fakes.fleet import BUSY, MISSING, REQUEST, Fleet, backend_server, fleet, listing, vllm
from tests.fakes.logs import captured_logs
from tests.fakes.processes import reserved_port
from tests.fakes.raw_server import STREAM_HEAD, Gate, RawServer, response
from tests.fakes.token_sinks import Heard, Led

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.fakes.raw_server import Script

SCHEDULE = ProbeSchedule(health_interval_s=0.01, describe_interval_s=0.01)
IDS = [7, 8, 9]


@asynccontextmanager
async def running(
    *servers: RawServer,
    leave_s: float = 5.0,
    router: Router | None = None,
    admission: AdmissionPolicy | None = None,
) -> AsyncIterator[Fleet]:
    asked = fleet(*servers, schedule=SCHEDULE, leave_s=leave_s, router=router, admission=admission)
    async with asked as known:
        going = asyncio.create_task(known.pool.run())
        try:
            yield known
        finally:
            going.cancel()
            await asyncio.wait([going])


async def until(is_so: object) -> None:
    """Wait for what the pool does by itself."""
    assert callable(is_so)
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - the pool tells nobody
            await asyncio.sleep(0.001)


def of(server: RawServer, name: str) -> Backend:
    return Backend(name, server.url)


def gated() -> tuple[RawServer, Gate]:
    """A server that stops in the middle of its stream."""
    gate = Gate()
    script = (STREAM_HEAD, said([1]), gate, said([2], "stop"), usage(0))
    return backend_server((*script, *turn([])[-2:])), gate


def serves(known: Fleet, name: str) -> bool:
    return any(one.name == name and one.models for one in known.pool.members())


async def test_one_that_joins_gets_work_once_it_has_said_what_it_serves() -> None:
    async with AsyncExitStack() as stack:
        new = await stack.enter_async_context(
            backend_server(turn(IDS), models=[BUSY, BUSY, listing("m")])
        )
        known = await stack.enter_async_context(running())
        known.servers.append(new)
        with pytest.raises(Exception, match="m"):
            await known.ids()
        await known.pool.apply([of(new, "new")])
        with pytest.raises(NoUpstreamAvailable):
            await known.ids()
        assert known.served() == [0]
        await until(lambda: serves(known, "new"))
        assert await known.ids() == IDS


async def test_no_request_comes_between_one_that_leaves_and_one_that_replaces_it() -> None:
    new = backend_server(turn(IDS))
    async with running(backend_server(turn(IDS))) as known, new:
        known.servers.append(new)
        replacing = asyncio.create_task(known.pool.apply([of(new, "new")]))
        while not replacing.done():
            assert await known.ids() == IDS
        assert await known.ids() == IDS
        assert known.served()[-1] == 1


async def test_the_models_of_one_that_joins_may_be_other_than_before() -> None:
    joined: list[str] = []
    new = backend_server(turn(IDS))
    async with running(backend_server(turn(IDS))) as known, new:
        known.pool.on_return = joined.append
        await known.pool.apply([of(known.servers[0], "gpu-0"), of(new, "new")])
        await until(lambda: joined == ["m"])


async def test_one_that_does_not_answer_replaces_another_all_the_same() -> None:
    async with running(backend_server(turn(IDS))) as known:
        with reserved_port() as port:
            await known.pool.apply([Backend("new", f"http://127.0.0.1:{port}", {"m": "m"})])
        with pytest.raises(NoUpstreamAvailable):
            await known.ids()
        assert known.served() == [0]


async def test_one_that_leaves_finishes_what_it_began_and_gets_nothing_new() -> None:
    old, gate = gated()
    new = backend_server(turn(IDS))
    async with running(old) as known, new:
        sink = Led()
        begun = asyncio.create_task(known.pool.generate(REQUEST, sink))
        await gate.reached.wait()
        await known.pool.apply([of(new, "new")])
        await until(lambda: serves(known, "new"))
        known.servers.append(new)
        for _ in range(4):
            assert await known.ids() == IDS
        assert known.served() == [1, 4]
        assert known.pool.in_flight() == {"new": 0, "gpu-0": 1}
        gate.opened.set()
        await begun
        assert sink.ids == [1, 2]
        await until(lambda: "gpu-0" not in known.pool.in_flight())
        assert (
            known.metrics.registry.get_sample_value("gateway_upstream_up", {"upstream": "gpu-0"})
            is None
        )


async def test_one_that_leaves_answers_what_is_passed_through_and_has_left_then() -> None:
    """Whatever ends first: a generation that ends while an embedding is made, or the other."""
    said_it, embeds = Gate(), Gate()
    slow = RawServer(
        {
            "/v1/completions": [(STREAM_HEAD, said([1]), said_it, said([2], "stop"), usage(0))],
            "/v1/embeddings": [(embeds, response(b'{"data":[]}'))],
            "/v1/models": [listing("m")],
            "/version": [vllm("0.32.0")],
            "*": [(response(b""),)],
        }
    )
    async with running(slow) as known:
        begun = asyncio.create_task(known.pool.generate(REQUEST, Led()))
        await said_it.reached.wait()
        asked = asyncio.create_task(
            known.pool.post("m", "/v1/embeddings", {"input": "a"}, answer_bytes_max=1_000)
        )
        await embeds.reached.wait()
        await known.pool.apply([])
        said_it.opened.set()
        await begun
        assert known.pool.in_flight() == {"gpu-0": 1}, "its connection stays until it has answered"
        embeds.opened.set()
        assert await asked == ("gpu-0", b'{"data":[]}')
        await until(lambda: known.pool.in_flight() == {})


async def test_a_backend_that_ranks_nothing_generates_all_the_same() -> None:
    """A 404 of a path is none of the model."""
    server = RawServer(
        {
            "/v1/rerank": [MISSING],
            "/v1/completions": [turn(IDS)],
            "/v1/models": [listing("m")],
            "/version": [vllm("0.32.0")],
            "*": [(response(b""),)],
        }
    )
    async with running(server) as known:
        with pytest.raises(NoUpstreamAvailable):
            await known.pool.post("m", "/v1/rerank", {}, answer_bytes_max=1_000)
        assert await known.ids() == IDS
        assert known.pool.members()[0].models == {"m": 8192}


async def test_what_is_passed_through_is_told_when_to_come_back() -> None:
    busy = RawServer(
        {
            "/v1/embeddings": [(response(b"{}", status=503, headers="retry-after: 7\r\n"),)],
            "/v1/models": [listing("m")],
            "/version": [vllm("0.32.0")],
            "*": [(response(b""),)],
        }
    )
    async with fleet(busy) as known:
        with pytest.raises(NoUpstreamAvailable) as refused:
            await known.pool.post("m", "/v1/embeddings", {}, answer_bytes_max=1_000)
    assert refused.value.retry_after_s == 7


async def test_what_goes_on_for_too_long_is_broken_off() -> None:
    old, gate = gated()
    async with running(old, leave_s=0.05) as known:
        begun = asyncio.create_task(known.pool.generate(REQUEST, Heard()))
        await gate.reached.wait()
        await known.pool.apply([])
        with pytest.raises(UpstreamFailed):
            await begun
        await until(lambda: known.pool.in_flight() == {})
        gate.opened.set()


async def test_one_whose_address_changes_leaves_and_joins() -> None:
    old, gate = gated()
    new = backend_server(turn(IDS))
    async with running(old) as known, new:
        known.servers.append(new)
        begun = asyncio.create_task(known.pool.generate(REQUEST, Heard()))
        await gate.reached.wait()
        await known.pool.apply([of(new, "gpu-0")])
        await until(lambda: serves(known, "gpu-0"))
        assert await known.ids() == IDS
        assert known.served() == [1, 1]
        assert known.pool.in_flight() == {"gpu-0": 1}
        gate.opened.set()
        await begun
        await until(lambda: known.pool.in_flight() == {"gpu-0": 0})
        assert await known.ids() == IDS, "the connections of the new one stay"


async def test_one_that_comes_back_before_its_streams_have_ended_is_used_again() -> None:
    old, gate = gated()
    async with running(old) as known:
        begun = asyncio.create_task(known.pool.generate(REQUEST, Heard()))
        await gate.reached.wait()
        await known.pool.apply([])
        await known.pool.apply([of(old, "gpu-0")])
        gate.opened.set()
        await begun
        await until(lambda: serves(known, "gpu-0"))
        assert await known.ids() == [1, 2]


async def test_a_drained_one_gets_nothing_new_and_breaks_nothing_off() -> None:
    old, gate = gated()
    async with running(old, backend_server(turn(IDS))) as known:
        sink = Led()
        begun = asyncio.create_task(known.pool.generate(REQUEST, sink))
        await gate.reached.wait()
        known.pool.drain(["gpu-0"])
        for _ in range(4):
            assert await known.ids() == IDS
        assert known.served() == [1, 4]
        known.pool.drain(["gpu-0", "gpu-1", "unknown"])
        with pytest.raises(NoUpstreamAvailable, match="drained"):
            await known.ids()
        assert [one.id for one in known.pool.models] == ["m"]
        gate.opened.set()
        await begun
        assert sink.ids == [1, 2]
        known.pool.drain([])
        assert await known.ids() in ([1, 2], IDS)


async def test_one_that_joins_while_it_is_drained_stays_so() -> None:
    new = backend_server(turn(IDS))
    async with running(backend_server(turn(IDS))) as known, new:
        known.pool.drain(["new"])
        known.servers.append(new)
        await known.pool.apply([of(known.servers[0], "gpu-0"), of(new, "new")])
        await until(lambda: serves(known, "new"))
        for _ in range(4):
            await known.ids()
        assert known.served() == [4, 0]


@pytest.mark.slow
async def test_after_any_sets_the_pool_has_the_last_and_every_stream_ends() -> None:
    """Members come and go at random under load, and change their names' addresses."""
    random = Random(17)
    async with AsyncExitStack() as stack:
        servers = [backend_server(turn(IDS)) for _ in range(4)]
        for server in servers:
            await stack.enter_async_context(server)
        always = [of(servers[0], "always")]
        known = await stack.enter_async_context(running())
        await known.pool.apply(always)
        await until(lambda: serves(known, "always"))
        done = asyncio.Event()

        async def ask() -> int:
            count = 0
            while not done.is_set():
                assert await known.ids() == IDS
                count += 1
            return count

        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(ask()) for _ in range(4)]
            wanted = always
            for _ in range(60):
                names = random.sample("abc", random.randrange(4))
                wanted = [*always, *(of(random.choice(servers), name) for name in names)]
                await known.pool.apply(wanted)
                assert [one.name for one in known.pool.members()] == [one.name for one in wanted]
                for _ in range(random.randrange(8)):
                    await asyncio.sleep(0.002)
            done.set()
        assert all(task.result() for task in asking)
        await until(lambda: known.pool.in_flight() == {one.name: 0 for one in wanted})


async def test_who_reads_prompts_for_another_may_leave() -> None:
    sglang: Script = (response(b'{"version":"0.5.23"}'),)
    routes: dict[str, Sequence[Script]] = {"/server_info": [sglang], "/ready": [sglang]}
    routes |= {"/v1/completions": [turn(IDS)], "/v1/models": [listing("m")], "*": [MISSING]}
    decode = RawServer(routes)
    async with running(backend_server(), decode) as known:
        reader = known.servers[0]
        pair = replace(of(decode, "pair"), prefill=Prefill(reader.url, "prefill.host", 8998))
        await known.pool.apply([of(reader, "gpu-0"), pair])
        assert await known.ids(avoid=["gpu-0"]) == IDS
        await known.pool.apply([pair])
        await until(lambda: known.pool.in_flight() == {"pair": 0})
        with captured_logs(of="gateway.upstreams.inference_server") as log:
            assert await known.ids() == IDS
        assert log == []


async def test_routing_forgets_who_has_left_and_gives_its_number_to_another() -> None:
    router = Router(RoutingPolicy(), b"secret")
    old, new = backend_server(turn(IDS)), backend_server(turn(IDS))
    async with running(old, router=router) as known, new:
        assert await known.ids() == IDS
        assert router.knows("gpu-0")
        await known.pool.apply([of(new, "new")])
        await until(lambda: not router.knows("gpu-0"))


async def test_admission_learns_the_slots_of_a_name_anew_that_has_left() -> None:
    old, new = backend_server(turn(IDS)), backend_server(turn(IDS))
    async with running(old, admission=AdmissionPolicy()) as known, new:
        admission = known.pool.admission
        assert admission is not None
        assert await known.ids() == IDS
        assert set(admission.state().slots) == {"gpu-0"}
        await known.pool.apply([of(new, "new")])
        await until(lambda: not known.pool.in_flight().get("gpu-0"))
        await until(lambda: "gpu-0" not in admission.state().slots)


def test_a_number_that_is_given_again_holds_nothing_of_before() -> None:
    now = [0.0]
    router = Router(RoutingPolicy(), b"secret", clock=lambda: now[0], wall=lambda: now[0])
    for number in range(NUMBERS_MIN):
        router.member(f"m-{number}")
    request = replace(REQUEST, prompt_ids=list(range(2000)))
    prefix = router.prefix(request)
    gone = router.member("m-5")
    router.placed(gone, prefix, (prefix.length,))
    now[0] = 10.0
    held = {one.name: one.held for one in router.candidates(["m-5", "m-6"], prefix)}
    assert held["m-5"] > 0
    router.forget("m-5")
    assert router.member("new").number == gone.number
    held = {one.name: one.held for one in router.candidates(["new", "m-6"], prefix)}
    assert held == {"new": 0, "m-6": 0}
    assert router.member("newer").number == NUMBERS_MIN + 1


async def test_what_is_sent_to_the_only_backend_is_counted_for_other_replicas_too() -> None:
    router = Router(RoutingPolicy(), b"secret")
    old, gate = gated()
    async with running(old, router=router) as known:
        begun = asyncio.create_task(known.pool.generate(REQUEST, Heard()))
        await gate.reached.wait()
        in_flight = router.member("gpu-0").in_flight
        gate.opened.set()
        await begun
        assert in_flight == 1
        assert router.member("gpu-0").in_flight == 0
