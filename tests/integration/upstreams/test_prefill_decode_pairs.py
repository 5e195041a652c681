"""A pair of servers, one reads the prompt and one goes on: SGLang's contract, by two fakes.

From the source of SGLang 0.5.23: the same request goes to both, with `bootstrap_host`,
`bootstrap_port` and `bootstrap_room`; the output is the decode server's. No pair was run.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway.errors import UpstreamError, UpstreamLost, UpstreamRejected, UpstreamUnavailable
from gateway.generation import Sampling, TokenRequest
from gateway.upstreams.backend import Backend, Prefill, Timeouts
from gateway.upstreams.engines import SGLang, Vllm
from gateway.upstreams.inference_server import InferenceServer
from tests.fakes.completion_stream import DONE, failed, said, turn
from tests.fakes.logs import captured_logs
from tests.fakes.raw_server import STREAM_END, STREAM_HEAD, Act, Gate, RawServer, Script, response
from tests.fakes.token_sinks import Heard, Led, led_by

if TYPE_CHECKING:
    from gateway.upstreams.http.client import Client

REQUEST = TokenRequest(
    "req_1", "m", [1, 2, 3], Sampling(max_tokens=500), "salt", (200002,), 1 << 31
)


def server_of(*scripts: Script) -> RawServer:
    return RawServer({"/v1/completions": scripts, "/generate": scripts})


def decoding(decode: RawServer, prefill: RawServer, client: Client) -> InferenceServer:
    pair = Prefill(prefill.url, "prefill.host", 8998)
    backend = Backend("pair", decode.url, api_key="k", prefill=pair)
    upstream = InferenceServer(backend, client, timeouts=Timeouts(first_token_s=100.0))
    upstream.runs(SGLang("0.5.23"))
    return upstream


def body_of(server: RawServer) -> dict[str, Any]:
    (request,) = server.requests
    assert request.headers["authorization"] == "Bearer k"
    found: dict[str, Any] = orjson.loads(request.body)
    return found


@pytest.mark.parametrize("logprobs", [None, 0])
async def test_both_are_sent_the_same_request_and_the_room_to_meet_in(
    client: Client, logprobs: int | None
) -> None:
    request = replace(REQUEST, sampling=Sampling(max_tokens=500, logprobs=logprobs))
    async with server_of(turn([7, 200002])) as decode, server_of(turn([9])) as prefill:
        heard = Heard()
        upstream = decoding(decode, prefill, client)
        if logprobs is None:
            await upstream.generate(request, heard)
            assert heard.ids == [7, 200002]
        else:
            with pytest.raises(UpstreamError):  # the fakes speak the other dialect only
                await upstream.generate(request, heard)
        sent, also_sent = body_of(decode), body_of(prefill)
        assert decode.requests[0].path == prefill.requests[0].path
    assert sent == also_sent
    assert (sent["bootstrap_host"], sent["bootstrap_port"]) == ("prefill.host", 8998)
    assert 0 <= sent["bootstrap_room"] < 1 << 63


async def test_no_two_requests_meet_in_one_room(client: Client) -> None:
    async with server_of(turn([7, 200002])) as decode, server_of(turn([9])) as prefill:
        upstream = decoding(decode, prefill, client)
        for _ in range(2):
            await upstream.generate(REQUEST, Heard())
        rooms = {orjson.loads(request.body)["bootstrap_room"] for request in decode.requests}
    assert len(rooms) == 2


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ((response(b'{"message":"no"}', status=400),), UpstreamRejected),
        ((response(b'{"message":"busy"}', status=503),), UpstreamUnavailable),
        ((Act.RESET,), UpstreamLost),
        ((STREAM_HEAD, Act.RESET), UpstreamLost),
        ((STREAM_HEAD, failed(503, "The request queue is full.")), UpstreamUnavailable),
    ],
)
async def test_what_goes_wrong_where_prompts_are_read_ends_the_request(
    client: Client, script: Script, kind: type[UpstreamError]
) -> None:
    async with server_of((STREAM_HEAD, Act.STALL)) as decode, server_of(script) as prefill:
        with pytest.raises(kind) as caught:
            await decoding(decode, prefill, client).generate(REQUEST, Heard())
    assert caught.value.upstream == "pair"


async def test_what_is_said_where_prompts_are_read_is_of_no_interest(client: Client) -> None:
    odd: Script = (STREAM_HEAD, said([9], "abort"), DONE, STREAM_END)
    async with server_of(turn([7, 200002])) as decode, server_of(odd) as prefill:
        heard = Heard()
        await decoding(decode, prefill, client).generate(REQUEST, heard)
    assert heard.ids == [7, 200002]


async def test_who_has_read_the_prompt_may_fail_once_the_answer_has_begun(client: Client) -> None:
    """To begin the request anew at another pair would say the first ids twice."""
    fails, goes_on, told = Gate(), Gate(), asyncio.Event()
    answer: Script = (STREAM_HEAD, said([7]), goes_on, said([200002], "stop"), DONE, STREAM_END)
    prompt: Script = (STREAM_HEAD, said([9]), fails, Act.RESET)
    async with server_of(answer) as decode, server_of(prompt) as prefill:
        with captured_logs(told.set, of="gateway.upstreams.inference_server") as log:
            generate = partial(decoding(decode, prefill, client).generate, REQUEST)
            async with asyncio.timeout(30), led_by(generate) as (led, task):
                assert (await led.next()).ids == [7]
                fails.opened.set()
                await asyncio.wait(
                    [task, asyncio.ensure_future(told.wait())], return_when="FIRST_COMPLETED"
                )
                goes_on.opened.set()
                await task
                assert led.ids == [200002]
    assert [event["event"] for event in log] == ["prefill server fails behind its work"]


async def test_a_turn_that_is_over_waits_for_nobody(client: Client) -> None:
    silent: Script = (STREAM_HEAD, Act.STALL)
    async with server_of(turn([7, 200002])) as decode, server_of(silent) as prefill:
        heard = Heard()
        async with asyncio.timeout(30):
            await decoding(decode, prefill, client).generate(REQUEST, heard)
    assert heard.ids == [7, 200002]


async def test_a_request_that_is_cancelled_leaves_both(client: Client) -> None:
    reached = Gate()
    async with (
        server_of((STREAM_HEAD, Act.STALL)) as decode,
        server_of((STREAM_HEAD, reached, Act.CLOSE)) as prefill,
    ):
        task = asyncio.get_running_loop().create_task(
            decoding(decode, prefill, client).generate(REQUEST, Led())
        )
        await reached.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        reached.opened.set()


async def test_an_engine_without_pairs_is_asked_alone(client: Client) -> None:
    async with server_of(turn([7, 200002])) as decode, server_of(turn([9])) as prefill:
        upstream = decoding(decode, prefill, client)
        upstream.runs(Vllm("0.32.0"))
        heard = Heard()
        await upstream.generate(REQUEST, heard)
        assert (heard.ids, prefill.requests) == ([7, 200002], [])
        assert "bootstrap_room" not in body_of(decode)
