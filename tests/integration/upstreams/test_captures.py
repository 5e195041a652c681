"""What a real vLLM sent, through a real socket: the contract of `InferenceServer`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.errors import (
    ContextOverflow,
    UpstreamError,
    UpstreamFailed,
    UpstreamRejected,
    UpstreamUnavailable,
)
from gateway.generation import LOGPROB_MIN, FinishReason, Sampling, TokenChunk, TokenRequest
from gateway.upstreams.backend import Backend, Timeouts
from gateway.upstreams.problems import BrokeDown, NoTokenIds
from gateway.upstreams.server import InferenceServer
from tests.fakes.backend_captures import Capture, capture, names
from tests.fakes.listening import Heard
from tests.fakes.raw_server import Act, RawServer, Script

if TYPE_CHECKING:
    from gateway.upstreams.client import Client

STOP_IDS = (200002, 200012, 199999)
REQUEST = TokenRequest(
    "req_1", "gpt-oss-tiny", [1, 2, 3], Sampling(max_tokens=9999), "salt", STOP_IDS, 1 << 31
)

COMPLETE = {
    "a_cached_1": (FinishReason.LENGTH, 0),
    "a_cached_2": (FinishReason.LENGTH, 384),
    "cmpl_stream_all": (FinishReason.LENGTH, None),
    "cmpl_stream_cont_usage": (FinishReason.LENGTH, None),
    "cmpl_stream_token_ids": (FinishReason.LENGTH, None),
    "d_eos_call_stopids": (FinishReason.STOP, None),
    "d_eos_call_stream": (FinishReason.STOP, None),
    "d_eos_incl": (FinishReason.STOP, None),
    "d_eos_return_stream": (FinishReason.STOP, None),
    "d_ignore_eos": (FinishReason.LENGTH, None),
    "d_min_tokens": (FinishReason.STOP, None),
    "d_stop_str": (FinishReason.STOP, None),
    "d_stop_token_stream": (FinishReason.STOP, None),
    "lp0_stream": (FinishReason.LENGTH, None),
    "lp20_sampled": (FinishReason.LENGTH, None),
    "lp5_interval": (FinishReason.LENGTH, None),
    "o_overload_0": (FinishReason.LENGTH, 0),
    "o_overload_5": (FinishReason.LENGTH, 0),
    "s_json_stream": (FinishReason.LENGTH, 0),
    "si2_req": (FinishReason.LENGTH, None),
    "si5_stream": (FinishReason.LENGTH, None),
    "si8_req": (FinishReason.LENGTH, None),
    "tok_stream_logprobs": (FinishReason.STOP, None),
}
BROKEN = {
    "k_api9_stream": "RemoteProtocolError",  # the API process was killed: no end, no [DONE]
    "k_engine9_stream": "EngineCore encountered an issue",
    "k_int_stream": "EngineCore encountered an issue",
    "k_term_stream": "finish reason abort",
    "s_stream_gave_up": "Internal server error",
    "x_abort_cmpl_stream": "finish reason abort",
    "x_disconnect_stream": "RemoteProtocolError",
}
REFUSED_IN_STREAM = {"s_stream_refused_400": UpstreamRejected, "s_stream_refused_500": BrokeDown}
TOLD = {"lp0_stream": 0, "lp5_interval": 5, "lp20_sampled": 20, "tok_stream_logprobs": 2}
"""Recordings with logprobs, and with how many alternatives they were asked for."""
REFUSED = [
    name
    for name in names("a_badauth", "a_noauth_cmpl", "a_dprank_bad", "d_*", "e_*", "s_bad_*", "l_*")
    + names("s_stream_refused_tag")
    + names("k_*_nostream", "o_gen_overload_hdrs")
    if capture(name).status >= 400
]


def ids_in(recorded: Capture) -> list[int]:
    """Read from the recording with nothing but a regular expression."""
    found = re.findall(rb'(?<!prompt_)"token_ids":\[([\d,]*)\]', recorded.response)
    return [int(number) for numbers in found for number in numbers.split(b",") if number]


def playing(recorded: Capture, *, at_once: bool = False) -> RawServer:
    reads = (recorded.response,) if at_once else recorded.reads
    script: Script = (*reads, Act.CLOSE)
    return RawServer({"/v1/completions": [script]})


async def collect(
    server: RawServer, client: Client, request: TokenRequest = REQUEST
) -> tuple[list[TokenChunk], UpstreamError | None]:
    backend = Backend("gpu-1", server.url)
    upstream = InferenceServer(backend, client, timeouts=Timeouts())
    heard = Heard()
    try:
        await upstream.generate(request, heard)
    except UpstreamError as error:
        return heard.chunks, error
    return heard.chunks, None


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("name", COMPLETE)
async def test_a_recorded_turn_comes_out_id_for_id(
    client: Client, name: str, at_once: bool
) -> None:
    recorded = capture(name)
    async with playing(recorded, at_once=at_once) as server:
        chunks, error = await collect(server, client)
    assert error is None
    assert [i for chunk in chunks for i in chunk.ids] == ids_in(recorded)
    assert [chunk.finish for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert (chunks[-1].finish, chunks[-1].cached_tokens) == COMPLETE[name]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("name", BROKEN)
async def test_a_recorded_break_is_a_failure_after_all_its_ids(
    client: Client, name: str, at_once: bool
) -> None:
    recorded = capture(name)
    async with playing(recorded, at_once=at_once) as server:
        chunks, error = await collect(server, client)
    assert [i for chunk in chunks for i in chunk.ids] == ids_in(recorded)
    assert all(chunk.finish is None for chunk in chunks)
    assert isinstance(error, UpstreamFailed)
    assert error.upstream == "gpu-1"
    assert BROKEN[name] in str(error)


@pytest.mark.parametrize("name", REFUSED)
async def test_a_recorded_refusal_is_told_with_its_message(client: Client, name: str) -> None:
    recorded = capture(name)
    async with playing(recorded) as server:
        chunks, error = await collect(server, client)
    rejected = recorded.status in {400, 422}
    assert chunks == []
    assert isinstance(error, UpstreamRejected if rejected else UpstreamUnavailable)
    assert f"answered {recorded.status}: " in str(error)
    assert "no message" not in str(error)


@pytest.mark.parametrize("name", ["e_too_long", "e_too_long_stream", "e_exact_maxlen"])
async def test_a_recorded_overflow_of_the_context_is_told_apart(client: Client, name: str) -> None:
    async with playing(capture(name)) as server:
        _, error = await collect(server, client)
    assert isinstance(error, ContextOverflow)


async def test_a_server_that_returns_no_ids_is_too_old(client: Client) -> None:
    async with playing(capture("cmpl_stream")) as server:
        chunks, error = await collect(server, client)
    assert chunks == []
    assert isinstance(error, NoTokenIds)


@pytest.mark.parametrize("name", REFUSED_IN_STREAM)
async def test_a_refusal_of_a_grammar_may_come_as_the_first_event(
    client: Client, name: str
) -> None:
    """From a server that compiles grammars after it has said 200."""
    async with playing(capture(name)) as server:
        chunks, error = await collect(server, client)
    assert chunks == []
    assert type(error) is REFUSED_IN_STREAM[name]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("name", TOLD)
async def test_recorded_logprobs_are_those_of_the_ids_they_come_with(
    client: Client, name: str, at_once: bool
) -> None:
    request = replace(REQUEST, sampling=Sampling(max_tokens=9999, logprobs=TOLD[name]))
    async with playing(capture(name), at_once=at_once) as server:
        chunks, error = await collect(server, client, request)
    assert error is None
    assert [i for chunk in chunks for i in chunk.ids] == ids_in(capture(name))
    for chunk in chunks:
        assert chunk.logprobs is not None
        assert len(chunk.logprobs) == len(chunk.ids)
    for id_, one in ((i, p) for c in chunks for i, p in zip(c.ids, c.logprobs or [], strict=True)):
        assert len(one.top) == TOLD[name]
        likelihoods = [logprob for _, logprob in one.top]
        assert likelihoods == sorted(likelihoods, reverse=True)
        assert all(LOGPROB_MIN <= logprob <= 0 for logprob in (one.logprob, *likelihoods))
        assert dict(one.top).get(id_, one.logprob) == one.logprob


def test_every_recording_of_a_completion_is_played() -> None:
    recorded = {name for name in names("*") if b"POST /v1/completions" in capture(name).request}
    assert recorded == {*COMPLETE, *BROKEN, *REFUSED, *REFUSED_IN_STREAM, "cmpl_stream"}
