"""Two cells behind one nginx, with the configuration that deploy/cells has."""

from __future__ import annotations

import asyncio
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import connect

from tests.fakes.gateway import gateway_settings, new_key, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.processes import reserved_port
from tests.fakes.proxies import ROOT, nginx_with, program
from tests.integration.api.bodies import MODEL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.fakes.observation import Backends
    from tests.fakes.postgres import PostgresServer

FILE = ROOT / "deploy" / "cells" / "nginx.conf"


@dataclass(frozen=True)
class Cells:
    url: str
    eu_key: str
    """Of the tenant `globex`, which is in the second cell."""


@contextmanager
def proxied(us: str, eu: str, folder: Path) -> Iterator[str]:
    """The address of an nginx with the file of deploy/cells, but for ports."""
    with reserved_port() as port:
        text = FILE.read_text("utf-8").replace("listen 80;", f"listen 127.0.0.1:{port};")
        for number, url in (("1", us), ("2", eu)):
            text = re.sub(
                rf"server 10\.0\.{number}\.\d+:8000;", f"server {urlsplit(url).netloc};", text
            )
        with nginx_with(text, port, folder):
            yield f"http://127.0.0.1:{port}"


@pytest.fixture
async def cells(
    postgres: PostgresServer, template: str, backends: Backends, tmp_path: Path
) -> AsyncIterator[Cells]:
    program("nginx")
    names = [await postgres.create(template) for _ in range(2)]
    first, second = (gateway_settings(postgres.database_url(name), backends.urls) for name in names)
    async with running_gateway(first) as us, running_gateway(second) as eu:
        with proxied(us.url, eu.url, tmp_path) as url:
            yield Cells(url, await new_key(second, "globex"))
    for name in names:
        await postgres.drop(name)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "named", [{"host": "eu.llm.example.com"}, {"openai-organization": "globex"}]
)
async def test_a_tenant_is_served_by_its_cell_alone(cells: Cells, named: dict[str, str]) -> None:
    async with http_client(cells.url, headers=bearer(cells.eu_key)) as client:
        body = {"model": MODEL, "input": "Hi", "stream": True}
        async with client.stream("POST", "/v1/responses", json=body, headers=named) as answer:
            assert answer.status_code == 200
            events = (await answer.aread()).decode()
        assert "response.completed" in events
        response = re.search(r'"id":"(resp_\w+)"', events)
        assert response is not None
        stored = await client.get(f"/v1/responses/{response[1]}", headers=named)
        assert stored.json()["status"] == "completed"
        elsewhere = await client.get(f"/v1/responses/{response[1]}")
        assert elsewhere.status_code == 401


@pytest.mark.slow
async def test_websockets_reach_the_cell_too(cells: Cells) -> None:
    url = cells.url.replace("http", "ws", 1) + "/v1/responses"
    headers = {**bearer(cells.eu_key), "openai-organization": "globex"}
    async with connect(url, additional_headers=headers) as socket:
        await socket.send('{"type": "response.create", "model": "gpt-oss-20b", "input": "Hi"}')
        async with asyncio.timeout(30):
            while '"response.completed"' not in (text := str(await socket.recv())):
                assert '"error"' not in text.split(",", 1)[0]
