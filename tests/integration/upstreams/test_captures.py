"""What real servers sent, through a real socket: the contract of `InferenceServer`, engine by
engine (`tests/fakes/engine_profiles.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.errors import UpstreamError, UpstreamFailed
from gateway.generation import LOGPROB_MIN, Sampling, TokenChunk, TokenLogprob, TokenRequest
from gateway.upstreams.backend import Backend, Timeouts
from gateway.upstreams.engines import ENGINES
from gateway.upstreams.inference_server import InferenceServer
from tests.fakes.backend_captures import Capture, capture, names
from tests.fakes.engine_profiles import PROFILES, Profile
from tests.fakes.raw_server import Act, RawServer, Script
from tests.fakes.token_sinks import Heard

if TYPE_CHECKING:
    from gateway.upstreams.http.client import Client

STOP_IDS = (200002, 200012, 199999)
REQUEST = TokenRequest(
    "req_1", "gpt-oss-tiny", [1, 2, 3], Sampling(max_tokens=9999), "salt", STOP_IDS, 1 << 31
)
COMPLETE = [(profile, name) for profile in PROFILES for name in profile.complete]
BROKEN = [(profile, name) for profile in PROFILES for name in profile.broken]
REFUSED = [(profile, name) for profile in PROFILES for name in profile.refused]
TOLD = [(profile, name) for profile in PROFILES for name in profile.told]


def playing(recorded: Capture, *, at_once: bool = False) -> RawServer:
    reads = (recorded.response,) if at_once else recorded.reads
    script: Script = (*reads, Act.CLOSE)
    return RawServer({recorded.path: [script]})


def request_for(profile: Profile, name: str) -> TokenRequest:
    """With logprobs, where the recording has some."""
    if name not in profile.told:
        return REQUEST
    return replace(REQUEST, sampling=Sampling(max_tokens=9999, logprobs=profile.told[name]))


async def collect(
    profile: Profile, name: str, server: RawServer, client: Client
) -> tuple[list[TokenChunk], UpstreamError | None]:
    upstream = InferenceServer(Backend("gpu-1", server.url), client, timeouts=Timeouts())
    upstream.runs(profile.engine)
    heard = Heard()
    try:
        await upstream.generate(request_for(profile, name), heard)
    except UpstreamError as error:
        return heard.chunks, error
    return heard.chunks, None


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(("profile", "name"), COMPLETE, ids=str)
async def test_a_recorded_turn_comes_out_id_for_id(
    client: Client, profile: Profile, name: str, at_once: bool
) -> None:
    recorded = capture(name)
    async with playing(recorded, at_once=at_once) as server:
        chunks, error = await collect(profile, name, server, client)
    assert error is None
    assert [i for chunk in chunks for i in chunk.ids] == profile.ids_in(recorded)
    assert [chunk.finish for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert (chunks[-1].finish, chunks[-1].cached_tokens) == profile.complete[name]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(("profile", "name"), BROKEN, ids=str)
async def test_a_recorded_break_is_a_failure_after_all_its_ids(
    client: Client, profile: Profile, name: str, at_once: bool
) -> None:
    recorded = capture(name)
    async with playing(recorded, at_once=at_once) as server:
        chunks, error = await collect(profile, name, server, client)
    assert [i for chunk in chunks for i in chunk.ids] == profile.ids_in(recorded)
    assert all(chunk.finish is None for chunk in chunks)
    assert isinstance(error, UpstreamFailed)
    assert error.upstream == "gpu-1"
    assert profile.broken[name] in str(error)


@pytest.mark.parametrize(("profile", "name"), REFUSED, ids=str)
async def test_a_recorded_refusal_is_the_error_that_it_means(
    client: Client, profile: Profile, name: str
) -> None:
    """Also where it comes as the first event of a 200."""
    async with playing(capture(name)) as server:
        chunks, error = await collect(profile, name, server, client)
    assert chunks == []
    assert type(error) is profile.refused[name]
    assert "no message" not in str(error)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(("profile", "name"), TOLD, ids=str)
async def test_recorded_logprobs_are_those_of_the_ids_they_come_with(
    client: Client, profile: Profile, name: str, at_once: bool
) -> None:
    recorded = capture(name)
    async with playing(recorded, at_once=at_once) as server:
        chunks, error = await collect(profile, name, server, client)
    assert error is None
    assert [i for chunk in chunks for i in chunk.ids] == profile.ids_in(recorded)
    for chunk in chunks:
        assert chunk.logprobs is not None
        assert len(chunk.logprobs) == len(chunk.ids)
    for id_, one in ((i, p) for c in chunks for i, p in zip(c.ids, c.logprobs or [], strict=True)):
        assert isinstance(one, TokenLogprob)
        assert len(one.top) == profile.told[name]
        likelihoods = [logprob for _, logprob in one.top]
        assert likelihoods == sorted(likelihoods, reverse=True)
        assert all(LOGPROB_MIN <= logprob <= 0 for logprob in (one.logprob, *likelihoods))
        assert dict(one.top).get(id_, one.logprob) == one.logprob


def test_every_engine_has_a_turn_and_a_refusal_and_logprobs_where_it_tells_them() -> None:
    assert {type(profile.engine) for profile in PROFILES} == set(ENGINES)
    assert {type(profile.engine) for profile in PROFILES if profile.refused} == set(ENGINES)
    assert all(profile.complete for profile in PROFILES)
    telling = {type(profile.engine) for profile in PROFILES if profile.told}
    assert telling == {kind for kind in ENGINES if kind.logprobs}


def test_every_recording_of_a_completion_is_played() -> None:
    recorded = {name for name in names("*", "*/*") if capture(name).path in PLAYED}
    told = {name for kinds in (COMPLETE, BROKEN, REFUSED) for _, name in kinds}
    assert recorded == told


PLAYED = {"/v1/completions", "/generate"}
