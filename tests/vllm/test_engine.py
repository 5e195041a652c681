"""What is asked of an engine beside ids, and whether a real one does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson
import pytest

from gateway.generation import (
    LOGPROB_MIN,
    Constraint,
    FinishReason,
    InOrder,
    Json,
    Literal,
    Node,
    Sampling,
    Token,
    TokenChunk,
    TokenLogprob,
    TokenRequest,
)
from gateway.models.harmony.tokenizer import CHANNEL, MESSAGE, STOP_IDS, VOCABULARY_SIZE
from gateway.telemetry.metrics import Metrics
from gateway.upstreams.backend import Backend
from gateway.upstreams.http.client import build_client
from gateway.upstreams.pool import Pool, PoolPolicy
from tests.fakes.harmony_oracle import vocabulary
from tests.fakes.raw_http import plain_prompt
from tests.fakes.token_sinks import Heard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.vllm.conftest import Vllm

pytestmark = pytest.mark.vllm

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
ANSWER = InOrder((Token(CHANNEL), Literal("final"), Token(MESSAGE), Json(SCHEMA)))


@pytest.fixture
async def pool(vllm: Vllm) -> AsyncIterator[Pool]:
    opened = Pool(
        [Backend("vllm", vllm.url, priorities=True)],
        build_client(),
        policy=PoolPolicy(),
        metrics=Metrics(),
    )
    await opened.start()
    yield opened
    await opened.close()


async def collect(pool: Pool, vllm: Vllm, asked: Node | None = None, **more: Any) -> TokenChunk:
    """All chunks as one."""
    sampling = Sampling(**{"max_tokens": 100, "temperature": 0.0, **more})
    constraint = Constraint(asked) if asked is not None else None
    request = TokenRequest(
        # SGLang may abort a request of the same id late: of the test before, which hung up.
        f"req_{uuid4().hex}",
        vllm.model,
        plain_prompt("Hello"),
        sampling,
        "salt",
        STOP_IDS,
        VOCABULARY_SIZE,
        constraint,
        priority=3,
    )
    heard = Heard()
    await pool.generate(request, heard)
    chunks = heard.chunks
    for chunk in chunks:
        assert (chunk.logprobs is None) == (sampling.logprobs is None)
    return TokenChunk(
        [one for chunk in chunks for one in chunk.ids],
        chunks[-1].finish,
        logprobs=[one for chunk in chunks for one in chunk.logprobs or []],
        constrained=all(chunk.constrained for chunk in chunks),
    )


async def test_a_model_is_held_to_a_grammar_of_ids_and_text(pool: Pool, vllm: Vllm) -> None:
    turn = await collect(pool, vllm, ANSWER)
    assert turn.constrained
    assert turn.finish is FinishReason.STOP
    body = turn.ids[turn.ids.index(MESSAGE) + 1 : -1]
    answer = orjson.loads(vocabulary().decode(body))
    assert set(answer) == {"a", "b"}


async def test_a_grammar_that_the_server_refuses_is_left_out(pool: Pool, vllm: Vllm) -> None:
    turn = await collect(pool, vllm, Json({"type": "nonsense"}))
    assert turn.ids
    assert not turn.constrained
    assert all(state.healthy for state in pool.members())


@pytest.mark.parametrize("asked", [None, ANSWER])
@pytest.mark.parametrize("alternatives", [0, 5, 20])
async def test_logprobs_are_told_of_every_id(
    pool: Pool, vllm: Vllm, alternatives: int, asked: Node | None
) -> None:
    turn = await collect(
        pool, vllm, asked, logprobs=alternatives, temperature=1.5, seed=3, max_tokens=20
    )
    assert turn.logprobs is not None
    assert len(turn.logprobs) == len(turn.ids)
    for id_, one in zip(turn.ids, turn.logprobs, strict=True):
        assert isinstance(one, TokenLogprob)
        assert len(one.top) == alternatives
        assert LOGPROB_MIN <= one.logprob <= 0
        assert dict(one.top).get(id_, one.logprob) == one.logprob


async def test_further_ways_to_sample_are_taken(pool: Pool, vllm: Vllm) -> None:
    greedy = await collect(pool, vllm, max_tokens=5)
    only_one = await collect(pool, vllm, max_tokens=5, temperature=1.0, top_k=1, min_p=0.5)
    assert only_one.ids == greedy.ids
