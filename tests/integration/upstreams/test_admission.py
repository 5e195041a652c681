"""The pool with admission, over real sockets: requests wait here, and leave nothing behind."""

from __future__ import annotations

import asyncio
from array import array
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from gateway.errors import (
    ModelNotFound,
    Overloaded,
    UpstreamFailed,
    UpstreamRecalled,
    UpstreamRejected,
)
from gateway.generation import Route, TokenRequest
from gateway.upstreams.admission.slots import AdmissionPolicy, WorkClass
from gateway.upstreams.routing.costs import RoutingPolicy
from gateway.upstreams.routing.router import Router
from tests.fakes.completion_stream import failed, said, turn
from tests.fakes.fleet import BUSY, REQUEST, backend_server, fleet, listing
from tests.fakes.raw_server import STREAM_HEAD, Act, Gate, RawServer, response
from tests.fakes.token_sinks import Heard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from gateway.generation import TokenChunk
    from gateway.upstreams.admission.admit import Admission
    from tests.fakes.fleet import Fleet
    from tests.fakes.raw_server import Script

ONE_SLOT = AdmissionPolicy(slots_start=1, slots_min=1, slots_max=1)
BEGUN = replace(REQUEST, has_begun=True)


class Gated:
    """Scripts of turns that each wait at a gate of its own, in the order in which they came."""

    def __init__(self) -> None:
        self.gates = [Gate() for _ in range(20)]

    def scripts(self) -> Iterator[Script]:
        return iter([(STREAM_HEAD, gate, *turn([7])[1:]) for gate in self.gates])


@asynccontextmanager
async def bounded(
    *servers: RawServer, policy: AdmissionPolicy = ONE_SLOT, **more: Any
) -> AsyncIterator[Fleet]:
    async with asyncio.timeout(60), fleet(*servers, admission=policy, **more) as known:
        yield known
        admission = admission_of(known)
        state = admission.state()
        assert set(state.queued.values()) == {0}, "who has gone waits no more"
        assert not any(state.taken.values()), "who has gone takes no slot"
        assert known.in_flight() == [0] * len(servers)
        assert admission.waiting == 0


def admission_of(known: Fleet) -> Admission:
    assert known.pool.admission is not None
    return known.pool.admission


def asks(known: Fleet, request: TokenRequest = REQUEST, **more: Any) -> asyncio.Task[list[int]]:
    return asyncio.create_task(known.ids(request, **more))


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        for _ in iter(is_so, True):
            await asyncio.sleep(0)


async def until_waiting(known: Fleet, count: int) -> None:
    await until(lambda: admission_of(known).waiting == count)


@pytest.fixture
def gated() -> Gated:
    return Gated()


@pytest.fixture
def server(gated: Gated) -> RawServer:
    return backend_server(*gated.scripts())


async def test_one_that_finds_no_slot_waits_for_one(gated: Gated, server: RawServer) -> None:
    async with bounded(server) as known:
        first = asks(known)
        await gated.gates[0].reached.wait()
        second = asks(known)
        await until_waiting(known, 1)
        assert known.served() == [1]
        gated.gates[0].opened.set()
        assert await first == [7]
        await gated.gates[1].reached.wait()
        gated.gates[1].opened.set()
        assert await second == [7]
        assert known.metric("admission_wait_seconds_count", **{"class": "default"}) == 1


async def test_classes_go_in_order(gated: Gated, server: RawServer) -> None:
    went: list[str] = []

    async def ask(name: str, **of: Any) -> None:
        await known.ids(replace(REQUEST, request_id=name, **of))
        went.append(name)

    async with bounded(server) as known, asyncio.TaskGroup() as group:
        group.create_task(ask("first"))
        await gated.gates[0].reached.wait()
        arrivals: dict[str, dict[str, Any]] = {
            "background": {"background": True},
            "flex": {"priority": -1},
            "default": {},
            "priority": {"priority": 1},
            "default again": {},
        }
        for count, (name, of) in enumerate(arrivals.items()):
            group.create_task(ask(name, **of))
            await until_waiting(known, count + 1)
        assert admission_of(known).state().queued == {"priority": 1, "default": 2, "background": 2}
        for gate in gated.gates[:6]:
            gate.opened.set()
    assert went == ["first", "priority", "default", "default again", "background", "flex"]


async def test_what_was_begun_waits_for_nobody(gated: Gated, server: RawServer) -> None:
    async with bounded(server) as known:
        first = asks(known)
        await gated.gates[0].reached.wait()
        second = asks(known)
        await until_waiting(known, 1)
        begun = [asks(known, BEGUN), asks(known, BEGUN, avoid=["gpu-0"])]
        await gated.gates[1].reached.wait()
        await gated.gates[2].reached.wait()
        assert admission_of(known).waiting == 1
        for gate in gated.gates:
            gate.opened.set()
        assert await asyncio.gather(first, second, *begun) == [[7]] * 4


async def test_a_client_that_hangs_up_leaves_the_queue_at_once(
    gated: Gated, server: RawServer
) -> None:
    async with bounded(server) as known:
        first = asks(known)
        await gated.gates[0].reached.wait()
        second, third = asks(known), asks(known)
        await until_waiting(known, 2)
        second.cancel()
        await until_waiting(known, 1)
        gated.gates[0].opened.set()
        gated.gates[1].opened.set()
        assert [await first, await third] == [[7], [7]]
        assert known.served() == [2]


async def test_one_that_hangs_up_when_it_is_its_turn_gives_it_to_the_next(
    gated: Gated, server: RawServer
) -> None:
    async with bounded(server) as known:
        admission = admission_of(known)
        slot = admission.slots("gpu-0").take(WorkClass.DEFAULT, 1)
        service = admission.shares.serve(REQUEST.tenant, 1, WorkClass.DEFAULT)
        second, third = asks(known), asks(known)
        await until_waiting(known, 2)
        slot.release()
        service.end(None)
        admission.pump()
        assert admission.waiting == 1
        second.cancel()
        gated.gates[0].opened.set()
        assert await third == [7]
        assert known.served() == [1]


async def test_a_tenant_of_which_nothing_runs_does_not_wait_for_streams_of_another(
    gated: Gated, server: RawServer
) -> None:
    async with bounded(server) as known:
        first = asks(known)
        await gated.gates[0].reached.wait()
        more = asks(known)
        await until_waiting(known, 1)
        others = asks(known, replace(REQUEST, tenant="other"))
        await gated.gates[1].reached.wait()
        # One is all that goes beyond a bound of one.
        third = asks(known, replace(REQUEST, tenant="third"))
        await until_waiting(known, 2)
        for gate in gated.gates:
            gate.opened.set()
        for answer in await asyncio.gather(first, others, third, more):
            assert answer == [7]


FOUR_SLOTS = AdmissionPolicy(slots_start=4, slots_min=4, slots_max=4)
OTHER = replace(REQUEST, tenant="other")


async def test_who_has_all_slots_gives_one_up_and_has_it_back_in_its_turn(
    gated: Gated, server: RawServer
) -> None:
    async with bounded(server, policy=FOUR_SLOTS) as known:
        first = [asks(known) for _ in range(4)]
        await until(lambda: known.served() == [4])
        other = asks(known, OTHER)
        await gated.gates[4].reached.wait()
        await until_waiting(known, 1)
        assert known.metric("admission_recalled_total") == 1
        assert sum(known.in_flight()) == 4
        assert not first[3].done(), "it waits"
        for gate in gated.gates:
            gate.opened.set()
        assert await other == [7]
        assert await asyncio.gather(*first) == [[7]] * 4
        assert known.served() == [6]


async def test_one_in_the_middle_of_an_answer_gives_way_and_says_so() -> None:
    gates = [Gate() for _ in range(5)]
    scripts: list[Script] = [(STREAM_HEAD, said([1]), gate, *turn([7])[1:]) for gate in gates]
    server = backend_server(*scripts)
    async with bounded(server, policy=FOUR_SLOTS) as known:
        first = [asks(known) for _ in range(4)]
        for gate in gates[:4]:
            await gate.reached.wait()
        other = asks(known, OTHER)
        with pytest.raises(UpstreamRecalled):
            await first[3]
        again = asks(known, replace(REQUEST, has_begun=True, was_recalled=True))
        await until_waiting(known, 1)
        assert sum(known.in_flight()) == 4
        for gate in gates:
            gate.opened.set()
        assert await other == [1, 7]
        assert await again == [1, 7]
        assert await asyncio.gather(*first[:3]) == [[1, 7]] * 3


async def test_who_leaves_while_it_is_called_back_has_left(gated: Gated, server: RawServer) -> None:
    async with bounded(server, policy=FOUR_SLOTS) as known:
        first = [asks(known) for _ in range(4)]
        await until(lambda: known.served() == [4])
        admission_of(known).make_room("other", ["gpu-0"])
        first[3].cancel()
        with pytest.raises(asyncio.CancelledError):
            await first[3]
        for gate in gated.gates:
            gate.opened.set()
        assert await asyncio.gather(*first[:3]) == [[7]] * 3


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ((STREAM_HEAD, said([1]), failed(500)), UpstreamFailed),
        ((response(b'{"error":{"message":"no","code":400}}', status=400),), UpstreamRejected),
    ],
)
async def test_a_failure_gives_the_slot_to_the_next(script: Script, error: type[Exception]) -> None:
    gate = Gate()
    server = backend_server((STREAM_HEAD, gate, *turn([7])[1:]), script, turn([8]))
    async with bounded(server) as known:
        first = asks(known)
        await gate.reached.wait()
        second, third = asks(known), asks(known)
        await until_waiting(known, 2)
        gate.opened.set()
        assert await first == [7]
        with pytest.raises(error):
            await second
        assert await third == [8]


async def test_a_sink_that_fails_gives_the_slot_back() -> None:
    class Broken(Heard):
        @override
        def on_tokens(self, chunk: TokenChunk) -> bool:
            raise ValueError("full")

    async with bounded(backend_server(turn([7]))) as known:
        with pytest.raises(ValueError, match="full"):
            await known.pool.generate(REQUEST, Broken())


async def test_what_waited_too_long_is_refused_and_told_when_to_come_back(
    gated: Gated, server: RawServer
) -> None:
    policy = replace(ONE_SLOT, wait_max_s=0.05)
    async with bounded(server, policy=policy) as known:
        first = asks(known)
        await gated.gates[0].reached.wait()
        with pytest.raises(Overloaded) as refused:
            await known.ids()
        assert refused.value.retry_after_s == 1
        gated.gates[0].opened.set()
        await first
        counted = {"class": "default", "reason": "deadline"}
        assert known.metric("admission_refusals_total", **counted) == 1


async def test_a_full_queue_refuses_all_but_what_was_accepted(
    gated: Gated, server: RawServer
) -> None:
    async with bounded(server, policy=replace(ONE_SLOT, queue_length_max=1)) as known:
        first = asks(known)
        await gated.gates[0].reached.wait()
        waiting = [asks(known, replace(REQUEST, background=True)), asks(known)]
        await until_waiting(known, 2)
        with pytest.raises(Overloaded) as refused:
            await known.ids()
        assert refused.value.retry_after_s == ONE_SLOT.wait_max_s  # nobody knows better yet
        with pytest.raises(Overloaded):
            known.pool.require_room("m", 0)
        waiting.append(asks(known, replace(REQUEST, background=True)))
        await until_waiting(known, 3)
        for gate in gated.gates:
            gate.opened.set()
        assert await asyncio.gather(first, *waiting) == [[7]] * 4
        known.pool.require_room("m", 0)


async def test_one_that_would_wait_too_long_is_refused_at_once(
    gated: Gated, server: RawServer
) -> None:
    async with bounded(
        server, policy=replace(ONE_SLOT, wait_max_s=9, overload_wait_max_s=2)
    ) as known:
        asked = [asks(known)]
        await gated.gates[0].reached.wait()
        asked += [asks(known) for _ in range(8)]
        await until_waiting(known, 8)
        for number in range(4):  # one goes every two seconds
            known.now[0] += 1
            gated.gates[number].opened.set()
            await gated.gates[number + 1].reached.wait()
        known.now[0] += 4
        with pytest.raises(Overloaded) as refused:
            known.pool.require_room("m", 0, REQUEST.tenant)
        assert refused.value.retry_after_s == 10  # five go in that time, at four in eight seconds
        known.pool.require_room("m", 1, REQUEST.tenant)
        known.now[0] -= 4
        for gate in gated.gates:
            gate.opened.set()
        await asyncio.gather(*asked)


async def test_a_request_is_placed_where_there_is_room_when_its_turn_comes() -> None:
    gates = [Gate() for _ in range(2)]
    servers = [backend_server((STREAM_HEAD, gate, *turn([7])[1:]), turn([8])) for gate in gates]
    async with bounded(*servers) as known:
        first = [asks(known), asks(known)]
        for gate in gates:
            await gate.reached.wait()
        third = asks(known)
        await until_waiting(known, 1)
        gates[1].opened.set()
        assert await third == [8]
        assert known.served() == [1, 2]
        gates[0].opened.set()
        await asyncio.gather(*first)


async def test_other_models_do_not_wait(gated: Gated, server: RawServer) -> None:
    other = backend_server(turn([9]), models=[listing("other")])
    async with bounded(server, other) as known:
        first, second = asks(known), asks(known)
        await gated.gates[0].reached.wait()
        await until_waiting(known, 1)
        assert await known.ids(replace(REQUEST, model="other")) == [9]
        gated.gates[0].opened.set()
        gated.gates[1].opened.set()
        await asyncio.gather(first, second)


async def test_a_model_that_goes_away_is_told_to_those_that_wait_for_it() -> None:
    gate = Gate()
    server = backend_server(
        (STREAM_HEAD, gate, *turn([7])[1:]), models=[listing("m"), listing("other")]
    )
    async with bounded(server) as known:
        first = asks(known)
        await gate.reached.wait()
        second = asks(known)
        await until_waiting(known, 1)
        (member,) = known.pool._members.values()
        await known.pool._describe(member)
        gate.opened.set()
        assert await first == [7]
        with pytest.raises(ModelNotFound):
            await second


async def test_a_backend_that_is_too_busy_is_sent_less() -> None:
    servers = [backend_server(BUSY), backend_server(turn([8]))]
    policy = AdmissionPolicy(slots_start=8, slots_min=1, slots_max=8)
    async with bounded(*servers, policy=policy) as known:
        for _ in range(2):
            assert await known.ids() == [8]
        assert [admission_of(known).slots(name).bound for name in ("gpu-0", "gpu-1")] == [7, 8]


async def test_a_reported_queue_shrinks_what_is_sent() -> None:
    text = b"vllm:num_requests_waiting 6\nvllm:num_requests_running 2\n"
    server = backend_server(turn([7]), metrics=[(response(text),)])
    policy = AdmissionPolicy(slots_start=8, slots_min=1, slots_max=8)
    async with bounded(server, policy=policy) as known:
        for _ in range(4):
            await known.pool.poll()
        assert admission_of(known).slots("gpu-0").bound == 1
        assert known.metric("admission_slots", upstream="gpu-0") == 1


async def test_saturation_counts_what_runs_and_what_waits(gated: Gated, server: RawServer) -> None:
    async with bounded(server) as known:
        assert known.metric("admission_saturation") == 0
        asked = [asks(known) for _ in range(3)]
        await until_waiting(known, 2)
        assert known.metric("admission_saturation") == 3
        assert known.metric("admission_queue_length", **{"class": "default"}) == 2
        for gate in gated.gates:
            gate.opened.set()
        await asyncio.gather(*asked)


async def test_new_sessions_wait_while_backends_are_busy_and_others_pass() -> None:
    gate = Gate()
    stuck: Script = (STREAM_HEAD, gate, *turn([7])[1:])
    servers = [backend_server(stuck, turn([8]), turn([8])) for _ in range(2)]
    router = Router(RoutingPolicy(), b"secret", clock=lambda: 0.0, random=Random(1))
    policy = AdmissionPolicy()
    long = replace(REQUEST, prompt_ids=array("I", range(20_000)), has_begun=True)
    async with bounded(*servers, policy=policy, router=router) as known:
        busy = [asks(known, replace(long, tenant=salt)) for salt in "ab"]
        await until(lambda: known.served() == [1, 1])
        new = asks(known)
        await until_waiting(known, 1)
        route = Route()
        route.moved(b"")
        assert await known.ids(replace(REQUEST, route=route)) == [8]
        assert admission_of(known).waiting == 1
        gate.opened.set()
        assert await asyncio.gather(*busy) == [[7]] * 2
        assert await new == [8]


@pytest.mark.slow
async def test_all_that_is_asked_in_any_way_leaves_nothing_behind() -> None:
    random = Random(7)
    scripts: list[Script] = [
        turn([1]),
        (STREAM_HEAD, said([1]), failed(500)),
        BUSY,
        (STREAM_HEAD, Act.RESET),
        turn([1, 2, 3]),
    ]
    servers = [backend_server(*random.choices(scripts, k=200)) for _ in range(3)]
    policy = AdmissionPolicy(slots_start=2, slots_min=1, slots_max=3, queue_length_max=30)
    async with bounded(*servers, policy=policy) as known:
        tasks = []
        for number in range(300):
            request = replace(
                REQUEST,
                request_id=f"r{number}",
                priority=random.choice([-1, 0, 1]),
                background=random.random() < 0.3,
                has_begun=random.random() < 0.1,
            )
            tasks.append(asks(known, request))
            if random.random() < 0.5:
                await asyncio.sleep(0)
            if random.random() < 0.2:
                random.choice(tasks).cancel()
        await asyncio.wait(tasks)
        ended = [task for task in tasks if not task.cancelled() and task.exception() is None]
        assert ended, "some were answered"
