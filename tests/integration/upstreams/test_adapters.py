"""Adapters at all members: loaded where they are not, told where that failed, and mended."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.upstreams.backend import Backend
from gateway.upstreams.lora_adapters import Adapter, Adapters
from tests.fakes.adapter_server import BASE, AdapterServer
from tests.fakes.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.upstreams.http.client import Client


@asynccontextmanager
async def adapters_of(
    client: Client, *servers: AdapterServer, **fields: object
) -> AsyncIterator[Adapters]:
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving(server.app())) for server in servers]
        backends = [
            replace(Backend(f"gpu-{number}", url), **fields)  # type: ignore[arg-type]
            for number, url in enumerate(urls)
        ]
        yield Adapters(backends, client, ask_s=10.0, load_s=10.0)


def fleet() -> tuple[AdapterServer, AdapterServer]:
    return AdapterServer("vllm"), AdapterServer("sglang")


async def test_an_adapter_is_loaded_at_all_members_and_once(client: Client) -> None:
    servers = fleet()
    async with adapters_of(client, *servers) as adapters:
        first = await adapters.load("ad", "/adapters/ad")
        again = await adapters.load("ad", "/adapters/ad")
        told = await adapters.listed()
    assert [(one.backend, one.detail) for one in first] == [
        ("gpu-0", "loaded"),
        ("gpu-1", "loaded"),
    ]
    assert {one.detail for one in again} == {"was there already"}
    assert all(one.ok for one in (*first, *again))
    assert [server.posts for server in servers] == [["load ad"]] * 2
    assert told == [Adapter(f"gpu-{i}", "ad", BASE, "/adapters/ad") for i in (0, 1)]


@pytest.mark.slow
async def test_what_failed_at_one_member_is_told_and_done_by_the_next_call(client: Client) -> None:
    well, down, poor = AdapterServer(), AdapterServer("sglang"), AdapterServer("sglang")
    down.is_down, poor.refuses = True, {"/a"}
    async with adapters_of(client, well, down, poor) as adapters:
        first = await adapters.load("ad", "/a")
        down.is_down, poor.refuses = False, set()
        again = await adapters.load("ad", "/a")
    assert [one.ok for one in first] == [True, False, False]
    assert "503" in first[1].detail
    assert "No adapter found for /a" in first[2].detail
    assert [one.remedy.split()[0] for one in first[1:]] == ["Run", "Is"]
    assert [one.detail for one in again] == ["was there already", "loaded", "loaded"]
    assert [server.adapters for server in (well, down, poor)] == [{"ad": "/a"}] * 3


async def test_an_adapter_is_unloaded_wherever_it_is(client: Client) -> None:
    servers = fleet()
    servers[1].adapters["ad"] = "/a"
    async with adapters_of(client, *servers) as adapters:
        outcomes = await adapters.unload("ad")
        base = await adapters.unload(BASE)
    assert [(one.ok, one.detail) for one in outcomes] == [
        (True, "was not there"),
        (True, "unloaded"),
    ]
    assert {one.detail for one in base} == {"was not there"}, "a base model is never unloaded"
    assert servers[1].adapters == {}


async def test_ranks_of_one_server_are_asked_one_after_the_other(client: Client) -> None:
    """Each is a backend of its own, and what one has, the others have, too."""
    server = AdapterServer()
    async with serving(server.app()) as url:
        ranks = [Backend(f"rank-{rank}", url, dp_rank=rank) for rank in range(3)]
        adapters = Adapters(ranks, client, ask_s=30.0, load_s=30.0)
        loaded = await adapters.load("ad", "/a")
        unloaded = await adapters.unload("ad")
    assert [one.backend for one in loaded] == ["rank-0", "rank-1", "rank-2"]
    assert [(one.ok, one.detail) for one in loaded] == [
        (True, "loaded"),
        (True, "was there already"),
        (True, "was there already"),
    ]
    assert [one.detail for one in unloaded] == ["unloaded", "was not there", "was not there"]
    assert server.posts == ["load ad", "unload ad"]


async def test_another_adapter_of_that_name_is_not_replaced(client: Client) -> None:
    """Prefixes that were cached with its old weights would be used with the new ones."""
    server = AdapterServer(adapters={"ad": "/old"})
    async with adapters_of(client, server) as adapters:
        (outcome,) = await adapters.load("ad", "/new")
        (base,) = await adapters.load(BASE, "/new")
    assert (outcome.ok, outcome.detail) == (False, "is there from /old")
    assert "unload" in outcome.remedy
    assert not base.ok
    assert server.posts == []


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
async def test_a_server_that_was_not_started_for_it_is_told_so(client: Client, engine: str) -> None:
    async with adapters_of(client, AdapterServer(engine, may_load=False)) as adapters:
        (outcome,) = await adapters.load("ad", "/a")
    assert not outcome.ok
    assert "--enable-lora" in outcome.remedy


async def test_only_members_of_its_base_model_are_asked(client: Client) -> None:
    async with adapters_of(client, *fleet(), models={"public": BASE}) as adapters:
        assert await adapters.load("ad", "/a", base="other") == []
        assert len(await adapters.load("ad", "/a", base="public")) == 2
        assert len(await adapters.unload("ad", base=BASE)) == 2


async def test_the_key_for_loading_may_be_another(client: Client) -> None:
    server = AdapterServer("sglang", key="admin")
    async with adapters_of(client, server, api_key="user") as adapters:
        (refused,) = await adapters.load("ad", "/a")
    assert "admin_key" in refused.remedy
    async with adapters_of(client, server, api_key="user", admin_key="admin") as adapters:
        (loaded,) = await adapters.load("ad", "/a")
    assert loaded.ok


async def test_who_does_not_answer_is_told_in_the_list(client: Client) -> None:
    server = AdapterServer(is_down=True)
    async with adapters_of(client, server) as adapters:
        (told,) = await adapters.listed()
    assert not isinstance(told, Adapter)
    assert not told.ok
    nobody = Adapters([Backend("gone", "http://127.0.0.1:9")], client, ask_s=1.0, load_s=1.0)
    (outcome,) = await nobody.load("ad", "/a")
    assert (outcome.ok, outcome.remedy) == (False, "Run the same command again.")
