"""A gateway whose backends come from a file, and are drained, while clients are served."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway.cli.backends import wait_until_idle
from gateway.store import backend_reports
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving
from tests.fakes.stream import parse_stream
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    import httpx2

    from gateway.store.postgres.database import Database
    from tests.fakes.gateway import RunningGateway

MODEL = "gpt-oss-20b"
SLOW = "[[sim tokens_per_s=40]] " + "word " * 40
SLOWER = "[[sim tokens_per_s=20]] " + "word " * 40
"""Goes on while another backend joins and this one is drained."""
UNFINISHED = "[[sim stall_after=4 only=a]] " + "word " * 40
"""Ends at any backend but the first."""


def write(path: Path, urls: Mapping[str, str]) -> None:
    backends = [{"name": name, "url": url} for name, url in urls.items()]
    new = path.with_suffix(".new")
    new.write_bytes(orjson.dumps({"backends": backends}))
    new.replace(path)


@pytest.fixture(autouse=True)
def _drains_are_looked_for_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.upstreams.backend_sources.DRAIN_POLL_S", 0.01)


@asynccontextmanager
async def fleet(
    database_url: str, tmp_path: Path, **membership: Any
) -> AsyncIterator[tuple[RunningGateway, httpx2.AsyncClient, dict[str, str], Path]]:
    """Three simulated backends, of which the file has none yet but the first, and a gateway."""
    path = tmp_path / "backends.yaml"
    async with AsyncExitStack() as stack:
        urls = {
            name: await stack.enter_async_context(
                serving(create_simulator(WaywardOptions(name=name)))
            )
            for name in ("a", "b", "c")
        }
        write(path, {"a": urls["a"]})
        settings = gateway_settings(
            database_url,
            [],
            models=[{"id": MODEL}],
            discovery=[{"name": "file", "kind": "file", "path": path}],
            membership={"refresh_s": 0.01, **membership},
            upstream={"health_interval_s": 0.05},
        )
        gateway = await stack.enter_async_context(running_gateway(settings))
        client = await stack.enter_async_context(http_client(gateway.url, headers=gateway.headers))
        yield gateway, client, urls, path


async def requests(url: str) -> int:
    async with http_client(url) as client:
        answer = await client.get("/simulator/requests")
        return sum(
            row["path"] == "/v1/completions" if "path" in row else 1
            for row in answer.json()["requests"]
        )


async def ready(client: httpx2.AsyncClient, names: set[str]) -> dict[str, Any]:
    """/readyz, once exactly these backends are healthy."""
    async with asyncio.timeout(30):
        while True:
            body: dict[str, Any] = (await client.get("/readyz")).json()
            if {one["name"] for one in body["backends"] if one["healthy"]} == names:
                return body
            await asyncio.sleep(0.01)


async def created(client: httpx2.AsyncClient, text: str = "hello") -> None:
    answer = await client.post("/v1/responses", json={"model": MODEL, "input": text})
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == "completed"


async def streamed(client: httpx2.AsyncClient, text: str = SLOW) -> list[str]:
    body = {"model": MODEL, "input": text, "stream": True}
    async with client.stream("POST", "/v1/responses", json=body) as answer:
        assert answer.status_code == 200
        text = (await answer.aread()).decode()
    return [event["type"] for event in parse_stream(text)]


@pytest.mark.slow
async def test_traffic_follows_the_file_and_no_request_fails(
    database_url: str, tmp_path: Path
) -> None:
    async with fleet(database_url, tmp_path) as (_, client, urls, path):
        body = await ready(client, {"a"})
        assert body["backends"][0]["source"] == "file"
        done = asyncio.Event()

        async def ask() -> int:
            count = 0
            while not done.is_set():
                await created(client)
                count += 1
            return count

        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(ask()) for _ in range(4)]
            streaming = [group.create_task(streamed(client)) for _ in range(4)]
            write(path, urls)
            await ready(client, {"a", "b", "c"})
            write(path, {"b": urls["b"], "c": urls["c"]})
            await ready(client, {"b", "c"})
            before = await requests(urls["a"])
            for _ in range(8):
                await created(client)
            assert await requests(urls["a"]) == before
            done.set()
        assert all(task.result() for task in asking)
        assert all(task.result()[-1] == "response.completed" for task in streaming)
        assert await requests(urls["b"])
        assert await requests(urls["c"])
        broken = path.with_suffix(".new")
        broken.write_text("backends: [")
        broken.replace(path)
        async with asyncio.timeout(30):
            while not (await client.get("/readyz")).json()["warnings"]:  # noqa: ASYNC110 - it is told over HTTP
                await asyncio.sleep(0.01)
        (warning,) = (await client.get("/readyz")).json()["warnings"]
        assert "not YAML" in warning
        assert "Those known before count: 2" in warning
        await created(client)
        metrics = (await client.get("/metrics")).text
        assert 'gateway_discovery_up{source="file"} 0.0' in metrics
        assert 'gateway_discovery_members{source="file"} 2.0' in metrics


@pytest.mark.slow
async def test_a_drain_breaks_no_stream_and_is_told_once_all_have_ended(
    database_url: str, database: Database, tmp_path: Path
) -> None:
    async with fleet(database_url, tmp_path) as (gateway, client, urls, path):
        await ready(client, {"a"})
        streaming = [asyncio.create_task(streamed(client, SLOWER)) for _ in range(4)]
        pool = gateway.process.foundation.pool
        async with asyncio.timeout(30):
            while pool.in_flight()["a"] < 4:  # noqa: ASYNC110 - it is told over HTTP
                await asyncio.sleep(0.001)
        write(path, {"a": urls["a"], "b": urls["b"]})
        await ready(client, {"a", "b"})
        assert await backend_reports.drain(database, "a", by="ann")
        left = await wait_until_idle(database, "a", timeout_s=0, patience_s=60)
        assert left
        assert await wait_until_idle(database, "a", timeout_s=60, patience_s=0.5) == ""
        assert pool.in_flight()["a"] == 0
        assert [(await one)[-1] for one in streaming] == ["response.completed"] * 4
        before = await requests(urls["a"])
        for _ in range(6):
            await created(client)
        assert await requests(urls["a"]) == before
        states = {
            one["name"]: one["drained"] for one in (await client.get("/readyz")).json()["backends"]
        }
        assert states == {"a": True, "b": False}
        await backend_reports.drain(database, "b", by="ann")
        async with asyncio.timeout(30):
            while (await client.get("/readyz")).status_code == 200:  # noqa: ASYNC110 - it is told over HTTP
                await asyncio.sleep(0.01)
        assert "every backend is drained" in (await client.get("/readyz")).json()["reasons"][0]
        refused = await client.post("/v1/responses", json={"model": MODEL, "input": "x"})
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        await backend_reports.undrain(database, "a")
        await backend_reports.undrain(database, "b")
        async with asyncio.timeout(30):
            while (await client.get("/readyz")).status_code != 200:  # noqa: ASYNC110 - it is told over HTTP
                await asyncio.sleep(0.01)
        await created(client)


@pytest.mark.slow
async def test_what_outlasts_its_backend_goes_on_at_another(
    database_url: str, tmp_path: Path
) -> None:
    async with fleet(database_url, tmp_path, leave_s=0.05) as (gateway, client, urls, path):
        await ready(client, {"a"})
        streaming = [asyncio.create_task(streamed(client, UNFINISHED)) for _ in range(3)]
        pool = gateway.process.foundation.pool
        async with asyncio.timeout(30):
            while pool.in_flight()["a"] < 3:  # noqa: ASYNC110 - it is told over HTTP
                await asyncio.sleep(0.001)
        write(path, {"a": urls["a"], "b": urls["b"]})
        await ready(client, {"a", "b"})
        assert pool.in_flight() == {"a": 3, "b": 0}
        write(path, {"b": urls["b"]})
        assert [(await one)[-1] for one in streaming] == ["response.completed"] * 3
        assert await requests(urls["b"]) == 3
        assert set(pool.in_flight()) == {"b"}


OTHER_MODEL = "llama"


@pytest.mark.slow
async def test_a_model_whose_backends_have_all_left_is_not_there_now_and_not_unknown(
    database_url: str, tmp_path: Path
) -> None:
    """As when all pods of a service are replaced at once, beside a server of something else."""
    path = tmp_path / "backends.yaml"
    async with AsyncExitStack() as stack:
        ours, other = [
            await stack.enter_async_context(
                serving(create_simulator(WaywardOptions(name=name, models=(name,))))
            )
            for name in (MODEL, OTHER_MODEL)
        ]
        write(path, {"a": ours})
        settings = gateway_settings(
            database_url,
            [other],
            models=[{"id": MODEL}, {"id": OTHER_MODEL}],
            discovery=[{"name": "file", "kind": "file", "path": path}],
            membership={"refresh_s": 0.01},
            upstream={"health_interval_s": 0.05},
        )
        gateway = await stack.enter_async_context(running_gateway(settings))
        client = await stack.enter_async_context(http_client(gateway.url, headers=gateway.headers))
        await ready(client, {"a", "b0"})
        await created(client)
        write(path, {})
        await ready(client, {"b0"})
        refused = await client.post("/v1/responses", json={"model": MODEL, "input": "x"})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "server_is_overloaded"
        assert refused.headers["retry-after"] == "1"
        unknown = await client.post("/v1/responses", json={"model": "none", "input": "x"})
        assert unknown.status_code == 404
        write(path, {"b": ours})
        async with asyncio.timeout(30):
            while refused.status_code == 503:
                refused = await client.post("/v1/responses", json={"model": MODEL, "input": "x"})
        assert refused.status_code == 200
