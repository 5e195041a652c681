"""The pool and backends that differ in what can be asked of them."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from gateway.errors import InvalidRequest, ModelNotFound, NoUpstreamAvailable, UpstreamFailed
from gateway.generation import Constraint, Literal, Sampling
from gateway.upstreams.backend import Backend
from gateway.upstreams.ejection import EjectionPolicy
from gateway.upstreams.pool import ProbeSchedule
from tests.fakes.backend_captures import capture
from tests.fakes.completion_stream import DONE, said, told, turn
from tests.fakes.fleet import BUSY, MISSING, REQUEST, backend_server, fleet, listing, vllm
from tests.fakes.raw_server import STREAM_END, STREAM_HEAD, Act, RawServer, Script, response

BOUND = replace(REQUEST, constraint=Constraint(Literal("yes")))
TOLD = replace(REQUEST, sampling=Sampling(max_tokens=500, logprobs=1))


def sglang(path: str, **said: object) -> RawServer:
    """An SGLang that answers the question for what it is at `path`."""
    return RawServer(
        {
            "/v1/completions": [turn([1])],
            "/v1/models": [listing("m")],
            path: [(response(orjson.dumps(said)),)],
            "*": [MISSING],
        }
    )


def unknown() -> RawServer:
    """What answers no question for what it is."""
    return sglang("/nowhere")


@pytest.mark.parametrize(
    ("server", "version", "grammars"),
    [
        (backend_server(), "0.32.0", "turn"),
        (backend_server(version=[vllm("0.20.2")]), "0.20.2", "answer"),
        (sglang("/server_info", version="0.5.23"), "0.5.23", "turn"),
        (sglang("/get_server_info", version="0.5.5"), "0.5.5", "none"),
        (sglang("/model_info", model_path="/models/gpt-oss"), None, "none"),
    ],
)
async def test_a_backend_says_which_engine_it_is(
    server: RawServer, version: str | None, grammars: str
) -> None:
    async with fleet(server) as known:
        (state,) = known.pool.members()
        assert state.can is not None
        assert (state.version, state.can.grammars) == (version, grammars)


@pytest.mark.parametrize(
    "answer", [(Act.STALL,), (b"HTTP/1.1 200 OK\r\n", Act.RESET), (response(b"", status=503),)]
)
async def test_what_a_backend_does_not_say_now_has_not_changed(answer: Script) -> None:
    down: Script = (response(b"", status=503),)
    schedule = ProbeSchedule(describe_timeout_s=0.1)
    server = backend_server(
        version=[vllm("0.32.0"), answer, vllm("0.33.0")], health=[down, (response(b""),)] * 2
    )
    async with fleet(server, ejection=EjectionPolicy(failures_max=1), schedule=schedule) as known:
        for version in ("0.32.0", "0.33.0"):
            await known.pool.poll()
            await known.pool.poll()
            (state,) = known.pool.members()
            assert state.version == version
            assert state.can is not None
            assert state.can.grammars == "turn"


async def test_the_operator_may_turn_grammars_off() -> None:
    backends = [Backend("a", "", grammars=False)]
    async with fleet(backend_server(), backends=backends) as known:
        await known.ids(BOUND)
        assert b"structured_outputs" not in known.servers[0].requests[-1].body


async def test_a_constraint_goes_to_those_that_hold_it_while_they_are_there() -> None:
    old = backend_server(version=[vllm("0.10.2")])
    async with fleet(old, backend_server(BUSY, turn([7]))) as known:
        assert await known.ids(BOUND) == [1], "better without a grammar than not at all"
        for _ in range(3):
            assert await known.ids(BOUND) == [7]
        assert known.served() == [1, 4]


async def test_a_refused_grammar_is_no_failure_and_goes_nowhere_else() -> None:
    refusal = capture("s_stream_refused_500").reads
    ejection = EjectionPolicy(failures_max=1)
    servers = (backend_server((*refusal, Act.CLOSE), turn([7])), backend_server())
    async with fleet(*servers, ejection=ejection) as known:
        assert await known.ids(BOUND) == [7]
        assert known.served() == [2, 0]
        assert [state.healthy for state in known.pool.members()] == [True, True]


async def test_a_grammar_that_fails_does_not_eject_its_backend() -> None:
    gave_up: Script = (*capture("s_stream_gave_up").reads, Act.CLOSE)
    async with fleet(backend_server(gave_up), ejection=EjectionPolicy(failures_max=1)) as known:
        with pytest.raises(UpstreamFailed):
            await known.ids(BOUND)
        assert known.metric("upstream_requests_total", upstream="gpu-0", outcome="failed") == 1
        (state,) = known.pool.members()
        assert (state.healthy, state.health.failures) == (True, 0)


async def test_logprobs_are_asked_only_of_those_that_tell_them() -> None:
    told_turn: Script = (STREAM_HEAD, said([7], "stop", logprobs=told([7])), DONE, STREAM_END)
    servers = (unknown(), backend_server(BUSY, told_turn))
    async with fleet(*servers) as known:
        known.pool.require_logprobs("m")
        with pytest.raises(NoUpstreamAvailable, match="busy"):
            await known.ids(TOLD)
        for _ in range(3):
            assert await known.ids(TOLD, avoid=["gpu-1"]) == [7]
        assert known.served() == [0, 4]


async def test_that_nobody_tells_logprobs_is_said_with_what_to_do() -> None:
    async with fleet(unknown()) as known:
        with pytest.raises(InvalidRequest, match="out of include") as caught:
            await known.ids(TOLD)
        assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "include")
        with pytest.raises(InvalidRequest):
            known.pool.require_logprobs("m")
        with pytest.raises(ModelNotFound):
            known.pool.require_logprobs("other")
        assert known.served() == [0]


async def test_whether_logprobs_are_told_is_open_until_a_backend_said_what_it_is() -> None:
    backends = [Backend("a", "", {"m": "m"})]
    async with fleet(backend_server(models=[BUSY]), backends=backends) as known:
        with pytest.raises(NoUpstreamAvailable, match="tells logprobs"):
            known.pool.require_logprobs("m")
