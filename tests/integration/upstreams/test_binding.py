"""`InferenceServer` and what can be asked of an engine: grammars, logprobs."""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson
import pytest

from gateway.errors import (
    ContextOverflow,
    UpstreamError,
    UpstreamFailed,
    UpstreamLost,
    UpstreamRejected,
)
from gateway.generation import Constraint, Literal, Sampling, TokenChunk, TokenLogprob, TokenRequest
from gateway.upstreams.backend import Backend, Timeouts
from gateway.upstreams.engines import SGLang, UnknownEngine, Vllm
from gateway.upstreams.inference_server import InferenceServer
from gateway.upstreams.problems import BackendBusy, BrokeDown, GrammarFailed
from gateway.upstreams.request_writer import BLOCK_IDS
from tests.fakes.backend_captures import capture
from tests.fakes.completion_stream import DONE, said, told, turn
from tests.fakes.raw_server import STREAM_END, STREAM_HEAD, Act, RawServer, Script, response
from tests.fakes.token_sinks import Heard, Led

if TYPE_CHECKING:
    from gateway.upstreams.http.client import Client

REQUEST = TokenRequest(
    "req_1", "m", [1, 2, 3], Sampling(max_tokens=500), "salt", (200002,), 1 << 31
)
BOUND = replace(REQUEST, constraint=Constraint(Literal("yes")))
VLLM = Vllm("0.32.0")
BAD_TAG: Script = (capture("s_stream_refused_tag").response,)
BAD_GRAMMAR: Script = capture("s_stream_refused_400").reads
BROKE_DOWN: Script = capture("s_stream_refused_500").reads
NO_TOKENIZER: Script = (
    response(b'{"error":{"message":"it can\'t be used with \'skip_tokenizer_init\'"}}', status=400),
)


def serving(*scripts: Script) -> RawServer:
    return RawServer({"/v1/completions": scripts})


def upstream_of(server: RawServer, client: Client) -> InferenceServer:
    backend = Backend("gpu-1", server.url)
    return InferenceServer(backend, client, timeouts=Timeouts())


async def collect(upstream: InferenceServer, request: TokenRequest = REQUEST) -> list[TokenChunk]:
    heard = Heard()
    await upstream.generate(request, heard)
    return heard.chunks


def bodies(server: RawServer) -> list[dict[str, object]]:
    return [orjson.loads(request.body) for request in server.requests]


async def test_a_model_is_bound_where_the_engine_can(client: Client) -> None:
    async with serving(turn([1, 200002])) as server:
        upstream = upstream_of(server, client)
        assert not any(chunk.constrained for chunk in await collect(upstream, BOUND))
        upstream.runs(VLLM)
        chunks = await collect(upstream, BOUND)
        assert all(chunk.constrained for chunk in chunks)
        assert not any(chunk.constrained for chunk in await collect(upstream))
    assert ["structured_outputs" in body for body in bodies(server)] == [False, True, False]


async def test_a_grammar_of_many_calls_is_the_same_grammar(client: Client) -> None:
    many = replace(BOUND, constraint=Constraint(Literal("yes"), calls=500))
    async with serving(turn([1, 200002])) as server:
        upstream = upstream_of(server, client)
        assert not any(chunk.constrained for chunk in await collect(upstream, many))
        upstream.runs(VLLM)
        assert all(chunk.constrained for chunk in await collect(upstream, many))
        await collect(upstream, BOUND)
    without, *bound = bodies(server)
    assert "structured_outputs" not in without
    assert bound[0] == bound[1]


async def test_each_engine_is_spoken_to_in_its_own_dialect(client: Client) -> None:
    async with serving(turn([1, 200002])) as server:
        upstream = upstream_of(server, client)
        upstream.runs(SGLang("0.5.23"))
        assert all(chunk.constrained for chunk in await collect(upstream, BOUND))
    (body,) = bodies(server)
    assert body["rid"] == "req_1"
    assert "response_format" in body


async def test_a_request_under_way_is_not_put_into_other_words(client: Client) -> None:
    """While a long prompt is encoded the backend may say that it is another engine."""
    long = replace(REQUEST, prompt_ids=array("I", [1]) * (20 * BLOCK_IDS))
    async with serving(turn([1, 200002])) as server:
        upstream = upstream_of(server, client)
        upstream.runs(VLLM)
        task = asyncio.get_running_loop().create_task(collect(upstream, long))
        await asyncio.sleep(0)
        assert server.requests == []
        upstream.runs(SGLang("0.5.23", frontend="rust"))
        assert [i for chunk in await task for i in chunk.ids] == [1, 200002]
    (body,) = bodies(server)
    assert {"prompt", "request_id"} <= body.keys()


@pytest.mark.parametrize("refusal", [BAD_TAG, BAD_GRAMMAR, BROKE_DOWN])
async def test_a_grammar_that_is_refused_is_left_out(client: Client, refusal: Script) -> None:
    refusal = (*refusal, Act.CLOSE)
    async with serving(refusal, turn([1, 200002]), refusal, turn([2, 200002])) as server:
        upstream = upstream_of(server, client)
        upstream.runs(VLLM)
        for first in (1, 2):
            chunks = await collect(upstream, BOUND)
            assert [i for chunk in chunks for i in chunk.ids] == [first, 200002]
            assert not any(chunk.constrained for chunk in chunks)
        assert upstream.can.grammars == "turn", "another grammar may be taken"
    sent = bodies(server)
    assert ["structured_outputs" in body for body in sent] == [True, False] * 2
    assert [body["request_id"] for body in sent[:2]] == ["req_1", "free-req_1"]


async def test_who_refuses_every_grammar_is_not_sent_another_until_asked_anew(
    client: Client,
) -> None:
    async with serving(NO_TOKENIZER, turn([1, 200002])) as server:
        upstream = upstream_of(server, client)
        upstream.runs(VLLM)
        for _ in range(2):
            await collect(upstream, BOUND)
        noted = [upstream.can.grammars]
        upstream.runs(VLLM)
        noted.append(upstream.can.grammars)
        assert noted == ["none", "turn"]
    assert ["structured_outputs" in body for body in bodies(server)] == [True, False, False]


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (BAD_TAG, BAD_TAG, UpstreamRejected),  # something else is wrong with the request
        (BAD_TAG, (response(b"", status=503),), BackendBusy),
        (BROKE_DOWN, (response(b"", status=503),), BrokeDown),  # it did not survive the first
        (BROKE_DOWN, (Act.RESET,), BrokeDown),
        (BROKE_DOWN, BAD_TAG, UpstreamRejected),
        (BROKE_DOWN, (STREAM_HEAD, said([1]), Act.RESET), UpstreamFailed),
    ],
)
async def test_a_request_is_tried_without_its_grammar_once(
    client: Client, first: Script, second: Script, kind: type[Exception]
) -> None:
    async with serving((*first, Act.CLOSE), second) as server:
        upstream = upstream_of(server, client)
        upstream.runs(VLLM)
        with pytest.raises(UpstreamError) as caught:
            await collect(upstream, BOUND)
        assert type(caught.value) is kind
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ((response(b"", status=503),), BackendBusy),
        ((Act.RESET,), UpstreamLost),
        ((STREAM_HEAD, said([1]), Act.RESET), UpstreamFailed),
        ((capture("e_too_long").response,), ContextOverflow),
    ],
)
async def test_a_grammar_is_not_blamed_for_everything(
    client: Client, script: Script, kind: type[Exception]
) -> None:
    async with serving((*script, Act.CLOSE)) as server:
        upstream = upstream_of(server, client)
        upstream.runs(VLLM)
        with pytest.raises(UpstreamError) as caught:
            await collect(upstream, BOUND)
        assert type(caught.value) is kind
        assert len(server.requests) == 1


@pytest.mark.parametrize("scripts", [[], [BAD_TAG]])
async def test_who_has_heard_enough_of_a_bound_stream_hangs_up(
    client: Client, scripts: list[Script]
) -> None:
    async with serving(*scripts, (STREAM_HEAD, said([1]), Act.STALL)) as server:
        upstream = upstream_of(server, client)
        upstream.runs(VLLM)
        led = Led(stop_after=1)
        await upstream.generate(BOUND, led)
        assert led.ids == [1]
        await server.hung_up.wait()


async def test_logprobs_come_beside_their_ids(client: Client) -> None:
    asked = replace(REQUEST, sampling=Sampling(max_tokens=500, logprobs=1))
    script = (STREAM_HEAD, said([5, 200002], "stop", logprobs=told([5, 200002])), DONE, STREAM_END)
    async with serving(script) as server:
        upstream = upstream_of(server, client)
        upstream.runs(VLLM)
        chunks = await collect(upstream, asked)
    assert chunks[0].logprobs == [
        TokenLogprob(0.0, ((5, 0.0),)), TokenLogprob(0.0, ((200002, 0.0),)),
    ]  # fmt: skip


async def test_a_grammar_may_end_a_generation_and_nothing_else(client: Client) -> None:
    gave_up: Script = (*capture("s_stream_gave_up").reads, Act.CLOSE)
    async with serving(gave_up) as server:
        upstream = upstream_of(server, client)
        for engine, kind in ((UnknownEngine(), UpstreamFailed), (VLLM, GrammarFailed)):
            upstream.runs(engine)
            with pytest.raises(UpstreamFailed) as caught:
                await collect(upstream, BOUND)
            assert type(caught.value) is kind
