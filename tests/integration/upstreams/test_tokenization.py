"""Conversations are rendered by one server of a model after the other, until one does."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.errors import ModelNotFound, NoUpstreamAvailable
from gateway.telemetry.metrics import Metrics
from gateway.upstreams.backend import Backend
from gateway.upstreams.http.client import build_client
from gateway.upstreams.pool import Pool, PoolPolicy
from gateway.upstreams.tokenization import Tokenization, ids_of
from tests.fakes.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request

QUESTION = b'{"messages":[]}'


class Renderer:
    """A server that answers `/tokenize` as it is told; `asked` are the bodies."""

    def __init__(self, answer: Callable[[], Awaitable[Response]], *, sglang: bool = False) -> None:
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self._answer = answer
        self._sglang = sglang

    @property
    def app(self) -> Starlette:
        version = {"version": "0.5.23"} if self._sglang else {"version": "0.32.0"}
        return Starlette(
            routes=[
                Route(
                    "/server_info" if self._sglang else "/version", lambda _: JSONResponse(version)
                ),
                Route("/v1/models", self._models),
                Route("/tokenize", self._tokenize, methods=["POST"]),
                Route("/v1/tokenize", self._tokenize, methods=["POST"]),
            ]
        )

    def _models(self, _: Request) -> JSONResponse:
        rows = [
            {"id": "m", "max_model_len": 100},
            {"id": "ad", "parent": "m", "max_model_len": None},
        ]
        return JSONResponse({"data": rows})

    async def _tokenize(self, request: Request) -> Response:
        self.paths.append(request.url.path)
        self.asked.append(orjson.loads(await request.body()))
        return await self._answer()


async def well() -> Response:
    return JSONResponse({"tokens": [1, 2, 3]})


async def refusing() -> Response:
    return JSONResponse({"error": {"message": "no such role"}}, status_code=400)


async def broken() -> Response:
    return Response("out of order", status_code=500)


async def empty() -> Response:
    return JSONResponse({"count": 3})


async def endless() -> Response:
    await asyncio.sleep(60)
    return Response()


@asynccontextmanager
async def asking(*servers: Renderer) -> AsyncIterator[Tokenization]:
    async with AsyncExitStack() as stack:
        backends = [
            Backend(f"b{at}", await stack.enter_async_context(serving(server.app)), api_key="k")
            for at, server in enumerate(servers)
        ]
        client = build_client()
        pool = Pool(backends, client, policy=PoolPolicy(), metrics=Metrics())
        await pool.start()
        yield Tokenization(pool, timeout_s=0.5, attempts_max=2)
        await pool.close()


async def test_a_server_is_asked_about_the_model_by_its_name_there() -> None:
    server = Renderer(well)
    async with asking(server) as tokenization:
        answers = await tokenization.render("m", [QUESTION])
        await tokenization.render("ad", [QUESTION])
    assert list(answers[QUESTION]) == [1, 2, 3]
    assert server.asked == [{"model": "m", "messages": []}] * 2
    assert server.paths == ["/tokenize"] * 2


async def test_sglang_has_a_path_of_its_own() -> None:
    server = Renderer(well, sglang=True)
    async with asking(server) as tokenization:
        await tokenization.render("m", [QUESTION])
    assert server.paths == ["/v1/tokenize"]


@pytest.mark.slow
async def test_servers_of_one_engine_take_turns_and_the_other_one_helps_out() -> None:
    servers = Renderer(well), Renderer(well), Renderer(well, sglang=True)
    async with asking(*servers) as tokenization:
        for _ in range(4):
            await tokenization.render("m", [QUESTION])
    assert [len(server.asked) for server in servers] == [2, 2, 0]


@pytest.mark.slow
@pytest.mark.parametrize("failing", [broken, empty, endless])
async def test_another_server_is_asked_where_one_does_not_answer(
    failing: Callable[[], Awaitable[Response]],
) -> None:
    async with asking(Renderer(failing), Renderer(well, sglang=True)) as tokenization:
        answers = await tokenization.render("m", [QUESTION, b'{"prompt":"x"}'])
    assert [list(ids) for ids in answers.values()] == [[1, 2, 3]] * 2


async def test_what_a_template_refuses_is_an_answer() -> None:
    other = Renderer(well)
    async with asking(Renderer(refusing, sglang=True), other) as tokenization:
        answers = await tokenization.render("m", [QUESTION])
    assert answers == {QUESTION: "no such role"}
    assert not other.asked


@pytest.mark.slow
async def test_no_more_servers_are_asked_than_may_be() -> None:
    servers = Renderer(broken), Renderer(broken), Renderer(well, sglang=True)
    async with asking(*servers) as tokenization:
        with pytest.raises(NoUpstreamAvailable, match=r"b\d: .*; b\d: "):
            await tokenization.render("m", [QUESTION])
        with pytest.raises(ModelNotFound):
            await tokenization.render("other", [QUESTION])


async def test_a_server_that_is_gone_is_told_of() -> None:
    client = build_client()
    async with serving(Renderer(well).app) as url:
        pool = Pool([Backend("b0", url)], client, policy=PoolPolicy(), metrics=Metrics())
        await pool.start()
    with pytest.raises(NoUpstreamAvailable, match="no backend renders"):
        await Tokenization(pool, timeout_s=5.0, attempts_max=2).render("m", [QUESTION])
    await pool.close()


def test_nothing_is_made_of_what_else_a_server_tells() -> None:
    assert list(ids_of(b'{"count": 1e999, "tokens": [7, 8]}')) == [7, 8]


@pytest.mark.parametrize(
    "told", [b"[]", b"{", b'{"tokens":[-1]}', b'{"tokens":[[]]}', b'{"x":' + b"[" * 10**6]
)
async def test_what_tells_no_ids_is_no_answer(told: bytes) -> None:
    async def answer() -> Response:
        return Response(told)

    async with asking(Renderer(answer)) as tokenization:
        with pytest.raises(NoUpstreamAvailable, match="it answered no token ids"):
            await tokenization.render("m", [QUESTION])
