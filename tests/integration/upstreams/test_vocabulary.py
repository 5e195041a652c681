"""No id that a model does not know is ever sent to a server that would die of it.

Seen of SGLang 0.5.23: the scheduler ends with an IndexError, and every stream with it.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.errors import UpstreamRejected
from gateway.generation import Sampling, TokenRequest
from gateway.upstreams.backend import Backend, Timeouts
from gateway.upstreams.engines import SGLang, Vllm
from gateway.upstreams.inference_server import InferenceServer
from gateway.upstreams.request_writer import BLOCK_IDS, KEPT_FROM_IDS, PromptEncoder, UnknownId
from tests.fakes.completion_stream import turn
from tests.fakes.fleet import fleet
from tests.fakes.raw_server import RawServer
from tests.fakes.token_sinks import Heard
from tests.integration.upstreams.test_served_models import sglang

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.upstreams.http.client import Client

ID_END = 1000
LONG = array("I", [7]) * (KEPT_FROM_IDS + BLOCK_IDS)
REQUEST = TokenRequest("req_1", "m", [1, 2], Sampling(max_tokens=9), "salt", (2,), ID_END)
UNKNOWN: dict[str, Sequence[int]] = {
    "first": [ID_END, 1],
    "last": [1, ID_END + 5],
    "packed": array("I", [1, 2**32 - 1]),
    "in a long prompt": LONG[:-1] + array("I", [ID_END]),
    "at its beginning": array("I", [ID_END]) + LONG,
}


@pytest.mark.parametrize("frontend", ["python", "rust"])
@pytest.mark.parametrize("where", UNKNOWN)
async def test_an_sglang_never_sees_an_id_that_the_model_does_not_know(
    client: Client, where: str, frontend: str
) -> None:
    async with RawServer({"*": [turn([1])]}) as server:
        upstream = InferenceServer(Backend("gpu-1", server.url), client, timeouts=Timeouts())
        upstream.runs(SGLang("0.5.23", frontend=frontend))
        with pytest.raises(UpstreamRejected, match="not in the vocabulary"):
            await upstream.generate(replace(REQUEST, prompt_ids=UNKNOWN[where]), Heard())
        assert server.requests == []


async def test_a_vllm_refuses_it_itself(client: Client) -> None:
    async with RawServer({"*": [turn([1, 2])]}) as server:
        upstream = InferenceServer(Backend("gpu-1", server.url), client, timeouts=Timeouts())
        upstream.runs(Vllm("0.32.0"))
        await upstream.generate(replace(REQUEST, prompt_ids=[ID_END]), Heard())
        assert len(server.requests) == 1


async def test_such_a_prompt_takes_no_backend_out() -> None:
    async with fleet(sglang(), sglang()) as known:
        for _ in range(4):
            with pytest.raises(UpstreamRejected):
                await known.ids(replace(REQUEST, model="base", prompt_ids=[ID_END]))
        assert [state.healthy for state in known.pool.members()] == [True, True]
        assert known.served() == [0, 0]


@pytest.mark.parametrize("where", UNKNOWN)
async def test_a_prompt_is_looked_at_also_where_it_was_encoded_before(where: str) -> None:
    prompts = PromptEncoder()
    for _ in range(2):
        await prompts.encode(UNKNOWN[where], owner="a")
        with pytest.raises(UnknownId):
            await prompts.encode(UNKNOWN[where], owner="a", id_end=ID_END)
    assert await prompts.encode([ID_END - 1], owner="a", id_end=ID_END) == [b"[999]"]
