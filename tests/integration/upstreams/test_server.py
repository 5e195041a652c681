"""`InferenceServer` on what was not recorded: timers, cuts, disconnects, odd servers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import chain, repeat
from typing import TYPE_CHECKING

import orjson
import pytest
from typing_extensions import override

from gateway.errors import (
    ContextOverflow,
    UpstreamFailed,
    UpstreamLost,
    UpstreamRejected,
    UpstreamUnavailable,
)
from gateway.fair_queue import ReadTurns
from gateway.generation import FinishReason, Sampling, TokenChunk, TokenRequest
from gateway.upstreams.backend import Backend, StreamLimits, Timeouts
from gateway.upstreams.inference_server import InferenceServer
from gateway.upstreams.problems import BackendBusy, PathNotFound
from tests.fakes.chunks import chunk_of
from tests.fakes.completion_stream import COMMENT, DONE, failed, said, turn, usage
from tests.fakes.failures import failure_of
from tests.fakes.raw_server import STREAM_END, STREAM_HEAD, Act, Gate, RawServer, Script, response
from tests.fakes.token_sinks import Faulty, Heard, Led

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Hashable

    from gateway.upstreams.http.client import Client

STOP_IDS = (200002, 200012, 199999)
REQUEST = TokenRequest(
    "req_1", "public", [1, 2, 3], Sampling(max_tokens=500, seed=7), "salt", STOP_IDS, 1 << 31
)
PATIENT = Timeouts()


def serving(*scripts: Script) -> RawServer:
    return RawServer({"/v1/completions": scripts})


def upstream_of(
    server: RawServer, client: Client, timeouts: Timeouts = PATIENT, **limits: int
) -> InferenceServer:
    backend = Backend("gpu-1", server.url, {"public": "served"}, api_key="hush")
    return InferenceServer(backend, client, timeouts=timeouts, limits=StreamLimits(**limits))


async def collect(upstream: InferenceServer) -> list[TokenChunk]:
    heard = Heard()
    await upstream.generate(REQUEST, heard)
    return heard.chunks


@asynccontextmanager
async def led(upstream: InferenceServer, **listener: int) -> AsyncIterator[Led]:
    """A generation that the test listens to as it comes; it must have ended with the block."""
    heard = Led(**listener)  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as group:
        group.create_task(upstream.generate(REQUEST, heard))
        yield heard


async def test_a_long_answer_that_comes_at_once_is_followed_by_another_on_its_connection(
    client: Client,
) -> None:
    events = [STREAM_HEAD, *(said([i], text='"' * 400) for i in range(400)), *turn([200002])[1:]]
    async with serving((b"".join(events),)) as server:
        upstream = upstream_of(server, client, Timeouts(first_token_s=5))
        for _ in range(3):
            chunks = await collect(upstream)
            assert [i for chunk in chunks for i in chunk.ids] == [*range(400), 200002]
        assert (server.connections, len(server.requests)) == (1, 3)


async def test_reads_are_looked_at_in_the_turns_of_their_tenant(client: Client) -> None:
    events = [STREAM_HEAD, *(said([i], text='"' * 400) for i in range(400)), *turn([200002])[1:]]
    waited: list[Hashable] = []

    class Slow(ReadTurns):
        """Each of them has to wait."""

        @override
        def begin(self, tenant: Hashable, size: int) -> bool:
            return False

        @override
        def wait(self, tenant: Hashable, size: int, callback: Callable[[], None]) -> None:
            waited.append(tenant)
            super().wait(tenant, size, callback)

    async with serving((b"".join(events),)) as server:
        backend = Backend("gpu-1", server.url)
        upstream = InferenceServer(backend, client, timeouts=Timeouts(), read_turns=Slow())
        chunks = await collect(upstream)
        assert [i for chunk in chunks for i in chunk.ids] == [*range(400), 200002]
    assert len(waited) >= 3
    assert set(waited) == {REQUEST.tenant}


async def test_the_request_that_a_backend_sees(client: Client) -> None:
    async with serving(turn([1, 200002])) as server:
        await collect(upstream_of(server, client))
    (request,) = server.requests
    assert request.head.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert request.headers["authorization"] == "Bearer hush"
    assert request.headers["content-type"] == "application/json"
    assert "x-request-id" not in request.headers
    body = orjson.loads(request.body)
    assert (body["model"], body["prompt"], body["seed"]) == ("served", [1, 2, 3], 7)
    assert (body["request_id"], body["cache_salt"]) == ("req_1", "salt")


async def test_ids_are_handed_on_before_the_token_counts_are_there(client: Client) -> None:
    gate = Gate()
    script = (STREAM_HEAD, said([5, 200002], "stop"), gate, usage(16), DONE, STREAM_END)
    async with serving(script) as server:
        async with led(upstream_of(server, client)) as heard:
            assert await heard.next() == chunk_of([5, 200002])
            gate.opened.set()
        assert heard.chunks == [chunk_of([], FinishReason.STOP, 16)]


async def test_a_connection_is_used_for_the_next_turn(client: Client) -> None:
    whole = ((b"".join(turn([1])),), (b"".join(turn([2])),))
    async with serving(*whole) as server:
        upstream = upstream_of(server, client)
        for wanted in ([1], [2]):
            assert [i for chunk in await collect(upstream) for i in chunk.ids] == wanted
        assert server.connections == 1


async def test_events_that_piled_up_come_as_one_chunk(client: Client) -> None:
    piled = b"".join(said([i, i + 1]) for i in range(0, 192, 2))
    gate = Gate()
    script = (STREAM_HEAD, piled, gate, said([200002], "stop"), DONE, STREAM_END)
    async with serving(script) as server, led(upstream_of(server, client)) as heard:
        assert (await heard.next()).ids == list(range(192))
        gate.opened.set()


async def test_a_long_prompt_may_be_repeated_in_the_first_event(client: Client) -> None:
    echo = said([7], prompt_token_ids=[200006] * 128_000)
    async with serving((STREAM_HEAD, echo, said([200002], "stop"), DONE, STREAM_END)) as server:
        chunks = await collect(upstream_of(server, client))
    assert [i for chunk in chunks for i in chunk.ids] == [7, 200002]


async def test_an_event_beyond_the_bound_breaks_the_stream(client: Client) -> None:
    async with serving((STREAM_HEAD, said([1] * 1000), Act.STALL)) as server:
        with pytest.raises(UpstreamUnavailable, match=r"longer than 9.. bytes"):
            await collect(upstream_of(server, client, event_bytes_max=900))
        await server.hung_up.wait()


@pytest.mark.parametrize(
    ("code", "kind"),
    [(503, UpstreamUnavailable), (500, UpstreamLost), (400, UpstreamRejected), (404, PathNotFound)],
)
async def test_an_error_as_first_event_of_a_200_is_no_success(
    client: Client, code: int, kind: type[Exception]
) -> None:
    async with serving((STREAM_HEAD, COMMENT, failed(code, "engine is busy"))) as server:
        with pytest.raises(kind, match=f"answered {code}: engine is busy"):
            await collect(upstream_of(server, client))


async def test_an_overflow_told_inside_a_200_is_recognised(client: Client) -> None:
    message = "The decoder prompt (length 9) is longer than the maximum model length of 8."
    async with serving((STREAM_HEAD, failed(400, message))) as server:
        with pytest.raises(ContextOverflow):
            await collect(upstream_of(server, client))


@pytest.mark.parametrize(
    "script",
    [
        (Act.CLOSE,),
        (Act.RESET,),
        (STREAM_HEAD, Act.RESET),
        (STREAM_HEAD, STREAM_END),
        (STREAM_HEAD, DONE, STREAM_END),
        (response(b'{"choices":[]}'),),
        (response(b"", status=307, headers="location: /elsewhere\r\n"),),
        (response(b"<html>Bad Gateway</html>", status=502),),
        (b"HTTP/1.1 500 Oops\r\ncontent-length: 100\r\n\r\nlost", Act.RESET),
    ],
)
async def test_what_fails_before_the_first_id_may_be_tried_elsewhere(
    client: Client, script: Script
) -> None:
    async with serving(script) as server:
        with pytest.raises(UpstreamUnavailable) as caught:
            await collect(upstream_of(server, client))
    assert caught.value.upstream == "gpu-1"


@pytest.mark.parametrize(
    "script",
    [
        (Act.CLOSE,),
        (STREAM_HEAD, Act.RESET),
        (STREAM_HEAD, STREAM_END),
        (STREAM_HEAD, failed(500, "the engine is dead")),
        (response(b"Internal Server Error", status=500),),
    ],
)
async def test_a_backend_that_is_gone_before_the_first_id_may_be_so_because_of_the_request(
    client: Client, script: Script
) -> None:
    async with serving(script) as server:
        with pytest.raises(UpstreamLost):
            await collect(upstream_of(server, client))


@pytest.mark.parametrize(
    "script", [(response(b"", status=503),), (STREAM_HEAD, said([], "abort"), DONE, STREAM_END)]
)
async def test_a_backend_that_refuses_is_not_lost(client: Client, script: Script) -> None:
    async with serving(script) as server:
        with pytest.raises(UpstreamUnavailable) as caught:
            await collect(upstream_of(server, client))
    assert not isinstance(caught.value, UpstreamLost)


@pytest.mark.parametrize(
    ("sent", "begun", "kind"),
    [((), 0, UpstreamLost), ((STREAM_HEAD, said([1])), 1, UpstreamFailed)],
)
async def test_a_silent_generation_can_be_hung_up_on(
    client: Client, sent: tuple[bytes, ...], begun: int, kind: type[Exception]
) -> None:
    gate = Gate()
    async with serving((*sent, gate, Act.STALL)) as server:
        upstream, heard = upstream_of(server, client), Led()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(failure_of(upstream.generate(REQUEST, heard)))
            if begun:
                assert (await heard.next()).ids == [1]
            await gate.reached.wait()
            gate.opened.set()
            assert upstream.hang_up_on_silent(3600, begun_only=False) == 0
            assert upstream.hang_up_on_silent(0, begun_only=True) == begun
            assert upstream.hang_up_on_silent(0, begun_only=False) == 1
            await server.hung_up.wait()
        assert isinstance(task.result(), kind)
        assert "silent, and not reachable" in str(task.result())
        assert upstream.hang_up_on_silent(0, begun_only=False) == 0


async def test_who_has_no_room_for_more_does_not_call_it_silence(client: Client) -> None:
    gate = Gate()
    slow = (STREAM_HEAD, said([1]), gate, said([2], "stop"), DONE)
    silent = (STREAM_HEAD, said([1]), Act.STALL)
    async with serving(slow, silent) as server:
        upstream = upstream_of(server, client, Timeouts(stall_s=0.02, tail_s=0.02))
        async with led(upstream, width=1) as heard:
            await heard.held.wait()
            assert upstream.hang_up_on_silent(0, begun_only=False) == 0
            with pytest.raises(UpstreamFailed, match="no token in time"):
                await collect(upstream)  # begun later, it is out of patience with the backend now
            gate.opened.set()
            heard.width = None
            heard.make_room()
    assert (heard.ids, heard.chunks[-1].finish) == ([1, 2], FinishReason.STOP)


async def test_a_generation_that_has_no_connection_yet_is_left_to_its_timeouts(
    client: Client,
) -> None:
    async with serving(turn([1])) as server:
        upstream = upstream_of(server, client)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(collect(upstream))
            await asyncio.sleep(0)
            assert upstream.hang_up_on_silent(0, begun_only=False) == 0
        assert task.result()


async def test_a_server_that_is_not_there_may_be_replaced(client: Client) -> None:
    async with serving(turn([1])) as server:
        pass
    with pytest.raises(UpstreamUnavailable, match="ConnectError"):
        await collect(upstream_of(server, client))


@pytest.mark.parametrize("act", [Act.CLOSE, Act.RESET])
async def test_a_break_after_the_first_id_is_final(client: Client, act: Act) -> None:
    async with serving((STREAM_HEAD, said([1]), said([2]), act)) as server:
        with pytest.raises(UpstreamFailed):
            await collect(upstream_of(server, client))


@pytest.mark.parametrize("act", [Act.CLOSE, Act.STALL])
@pytest.mark.parametrize("last", STOP_IDS)
async def test_a_break_after_a_stop_id_has_lost_nothing(
    client: Client, act: Act, last: int
) -> None:
    async with serving((STREAM_HEAD, said([1]) + said([last]), act)) as server:
        chunks = await collect(upstream_of(server, client, Timeouts(stall_s=0.05)))
    assert [i for chunk in chunks for i in chunk.ids] == [1, last]
    assert chunks[-1].finish is FinishReason.STOP


async def test_a_refusal_is_read_only_up_to_its_bound(client: Client) -> None:
    head = b"HTTP/1.1 400 Bad Request\r\ntransfer-encoding: chunked\r\n\r\n"
    endless = chain([head], repeat(b"5\r\nwords\r\n"))
    async with serving(endless) as server:
        with pytest.raises(UpstreamRejected, match="words"):
            await collect(upstream_of(server, client, error_bytes_max=1000))
        await server.hung_up.wait()


async def test_a_refusal_that_never_ends_is_not_waited_for(client: Client) -> None:
    head = b"HTTP/1.1 503 Service Unavailable\r\ntransfer-encoding: chunked\r\n\r\n"
    async with serving(chain([head], repeat(b"1\r\n.\r\n"))) as server:
        upstream = upstream_of(server, client, Timeouts(tail_s=0.05), error_bytes_max=1 << 40)
        with pytest.raises(BackendBusy, match="did not come in time"):
            await collect(upstream)
        await server.hung_up.wait()


@pytest.mark.parametrize("script", [(Act.STALL,), (STREAM_HEAD, COMMENT, Act.STALL)])
async def test_patience_with_the_first_token_ends(client: Client, script: Script) -> None:
    async with serving(script) as server:
        with pytest.raises(UpstreamUnavailable):
            await collect(upstream_of(server, client, Timeouts(first_token_s=0.05)))
        await server.hung_up.wait()


async def test_patience_between_tokens_ends(client: Client) -> None:
    async with serving((STREAM_HEAD, said([1]), Act.STALL)) as server:
        with pytest.raises(UpstreamFailed, match="no token in time"):
            await collect(upstream_of(server, client, Timeouts(stall_s=0.05)))
        await server.hung_up.wait()


async def test_comments_do_not_buy_patience_with_the_first_token(client: Client) -> None:
    async with serving(chain([STREAM_HEAD], repeat(COMMENT))) as server:
        with pytest.raises(UpstreamUnavailable):
            await collect(upstream_of(server, client, Timeouts(first_token_s=0.05)))
        await server.hung_up.wait()


async def test_comments_do_not_buy_patience_between_tokens(client: Client) -> None:
    async with serving(chain([STREAM_HEAD, said([1])], repeat(COMMENT))) as server:
        with pytest.raises(UpstreamFailed, match="no token in time"):
            await collect(upstream_of(server, client, Timeouts(stall_s=0.05)))
        await server.hung_up.wait()


async def test_a_finish_does_not_wait_for_counts_that_never_come(client: Client) -> None:
    async with serving((STREAM_HEAD, said([1], "stop"), Act.STALL)) as server:
        chunks = await collect(upstream_of(server, client, Timeouts(tail_s=0.02)))
        await server.hung_up.wait()
    assert [i for chunk in chunks for i in chunk.ids] == [1]
    assert (chunks[-1].finish, chunks[-1].cached_tokens) == (FinishReason.STOP, None)


async def test_a_finished_turn_does_not_wait_for_the_end_of_the_body(client: Client) -> None:
    async with serving((STREAM_HEAD, said([1], "stop") + usage(3), Act.STALL)) as server:
        chunks = await collect(upstream_of(server, client, Timeouts(tail_s=0.02)))
        await server.hung_up.wait()
    assert [i for chunk in chunks for i in chunk.ids] == [1]
    assert (chunks[-1].finish, chunks[-1].cached_tokens) == (FinishReason.STOP, 3)


@pytest.mark.parametrize("sent", [[], [STREAM_HEAD], [STREAM_HEAD, said([1])]])
async def test_a_cancelled_turn_hangs_up(client: Client, sent: list[bytes]) -> None:
    gate = Gate()
    async with serving((*sent, gate, Act.STALL)) as server:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(collect(upstream_of(server, client)))
            await gate.reached.wait()
            task.cancel()
        gate.opened.set()
        await server.hung_up.wait()


async def test_who_has_heard_enough_hangs_up(client: Client) -> None:
    async with serving((STREAM_HEAD, said([1]) + said([2]), Act.STALL)) as server:
        enough = Led(stop_after=1)
        await upstream_of(server, client).generate(REQUEST, enough)
        assert enough.ids == [1, 2]
        await server.hung_up.wait()


async def test_what_a_listener_raises_hangs_up_and_comes_out(client: Client) -> None:
    async with serving((STREAM_HEAD, said([1]), Act.STALL)) as server:
        with pytest.raises(ZeroDivisionError):
            await upstream_of(server, client).generate(REQUEST, Faulty(error=ZeroDivisionError()))
        await server.hung_up.wait()
