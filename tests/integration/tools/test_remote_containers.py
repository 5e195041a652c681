"""Containers of a server elsewhere: a real server, a real socket, real containers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from gateway import ids
from gateway.store.tools import containers
from gateway.tools.python.container_engine import ContainerLimits, EngineBroken, FileRefused
from gateway.tools.python.container_pool import ContainerPolicy
from gateway.tools.python.self_test import allowed_attacks
from gateway.tools.python.worker_server import RUNS_MAX, WorkerServerLimits
from tests.fakes.http_client import http_client
from tests.fakes.python_containers import (
    ENGINES,
    HAS_BUBBLEWRAP,
    TOKEN,
    caller,
    open_pool,
    reaching,
    remote_engine,
    serving_containers,
)

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

pytestmark = pytest.mark.skipif(
    not HAS_BUBBLEWRAP, reason="bubblewrap and /usr/bin/python3 are not both here"
)
LIMITS = ContainerLimits()


@pytest.fixture
def database(shared_database: Database) -> Database:
    return shared_database


@pytest.mark.slow
async def test_no_attack_succeeds() -> None:
    async with serving_containers(ENGINES["linux"]()) as (url, _), reaching(url) as engine:
        told = await engine.describe()
        assert told.language.startswith("CPython 3")
        assert (told.is_movable, told.is_whole) == (True, True)
        assert await allowed_attacks(engine) == []


@pytest.mark.slow
async def test_a_container_is_used_from_afar() -> None:
    async with serving_containers(ENGINES["linux"]()) as (url, server), reaching(url) as engine:
        python = await engine.open(LIMITS)
        assert (await python.run("x = 41\nx + 1", timeout_s=30)).output == "42\n"
        ran = await python.run("open('é', 'w').write(str(x))", timeout_s=30, key="k/1")
        assert ran.files == ("/mnt/data/é",)
        assert await python.result_of("k/1", timeout_s=0) == ran
        assert await python.result_of("k/2", timeout_s=0) is None
        assert await python.get("/mnt/data/é", bytes_max=9) == b"41"
        with pytest.raises(FileRefused, match="longer"):
            await python.get("/mnt/data/é", bytes_max=1)
        with pytest.raises(FileRefused):
            await python.get("/mnt/data/missing", bytes_max=9)
        with pytest.raises(EngineBroken, match="400"):
            await python.put("/etc/passwd", b"")
        await python.put("/mnt/data/in/b", b"\0" * 1000)
        await python.remove("/mnt/data/é")
        listed = await python.run("import os; sorted(os.listdir('.'))", timeout_s=30)
        assert listed.output == "['in']\n"
        assert python.handle is not None
        again = await engine.attach(python.handle)
        assert again is not None
        assert (await again.run("x", timeout_s=30)).output == "41\n"
        late = await again.run("y = 1\nwhile True: pass", timeout_s=0.2)
        assert late.status == "interrupted"
        await python.close()
        assert await engine.attach(python.handle) is None
        assert not server._served
        with pytest.raises(EngineBroken):
            await again.run("x", timeout_s=30)
        assert await engine.attach(b"none") is None


async def test_one_run_for_a_key() -> None:
    async with serving_containers(ENGINES["linux"]()) as (url, _), reaching(url) as engine:
        python = await engine.open(LIMITS)
        await python.run("n = 0", timeout_s=30)
        asked = [python.run("n += 1\nn", timeout_s=30, key="same") for _ in range(3)]
        assert {ran.output for ran in await asyncio.gather(*asked)} == {"1\n"}
        assert (await python.run("n", timeout_s=30)).output == "1\n"


async def test_a_run_that_nobody_waits_for_is_interrupted() -> None:
    async with serving_containers(ENGINES["linux"]()) as (url, server), reaching(url) as engine:
        python = await engine.open(LIMITS)
        loop = asyncio.get_running_loop()
        run = loop.create_task(python.run("x = 1\nwhile True: pass", timeout_s=60, key="k"))
        (served,) = server._served.values()
        await asyncio.wait({run}, timeout=0.3)
        (begun,) = served.runs.values()
        assert not begun.done()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert begun.cancelled()
        assert (await python.run("x", timeout_s=30)).output == "1\n"


async def test_a_container_whose_id_nobody_learns_is_closed_soon() -> None:
    limits = WorkerServerLimits(unused_s=0)
    async with (
        serving_containers(ENGINES["linux"](), limits) as (url, server),
        reaching(url) as engine,
    ):
        python = await engine.open(LIMITS)
        await python.run("x = 1", timeout_s=30)
        await engine.open(LIMITS)  # and whoever waited for it is gone
        assert len(server._served) == 2
        await server.sweep()
        assert len(server._served) == 1
        assert (await python.run("x", timeout_s=30)).output == "1\n"


@pytest.mark.slow
async def test_a_warm_container_is_closed_if_its_call_is_cancelled(database: Database) -> None:
    policy = ContainerPolicy(warm_max=1)
    async with (
        serving_containers(ENGINES["monty"]()) as (url, server),
        reaching(url) as engine,
        open_pool(database, engine, policy) as pool,
    ):
        for steps in range(12):
            await pool._refill()
            (warm,) = pool._warm
            taking = asyncio.create_task(pool._open(policy.limits.memory_bytes))
            for _ in range(steps):
                await asyncio.sleep(0)
            taking.cancel()
            await asyncio.wait([taking])
            if not taking.cancelled():
                await taking.result().close()
            assert warm.is_alive == (warm in pool._warm)
            assert len(server._served) == len(pool._warm)


async def test_a_server_has_no_more_containers_than_it_may_if_many_begin_at_once() -> None:
    limits = WorkerServerLimits(containers_max=1)
    async with (
        serving_containers(ENGINES["linux"](), limits) as (url, server),
        reaching(url) as engine,
    ):
        opening = (engine.open(LIMITS) for _ in range(3))
        await asyncio.gather(*opening, return_exceptions=True)
        assert len(server._served) == 1


@pytest.mark.slow
async def test_a_server_has_bounds() -> None:
    limits = WorkerServerLimits(containers_max=1, idle_s=0, body_bytes_max=2000)
    async with (
        serving_containers(ENGINES["linux"](), limits) as (url, server),
        reaching(url) as engine,
    ):
        first = await engine.open(LIMITS)
        second = await engine.open(LIMITS)
        with pytest.raises(EngineBroken):
            await first.run("1", timeout_s=30)
        with pytest.raises(EngineBroken, match="413"):
            await second.put("/mnt/data/a", bytes(2001))
        loop = asyncio.get_running_loop()
        run = loop.create_task(second.run("import time; time.sleep(60)", timeout_s=60))
        await asyncio.wait({run}, timeout=0.3)
        await server.sweep()
        with pytest.raises(EngineBroken, match="503"):
            await engine.open(LIMITS)
        waiting = [loop.create_task(second.run("1", timeout_s=9)) for _ in range(RUNS_MAX - 1)]
        (served,) = server._served.values()
        while len(served.runs) < RUNS_MAX:
            await asyncio.wait(waiting, timeout=0.01)
        with pytest.raises(EngineBroken, match="503"):
            await second.run("1", timeout_s=9)
        run.cancel()
        await asyncio.wait({run, *waiting})
        await server.sweep()
        assert not server._served


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/", b"", 200),
        ("GET", "/elsewhere", b"", 404),
        ("POST", "/containers", b'{"memory_bytes": 0}', 400),
        ("GET", "/containers/ID", b"", 204),
        ("GET", "/containers/other", b"", 404),
        ("POST", "/containers/ID/runs", b'{"code": "1"}', 400),
        ("POST", "/containers/ID/runs", b'{"code":"1","key":"k","timeout_s":121}', 400),
        ("GET", "/containers/ID/runs", b"", 405),
        ("GET", "/containers/ID/runs/none", b"", 404),
        ("POST", "/containers/ID/interrupt", b'{"key":"none"}', 204),
        ("POST", "/containers/ID/files?path=a", b"", 405),
        ("GET", "/containers/ID/files?path=../a", b"", 400),
        ("GET", "/containers/ID/files?path=a&bytes_max=x", b"", 400),
        ("PUT", "/containers/ID/files?path=a", b"1", 204),
    ],
)
async def test_requests_by_hand(method: str, path: str, body: bytes, status: int) -> None:
    async with (
        serving_containers(ENGINES["linux"]()) as (url, _),
        reaching(url) as engine,
        http_client(url, headers={"authorization": f"Bearer {TOKEN}"}) as known,
        http_client(url, headers={"authorization": "Bearer x"}) as stranger,
    ):
        python = await engine.open(LIMITS)
        assert python.handle is not None
        place = path.replace("ID", python.handle.decode())
        assert (await stranger.request(method, place, content=body)).status_code == 401
        assert (await known.request(method, place, content=body)).status_code == status


@pytest.mark.parametrize(
    ("wait_s", "status"), [("-1", 404), ("-inf", 404), ("nan", 400), ("soon", 400)]
)
async def test_the_wait_for_a_run_is_a_number(wait_s: str, status: int) -> None:
    async with (
        serving_containers(ENGINES["linux"]()) as (url, server),
        reaching(url) as engine,
        http_client(url, headers={"authorization": f"Bearer {TOKEN}"}) as known,
    ):
        python = await engine.open(LIMITS)
        assert python.handle is not None
        place = f"/containers/{python.handle.decode()}/runs"
        (served,) = server._served.values()
        begun = asyncio.get_running_loop().create_task(
            python.run("import time; time.sleep(60)", timeout_s=60, key="k")
        )
        await asyncio.wait({begun}, timeout=0.3)
        assert "k" in served.runs
        answer = await known.get(f"{place}/k?wait_s={wait_s}", timeout=5)
        begun.cancel()
        await asyncio.wait({begun})
        assert answer.status_code == status


async def test_a_server_that_is_not_there() -> None:
    async with reaching("http://127.0.0.1:9") as engine:
        with pytest.raises(EngineBroken, match="cannot be reached"):
            await engine.describe()
        with pytest.raises(EngineBroken, match="cannot be reached"):
            await engine.attach(b"x")


@pytest.mark.slow
async def test_a_server_that_goes_away() -> None:
    async with AsyncExitStack() as server:
        url, _ = await server.enter_async_context(serving_containers(ENGINES["linux"]()))
        async with reaching(url, "wrong") as stranger:
            with pytest.raises(EngineBroken, match="401"):
                await stranger.describe()
        async with reaching(url) as engine:
            python = await engine.open(LIMITS)
            await server.aclose()
            with pytest.raises(EngineBroken, match="cannot be reached"):
                await python.put("/mnt/data/a", b"")
            with pytest.raises(EngineBroken, match="cannot be reached"):
                await python.result_of("k", timeout_s=1)
            with pytest.raises(EngineBroken, match="cannot be reached"):
                await python.run("1", timeout_s=1)
            assert not python.is_alive
            await python.close()


async def test_a_result_that_is_too_long_ends_the_container() -> None:
    async with (
        serving_containers(ENGINES["linux"]()) as (url, _),
        reaching(url, body_bytes_max=1000) as engine,
    ):
        python = await engine.open(LIMITS)
        with pytest.raises(EngineBroken, match="longer than tools may read"):
            await python.run("print('x' * 1000)", timeout_s=30)
        assert not python.is_alive


async def test_variables_outlive_a_gateway_that_stops(database: Database, tenant: TenantId) -> None:
    async with serving_containers(ENGINES["linux"]()) as (url, _):
        async with open_pool(database, remote_engine(url), owner="one") as one:
            response = caller(one, tenant)
            await response.run("x = 41")
        async with open_pool(database, remote_engine(url), owner="two") as two:
            heir = caller(two, tenant, ids.parse_container_id(response.grant.container_id))
            assert (await heir.run("x + 1")).output == "42"


async def test_a_replica_goes_on_with_the_run_of_another(
    database: Database, tenant: TenantId
) -> None:
    """The other one is gone before it has the result; its container and its run are not."""
    async with serving_containers(ENGINES["linux"]()) as (url, _):
        policy = ContainerPolicy()
        async with open_pool(database, remote_engine(url), policy, owner="one") as one:
            response = caller(one, tenant)
            await response.run("n = 0\nfor name in 'fg': open(name, 'w').write('old')")
            loop = asyncio.get_running_loop()
            code = "import time\nn += 1\ntime.sleep(1)\nopen('f', 'w').write('new')\nprint('n', n)"
            run = loop.create_task(response.run(code))
            await asyncio.wait({run}, timeout=0.5)
            assert len(response.handles) == 2
            async with open_pool(database, remote_engine(url), policy, owner="two") as two:
                uuid = ids.parse_container_id(response.grant.container_id)
                heir = caller(two, tenant, uuid)
                heir.response, heir.handles = response.response, response.handles
                heir.calls = response.calls
                taken = await heir.resume(1)
                assert taken is not None
                assert taken.output == "n 1"
                assert list(taken.state["files"]) == ["/mnt/data/f"]
                await run
                found = await heir.run("print(open('f').read(), open('g').read()); n")
                assert found.output == "new old\n1"
                assert uuid is not None
                row = await containers.load(database, tenant, uuid)
                assert row is not None
                assert (row.owner, row.epoch) == ("two", 2)
                heir.handles[1] = heir.handles[1].replace(b".1", b".9")
                assert await heir.resume(1) is None
