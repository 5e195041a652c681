"""Embeddings and reranking, through the whole gateway, to servers that answer as vLLM does."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2
import orjson
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gateway.settings.sections import Backend, Model
from tests.fakes.gateway import gateway_settings, new_key, running_gateway
from tests.fakes.logs import captured_logs
from tests.fakes.raw_server import silent_address
from tests.fakes.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from tests.fakes.gateway import RunningGateway
    from tests.fakes.postgres import PostgresServer

Json = dict[str, Any]


@dataclass
class Embedder:
    """A server of the model `emb`, as vLLM answers `/v1/embeddings` and `/v1/rerank`."""

    status: int = 200
    message: str = "no"
    answer: Any = None
    gate: asyncio.Event | None = None
    bodies: list[Json] = field(default_factory=list)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/version", lambda _: JSONResponse({"version": "0.32.0"})),
                Route("/health", lambda _: PlainTextResponse("")),
                Route("/v1/embeddings", self._embed, methods=["POST"]),
                Route("/v1/rerank", self._embed, methods=["POST"]),
            ]
        )

    async def _models(self, _: Request) -> Response:
        row = {"id": "maker/emb", "parent": None, "max_model_len": 512}
        return JSONResponse({"data": [row]})

    async def _embed(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        if self.gate is not None:
            self.gate.set()
            await request.receive()  # the disconnect
        if self.status != 200:
            error = {"message": self.message, "type": "x", "param": None, "code": self.status}
            return JSONResponse({"error": error}, status_code=self.status)
        if self.answer is not None:
            return Response(self.answer, media_type="application/json")
        usage = {"prompt_tokens": 7, "total_tokens": 7}
        row = {"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}
        return JSONResponse({"object": "list", "model": "maker/emb", "data": [row], "usage": usage})


@dataclass
class Site:
    running: RunningGateway
    client: httpx2.AsyncClient
    embedders: tuple[Embedder, ...]
    urls: tuple[str, ...]

    async def embed(self, **fields: Any) -> httpx2.Response:
        body = {"model": "emb", "input": "a", **fields}
        return await self.client.post("/v1/embeddings", json=body)


@asynccontextmanager
async def site(database_url: str, *embedders: Embedder) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        places = [await stack.enter_async_context(serving(one.app())) for one in embedders]
        urls = tuple(one.replace("127.0.0.1", "localhost") for one in places)
        settings = gateway_settings(database_url, [])
        settings = settings.model_copy(
            update={
                "backends": tuple(Backend(name=f"e{i}", url=url) for i, url in enumerate(urls)),
                "models": (Model(id="emb", served_as="maker/emb", tasks=("embeddings", "rerank")),),
            }
        )
        running = await stack.enter_async_context(running_gateway(settings))
        client = httpx2.AsyncClient(
            base_url=running.url, headers=running.headers, trust_env=False, timeout=30.0
        )
        yield Site(running, await stack.enter_async_context(client), embedders, urls)


@pytest.mark.slow
async def test_embeddings_are_made_by_the_server_of_the_model(database_url: str) -> None:
    async with site(database_url, Embedder()) as where:
        with captured_logs() as log:
            answer = await where.embed(dimensions=2, priority=-1)
        assert answer.status_code == 200
        assert answer.headers["x-ignored-parameters"] == "priority"
        body = answer.json()
        assert (body["model"], body["data"][0]["embedding"]) == ("emb", [0.5, -1.0])
        assert where.embedders[0].bodies == [{"model": "maker/emb", "input": "a", "dimensions": 2}]
        (told,) = [event for event in log if event["event"] == "request was passed through"]
        assert (told["kind"], told["model"], told["input_tokens"]) == ("embeddings", "emb", 7)
        assert told["upstream"] == "e0"
        (row,) = (await where.client.get("/v1/models")).json()["data"]
        assert row["capabilities"] == ["embeddings", "rerank"]
        metrics = (await where.client.get("/metrics")).text
    labels = 'kind="embeddings",model="emb",outcome="ok"'
    assert f"gateway_passed_requests_total{{{labels}}} 1.0" in metrics
    assert 'gateway_tokens_total{model="emb",type="input"} 7.0' in metrics


@pytest.mark.slow
async def test_what_was_embedded_has_a_usage_line_when_the_process_has_ended(
    postgres: PostgresServer, database_url: str
) -> None:
    """Also where the server counts what no request can have: that is not believed."""
    async with site(database_url, Embedder()) as where:
        assert (await where.embed()).status_code == 200
        where.embedders[0].answer = b'{"data": [], "usage": {"prompt_tokens": 1000000000000000}}'
        assert (await where.embed()).status_code == 200
    query = "SELECT kind, model, input_tokens FROM usage ORDER BY at"
    rows = await postgres.fetch(query, url=database_url)
    assert [tuple(row) for row in rows] == [("embeddings", "emb", 7), ("embeddings", "emb", 0)]


@pytest.mark.slow
async def test_work_for_a_client_that_leaves_is_charged(
    postgres: PostgresServer, database_url: str
) -> None:
    embedder = Embedder(gate=asyncio.Event())
    assert embedder.gate is not None
    async with site(database_url, embedder) as where:
        leaving = asyncio.create_task(where.embed(input="a" * 4_000))
        await embedder.gate.wait()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
    (row,) = await postgres.fetch("SELECT kind, input_tokens FROM usage", url=database_url)
    assert row["kind"] == "embeddings"
    assert 1_000 <= row["input_tokens"] <= 1_010


@pytest.mark.slow
async def test_what_no_server_was_sent_is_not_charged(
    postgres: PostgresServer, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client leaves while the gateway waits for a connection."""
    getaddrinfo = socket.getaddrinfo
    async with site(database_url, Embedder()) as where:
        pool = where.running.process.foundation.pool
        url = httpx2.URL(where.urls[0])
        with silent_address(url.port or 0) as silent:

            def resolve(host: str, *arguments: Any, **options: Any) -> Any:
                host = silent if host == url.host else host
                return getaddrinfo(host, *arguments, **options)

            monkeypatch.setattr(socket, "getaddrinfo", resolve)
            await pool.client.transport.forget(url)
            leaving = asyncio.create_task(where.embed())
            async with asyncio.timeout(30):
                while not pool.in_flight()["e0"]:  # noqa: ASYNC110 - it is connecting then
                    await asyncio.sleep(0)
                leaving.cancel()
                while pool.in_flight()["e0"]:  # noqa: ASYNC110 - the gateway has noticed
                    await asyncio.sleep(0)
    assert await postgres.fetch("SELECT FROM usage", url=database_url) == []


@pytest.mark.slow
async def test_embeddings_count_among_what_a_process_makes_at_once(database_url: str) -> None:
    embedder = Embedder(gate=asyncio.Event())
    assert embedder.gate is not None
    async with site(database_url, embedder) as where:
        where.running.process.replica.dependencies.supervisor.in_flight_max = 1
        first = asyncio.create_task(where.embed())
        await embedder.gate.wait()
        refused = await where.embed()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert len(embedder.bodies) == 1


@pytest.mark.slow
async def test_documents_are_ranked(database_url: str) -> None:
    async with site(database_url, Embedder()) as where:
        asked = {"model": "openai/emb", "query": "q", "documents": ["a", "b"]}
        answer = await where.client.post("/v1/rerank", json=asked)
    assert answer.status_code == 200
    assert where.embedders[0].bodies == [asked | {"model": "maker/emb"}]


@pytest.mark.slow
async def test_another_member_answers_where_one_is_down(database_url: str) -> None:
    async with site(database_url, Embedder(status=503), Embedder()) as where:
        answers = [await where.embed() for _ in range(4)]
        assert {answer.status_code for answer in answers} == {200}
        assert len(where.embedders[1].bodies) == 4
        where.embedders[1].status = 503
        down = await where.embed()
        assert (down.status_code, down.json()["error"]["code"]) == (503, "server_is_overloaded")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("message", "told", "code"),
    [
        ("dimensions is not supported, see /opt/vllm/x.py", "is not supported, see …", None),
        ("This model's maximum context length is 512.", "is 512", "context_length_exceeded"),
    ],
)
async def test_what_the_server_refuses_is_the_clients_to_mend(
    database_url: str, message: str, told: str, code: str | None
) -> None:
    embedders = (Embedder(status=400, message=message), Embedder(status=400, message=message))
    async with site(database_url, *embedders) as where:
        answer = await where.embed()
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, code)
    assert told in error["message"]
    assert "/opt" not in error["message"]
    assert sum(len(one.bodies) for one in where.embedders) == 1, "no other server would differ"


@pytest.mark.slow
@pytest.mark.parametrize("answer", [b"[]", b"{"])
async def test_an_answer_that_makes_no_sense_is_the_servers_fault(
    database_url: str, answer: bytes
) -> None:
    async with site(database_url, Embedder(answer=answer)) as where:
        got = await where.embed()
    assert got.status_code == 502
    assert got.json()["error"]["type"] == "server_error"


@pytest.mark.slow
async def test_a_model_is_asked_only_for_what_it_does(database_url: str) -> None:
    async with site(database_url, Embedder()) as where:
        body = {"model": "emb", "input": "Hello"}
        generated = await where.client.post("/v1/responses", json=body)
        unknown = await where.embed(model="other")
        untyped = await where.embed(input=5)
        key = await new_key(where.running.process.foundation.settings, "no", {"models": "x"})
        denied = await where.client.post(
            "/v1/embeddings", json=body, headers={"authorization": f"Bearer {key}"}
        )
        no_key = await where.client.post("/v1/embeddings", json=body, headers={"authorization": ""})
        assert where.embedders[0].bodies == []
    assert (generated.status_code, generated.json()["error"]["param"]) == (400, "model")
    assert "does not generate" in generated.json()["error"]["message"]
    assert (unknown.status_code, denied.status_code, no_key.status_code) == (404, 404, 401)
    assert (untyped.status_code, untyped.json()["error"]["param"]) == (400, "input")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        ({"error": {"message": "The server is busy", "code": 503}}, 503, "No server"),
        ({"object": "error", "message": "No such encoding", "code": 400}, 400, "No such encoding"),
        ({"error": "Unauthorized"}, 502, "lost"),
    ],
)
async def test_an_error_in_a_200_is_an_error(
    database_url: str, error: Json, status: int, said: str
) -> None:
    embedder = Embedder(answer=orjson.dumps(error))
    async with site(database_url, embedder) as where:
        answer = await where.embed()
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]
