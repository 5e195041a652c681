"""The pool with routing, over real sockets: prompts go where they were read before."""

from __future__ import annotations

import asyncio
from array import array
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from gateway.errors import NoUpstreamAvailable, UpstreamFailed
from gateway.generation import Route, TokenRequest
from gateway.upstreams.ejection import EjectionPolicy
from gateway.upstreams.routing.costs import RoutingPolicy
from gateway.upstreams.routing.router import Router
from tests.fakes.completion_stream import failed, said, turn
from tests.fakes.fleet import BUSY, REQUEST, backend_server, fleet, listing
from tests.fakes.raw_server import STREAM_HEAD, Act, Gate, RawServer, response
from tests.fakes.token_sinks import Heard, Led

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.fakes.fleet import Fleet
    from tests.fakes.raw_server import Script

PROMPT = array("I", range(1, 2001))
SAID = list(range(7, 30))


def asked(ids: Sequence[int] = PROMPT, route: Route | None = None) -> TokenRequest:
    return replace(REQUEST, prompt_ids=array("I", ids), route=route)


@asynccontextmanager
async def routed(*servers: RawServer, **policy: Any) -> AsyncIterator[Fleet]:
    fleets: list[Fleet] = []

    def now() -> float:
        return fleets[0].now[0] if fleets else 1000.0

    router = Router(RoutingPolicy(), b"secret", clock=now, wall=now, random=Random(1))
    async with fleet(*servers, router=router, **policy) as known:
        fleets.append(known)
        yield known


def three(*scripts: Script) -> list[RawServer]:
    return [backend_server(*(scripts or [turn(SAID, 1000)])) for _ in range(3)]


async def test_a_prompt_goes_where_it_was_read() -> None:
    async with routed(*three()) as known:
        await known.ids(asked())
        first = known.served()
        for n in range(5):
            await known.ids(asked([*PROMPT, *SAID, n, 1, 2, 3]))
        assert known.served() == [6 * count for count in first]


async def test_short_prompts_go_to_all() -> None:
    async with routed(*three()) as known:
        for _ in range(30):
            await known.ids()
        assert all(known.served())


async def test_the_route_of_a_response_tells_the_next_one() -> None:
    route = Route()
    async with routed(*three()) as known:
        await known.ids(asked(route=route))
        first = known.served()
        assert route.turns == 1
    async with routed(*three()) as known:
        await known.ids(asked([*PROMPT, *SAID, 1], Route(route.placement)))
        assert known.served() == first


async def test_what_was_cached_is_learned() -> None:
    async with routed(*three()) as known:
        await known.ids(asked())
        name = f"gpu-{known.served().index(1)}"
        assert known.pool.router is not None
        assert known.pool.router.member(name).reports


async def test_a_backend_that_breaks_off_has_nothing_to_be_found_at_and_owes_nothing() -> None:
    script = (STREAM_HEAD, said([1]), failed(500))
    route = Route()
    async with routed(*three(script)) as known:
        with pytest.raises(UpstreamFailed):
            await known.ids(asked(route=route))
        assert route.placement is None
        assert known.in_flight() == [0, 0, 0]
        assert owed(known) == [(0, 0)] * 3


async def test_backends_that_refuse_are_tried_once_each_and_owe_nothing() -> None:
    async with routed(*three(BUSY)) as known:
        with pytest.raises(NoUpstreamAvailable):
            await known.ids(asked())
        assert known.served() == [1, 1, 1]
        assert owed(known) == [(0, 0)] * 3


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_caller_who_leaves_owes_nothing(has_begun: bool) -> None:
    gate, route, sink = Gate(), Route(), Led()
    first = [said(SAID)] if has_begun else []
    script: Script = (STREAM_HEAD, *first, gate, Act.STALL)
    async with routed(*three(script)) as known, asyncio.timeout(30):
        task = asyncio.create_task(known.pool.generate(asked(route=route), sink))
        await gate.reached.wait()
        gate.opened.set()
        if has_begun:
            await sink.news.wait()
        assert sum(in_flight for in_flight, _ in owed(known)) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert owed(known) == [(0, 0)] * 3
        # What was read and said is there, whoever asked for it.
        assert (route.placement is not None) == has_begun


async def test_a_caller_who_has_enough_leaves_what_was_said() -> None:
    route = Route()
    script = (STREAM_HEAD, said(SAID), Act.STALL)
    async with routed(*three(script)) as known, asyncio.timeout(30):
        await known.pool.generate(asked(route=route), Led(stop_after=1))
        assert route.turns == 1
        assert owed(known) == [(0, 0)] * 3


async def test_the_only_backend_of_a_model_is_not_chosen() -> None:
    servers = [backend_server(), backend_server(models=[listing("other")])]
    route = Route()
    async with routed(*servers) as known:
        await known.ids(asked(route=route))
        assert known.served() == [1, 0]
        assert route.placement is None


async def test_an_avoided_backend_is_left_however_warm_it_is() -> None:
    route = Route()
    async with routed(*three()) as known:
        await known.ids(asked(route=route))
        warm = known.served().index(1)
        await known.ids(asked([*PROMPT, *SAID, 1], route), avoid=[f"gpu-{warm}"])
        assert known.served()[warm] == 1


async def test_with_the_polls_it_is_seen_what_waits_and_that_a_backend_restarted() -> None:
    metrics = [
        (response(b"vllm:num_requests_waiting 7\nprocess_start_time_seconds 900\n"),),
        (response(b"vllm:num_requests_waiting 0\nprocess_start_time_seconds 1005\n"),),
    ]
    servers = [backend_server(turn(SAID, 1000), metrics=metrics) for _ in range(2)]
    async with routed(*servers) as known:
        router = known.pool.router
        assert router is not None
        await known.pool.poll()
        assert router.member("gpu-0").delay_s(8000.0, 1000.0) == pytest.approx(0.7)
        await known.ids(asked())
        warm = router.prefix(asked([*PROMPT, *SAID, 1]))
        assert max(one.held for one in router.candidates(["gpu-0", "gpu-1"], warm)) > 2_000
        known.now[0] += 10
        await known.pool.poll()
        assert max(one.held for one in router.candidates(["gpu-0", "gpu-1"], warm)) == 0


async def test_where_no_load_is_told_there_is_none() -> None:
    async with routed(*three()) as known:
        await known.pool.poll()
        assert known.pool.router is not None
        assert known.pool.router.member("gpu-0").delay_s(8000.0, 1000.0) == 0
        paths = [request.path for request in known.servers[0].requests]
        assert paths[-2:] == ["/metrics", "/v1/loads"]


async def test_a_backend_that_was_away_is_empty() -> None:
    # A connection that was used before is tried once more.
    health: list[Script] = [(Act.CLOSE,), (Act.CLOSE,), (response(b""),)]
    servers = [backend_server(turn(SAID, 1000), health=health) for _ in range(2)]
    async with routed(*servers, ejection=EjectionPolicy(failures_max=1)) as known:
        router = known.pool.router
        assert router is not None
        await known.ids(asked())
        warm = router.prefix(asked([*PROMPT, *SAID, 1]))
        known.now[0] += 10
        for _ in range(3):
            await known.pool.poll()
        assert {state.healthy for state in known.pool.members()} == {True}
        assert max(one.held for one in router.candidates(["gpu-0", "gpu-1"], warm)) == 0


def owed(known: Fleet) -> list[tuple[int, int]]:
    """Of each backend in flight and owed."""
    router = known.pool.router
    assert router is not None
    members = [router.member(f"gpu-{n}") for n in range(len(known.servers))]
    return [(member.in_flight, member.owed) for member in members]


async def test_sinks_hear_the_same_with_routing() -> None:
    heard = Heard()
    async with routed(*three()) as known:
        await known.pool.generate(asked(), heard)
    assert heard.ids == SAID
    assert heard.chunks[-1].cached_tokens == 1000
