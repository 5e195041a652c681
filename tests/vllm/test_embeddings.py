"""Embeddings and reranking by a real server, which has to be started for them: `vllm serve MODEL
--runner pooling --convert embed`. What the gateway answers is what the server does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gateway.settings.sections import Model
from tests.fakes.gateway import running_gateway
from tests.fakes.http_client import http_client
from tests.vllm.conftest import TIMEOUT_S
from tests.vllm.patience import patient_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from tests.vllm.conftest import Vllm

pytestmark = pytest.mark.vllm

Json = dict[str, Any]

NAME = "emb"
TEXTS = ["My bicycle is red.", "The gateway sends requests."]
DOCUMENTS = [*TEXTS, "What is a bicycle?"]
QUERY = "What is a bicycle?"
CLOSE = 1e-3
"""Of numbers that were made in batches of other sizes."""


@pytest.fixture(scope="module")
async def server(vllm: Vllm) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the server itself. Skips where that makes no embeddings."""
    async with http_client(vllm.url, timeout=TIMEOUT_S) as client:
        asked = {"model": vllm.model, "input": TEXTS}
        if (await client.post("/v1/embeddings", json=asked)).status_code != 200:
            pytest.skip("the server makes no embeddings: start one with --runner pooling")
        yield client


@pytest.fixture(scope="module")
async def client(
    server: httpx2.AsyncClient, vllm: Vllm, database_url_of_all: str
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a gateway in front of it."""
    assert server is not None
    settings = patient_settings(database_url_of_all, [vllm.url]).model_copy(
        update={"models": (Model(id=NAME, served_as=vllm.model, tasks=("embeddings", "rerank")),)}
    )
    async with (
        running_gateway(settings) as running,
        http_client(running.url, headers=running.headers, timeout=TIMEOUT_S) as opened,
    ):
        yield opened


async def both(
    client: httpx2.AsyncClient, server: httpx2.AsyncClient, vllm: Vllm, path: str, **body: Any
) -> tuple[Json, Json]:
    """What the gateway answers, and what the server does."""
    told = await client.post(path, json={"model": NAME, **body})
    direct = await server.post(path, json={"model": vllm.model, **body})
    assert (told.status_code, direct.status_code) == (200, 200), told.text
    assert told.json()["model"] == NAME
    assert told.json()["usage"] == direct.json()["usage"]
    return told.json(), direct.json()


async def test_embeddings_are_the_servers(
    client: httpx2.AsyncClient, server: httpx2.AsyncClient, vllm: Vllm
) -> None:
    told, direct = await both(client, server, vllm, "/v1/embeddings", input=TEXTS)
    vectors, wanted = ([row["embedding"] for row in one["data"]] for one in (told, direct))
    assert [row["index"] for row in told["data"]] == [0, 1]
    for vector, right in zip(vectors, wanted, strict=True):
        assert vector == pytest.approx(right, abs=CLOSE)
    assert vectors[0] != pytest.approx(vectors[1], abs=CLOSE)
    packed, _ = await both(
        client, server, vllm, "/v1/embeddings", input=TEXTS, encoding_format="base64"
    )
    assert isinstance(packed["data"][0]["embedding"], str)


async def test_documents_are_ranked_as_the_server_ranks_them(
    client: httpx2.AsyncClient, server: httpx2.AsyncClient, vllm: Vllm
) -> None:
    told, direct = await both(
        client, server, vllm, "/v1/rerank", query=QUERY, documents=DOCUMENTS, top_n=2
    )
    assert [row["index"] for row in told["results"]] == [row["index"] for row in direct["results"]]
    assert len(told["results"]) == 2
    best = told["results"][0]
    assert (best["index"], best["relevance_score"]) == (2, pytest.approx(1, abs=CLOSE))


async def test_what_is_too_long_is_refused_with_its_code(
    client: httpx2.AsyncClient, vllm: Vllm
) -> None:
    long = "word " * vllm.context_length
    answer = await client.post("/v1/embeddings", json={"model": NAME, "input": long})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded", answer.text


async def test_what_the_server_refuses_is_a_400(client: httpx2.AsyncClient) -> None:
    body = {"model": NAME, "input": TEXTS, "encoding_format": "octal"}
    answer = await client.post("/v1/embeddings", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error", answer.text


async def test_it_is_asked_for_nothing_else(client: httpx2.AsyncClient) -> None:
    (row,) = (await client.get("/v1/models")).json()["data"]
    assert row["capabilities"] == ["embeddings", "rerank"]
    answer = await client.post("/v1/responses", json={"model": NAME, "input": "Hello"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
