"""Containers that are kernels, of a server of ours and of a real Jupyter Kernel Gateway."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from gateway import ids
from gateway.errors import ConfigError
from gateway.settings.tools import Python
from gateway.simulator.app import create_simulator
from gateway.simulator.options import SimulatorOptions
from gateway.tools.python.attacks import ALWAYS_DENIED, ATTACKS
from gateway.tools.python.engine import ContainerLimits, EngineBroken, FileRefused
from gateway.tools.python.jupyter.engine import TAKEN_OVER, JupyterEngine
from gateway.tools.python.self_test import choose
from gateway.tools.python.tool import PythonLimits
from gateway.wiring.python import engines
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.kernel_gateway import (
    TOKEN,
    KernelGateway,
    has_real,
    kernel_gateway,
    real_kernel_gateway,
    until_ready,
)
from tests.fakes.processes import reserved_port
from tests.fakes.python_containers import HAS_BUBBLEWRAP, caller, open_pool
from tests.fakes.serving import serving
from tests.integration.tools.test_python import png, stored

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

pytestmark = pytest.mark.skipif(
    not HAS_BUBBLEWRAP, reason="bubblewrap and /usr/bin/python3 are not both here"
)
LIMITS = ContainerLimits()
OWN_FOLDER = "/mnt/kernels/{id}"
RUN_S = 60.0


@dataclass(frozen=True)
class Place:
    """A server, and the folder that its kernels have for themselves."""

    url: str
    folder: str = "/mnt/data"

    def settings(self, **more: Any) -> dict[str, Any]:
        return {
            "enabled": True,
            "engine": "jupyter",
            "jupyter_url": self.url,
            "jupyter_token": TOKEN,
            "jupyter_folder": self.folder,
            "jupyter_unproven": True,
            **more,
        }

    def engine(self, **more: Any) -> JupyterEngine:
        (found,) = engines(Python(**self.settings(**more)))
        assert isinstance(found, JupyterEngine)
        return found

    @asynccontextmanager
    async def reached(self) -> AsyncIterator[JupyterEngine]:
        engine = self.engine()
        try:
            yield engine
        finally:
            await engine.close()


@pytest.fixture
def database(shared_database: Database) -> Database:
    return shared_database


@pytest.fixture(scope="session")
def real() -> Iterator[Place]:
    if not has_real():
        pytest.skip("Jupyter Kernel Gateway is not installed: `make test-e2e` does that")
    with reserved_port() as port, real_kernel_gateway(port) as url:
        until_ready(url)
        yield Place(url, OWN_FOLDER)


@pytest.fixture
async def scripted() -> AsyncIterator[tuple[Place, KernelGateway]]:
    async with kernel_gateway() as (url, server):
        yield Place(url), server


@pytest.fixture(params=["scripted", "real"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    if request.param == "real":
        yield request.getfixturevalue("real")
    else:
        async with kernel_gateway() as (url, _):
            yield Place(url)


async def test_it_is_used_only_if_its_operator_answers_for_it(place: Place) -> None:
    refused = await choose([place.engine(jupyter_unproven=False)])
    assert refused.engine is None
    assert "code may" in str(refused)
    assert "become root" not in str(refused)
    engine = place.engine()
    chosen = await choose([engine])
    assert chosen.engine is engine
    assert set(chosen.accepted)
    assert not ALWAYS_DENIED & set(chosen.accepted)
    assert "as the settings accept, code may" in str(chosen)
    await engine.close()


async def test_what_no_operator_can_answer_for(scripted: tuple[Place, KernelGateway]) -> None:
    """A kernel that has the server's secrets, as one would that has its environment."""
    place, _ = scripted
    engine = place.engine()
    accepted = (await engine.describe()).accepted
    assert accepted == frozenset(ATTACKS) - ALWAYS_DENIED
    begun = engine.open

    async def leaking(limits: ContainerLimits) -> Any:
        kernel = await begun(limits)
        await kernel.run("import os; os.environ['DATABASE_URL'] = 'x'", timeout_s=RUN_S)
        return kernel

    engine.open = leaking  # type: ignore[method-assign]
    chosen = await choose([engine])
    assert chosen.engine is None
    assert str(chosen).endswith("code may see the gateway's environment)")


async def test_kernels_that_share_their_files_are_refused(real: Place) -> None:
    chosen = await choose([Place(real.url).engine()])
    assert "its kernels share /mnt/data" in str(chosen)


async def test_a_kernel_is_a_container(place: Place) -> None:
    async with place.reached() as engine:
        python = await engine.open(LIMITS)
        shown = await python.run("x = 41\nprint('a')\nx + 1", timeout_s=RUN_S)
        assert (shown.status, shown.output) == ("ok", "a\n42\n")
        failed = await python.run("1 / 0", timeout_s=RUN_S)
        assert failed.status == "error"
        assert "ZeroDivisionError" in failed.output
        code = "open('/mnt/data/é', 'w').write(str(x)); print(open('é').read())"
        ran = await python.run(code, timeout_s=RUN_S, key="k/1")
        assert (ran.files, ran.output) == (("/mnt/data/é",), "41\n")
        assert await python.result_of("k/1", timeout_s=0) == ran
        assert await python.result_of("k/2", timeout_s=5) is None
        assert (await python.run("x = 0", timeout_s=RUN_S, key="k/1")).output.endswith("41\n")
        assert (await python.run("x", timeout_s=RUN_S)).output == "41\n"
        assert await python.get("/mnt/data/é", bytes_max=9) == b"41"
        with pytest.raises(FileRefused, match="longer"):
            await python.get("/mnt/data/é", bytes_max=1)
        with pytest.raises(FileRefused):
            await python.get("/mnt/data/missing", bytes_max=9)
        large = bytes(range(256)) * 10_000
        await python.put("/mnt/data/in/b", large)
        assert await python.get("/mnt/data/in/b", bytes_max=len(large)) == large
        await python.remove("/mnt/data/é")
        gone = await python.run(
            "import os; os.remove('/mnt/data/in/b'); sorted(os.listdir('/mnt/data'))",
            timeout_s=RUN_S,
        )
        assert (gone.output, gone.gone) == ("['in']\n", ("/mnt/data/in/b",))
        await python.close()
        assert await engine.attach(python.handle or b"") is None
        assert await engine.attach(b"none") is None
        with pytest.raises(EngineBroken):
            await python.run("x", timeout_s=RUN_S)


async def test_images_come_as_files(place: Place) -> None:
    async with place.reached() as engine:
        python = await engine.open(LIMITS)
        shown = await python.run(f"{png()}display(Image())\nImage()", timeout_s=RUN_S)
        assert len(shown.images) == 2
        assert (await python.get(shown.images[0], bytes_max=999)).startswith(b"\x89PNG")
        with pytest.raises(FileRefused):
            await python.get(shown.images[0], bytes_max=1)
        assert (await python.run("1", timeout_s=RUN_S)).images == ()
        await python.close()


@pytest.mark.parametrize(
    ("code", "status", "output"),
    [
        ("print('before', flush=True)\nwhile True: pass", "interrupted", "before\n"),
        (
            "print('before', flush=True)\nimport signal, time\n"
            "signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(0.1)",
            "killed",
            "before\n",
        ),
    ],
)
async def test_code_that_does_not_end(place: Place, code: str, status: str, output: str) -> None:
    async with place.reached() as engine:
        python = await engine.open(LIMITS)
        await python.run("x = 5", timeout_s=RUN_S)
        late = await python.run(code, timeout_s=1)
        assert (late.status, late.output) == (status, output)
        assert python.is_alive == (status == "interrupted")
        if python.is_alive:
            assert (await python.run("x", timeout_s=RUN_S)).output == "5\n"
            await python.close()


async def test_a_run_that_nobody_waits_for_is_interrupted(place: Place) -> None:
    async with place.reached() as engine:
        python = await engine.open(LIMITS)
        begun = asyncio.get_running_loop().create_task(
            python.run("x = 1\nopen('begun', 'w')\nwhile True: pass", timeout_s=RUN_S)
        )
        await asyncio.wait({begun}, timeout=1)
        begun.cancel()
        with pytest.raises(asyncio.CancelledError):
            await begun
        assert (await python.run("x", timeout_s=RUN_S)).output == "1\n"
        await python.close()


async def test_output_has_bounds(place: Place) -> None:
    async with place.reached() as engine:
        python = await engine.open(LIMITS)
        much = await python.run("for _ in range(3): print('x' * (1 << 20))", timeout_s=RUN_S)
        assert (len(much.output), much.dropped) == (1 << 20, (2 << 20) + 3)
        # More than a frame may have: the connection breaks, and the kernel and its names stay.
        wide = await python.run("y = 6\n'x' * (9 << 20)", timeout_s=RUN_S)
        assert (wide.status, len(wide.output) <= 1 << 20) == ("ok", True)
        assert (await python.run("y", timeout_s=RUN_S)).output == "6\n"
        await python.close()


async def test_a_kernel_that_dies_is_gone_although_the_server_starts_another(place: Place) -> None:
    async with place.reached() as engine:
        python = await engine.open(LIMITS)
        with pytest.raises(EngineBroken):
            await python.run("import os; os._exit(3)", timeout_s=RUN_S)
        assert not python.is_alive
        await python.close()
        assert await engine.attach(python.handle or b"") is None


async def test_a_kernel_that_forgot_us_is_not_attached(
    scripted: tuple[Place, KernelGateway],
) -> None:
    place, server = scripted
    async with place.reached() as engine:
        python = await engine.open(LIMITS)
        (kernel,) = server.kernels.values()
        await python.leave()
        kernel.process.kill()
        await kernel.process.wait()
        await kernel.restarted.wait()
        assert await engine.attach(python.handle or b"") is None
        assert not server.kernels


async def test_a_connection_that_breaks_off_costs_no_run(
    scripted: tuple[Place, KernelGateway],
) -> None:
    place, server = scripted
    async with place.reached() as engine:
        python = await engine.open(LIMITS)
        (kernel,) = server.kernels.values()
        code = "import time\nprint('one')\ntime.sleep(1)\nprint('two')"
        begun = asyncio.get_running_loop().create_task(python.run(code, timeout_s=RUN_S))
        await asyncio.wait({begun}, timeout=0.5)
        for socket in list(kernel.listeners.values()):
            await socket.close()
        ran = await begun
        assert ran.status == "ok"
        assert "two" in ran.output or "lost" in ran.output
        assert (await python.run("1", timeout_s=RUN_S)).output == "1\n"
        await python.close()


async def test_a_server_that_is_not_there(scripted: tuple[Place, KernelGateway]) -> None:
    async with Place("http://127.0.0.1:9").reached() as engine:
        with pytest.raises(EngineBroken, match="cannot be reached"):
            await engine.describe()
        with pytest.raises(EngineBroken, match="cannot be reached"):
            await engine.attach(b'["a-b","/mnt/data"]')
    place, _ = scripted
    engine = place.engine(jupyter_token="wrong")
    with pytest.raises(EngineBroken, match="401"):
        await engine.describe()
    await engine.close()


async def test_a_server_that_goes_away() -> None:
    async with AsyncExitStack() as server:
        url, _ = await server.enter_async_context(kernel_gateway())
        async with Place(url).reached() as engine:
            python = await engine.open(LIMITS)
            begun = asyncio.get_running_loop().create_task(
                python.run("import time; time.sleep(60)", timeout_s=RUN_S)
            )
            await asyncio.wait({begun}, timeout=0.5)
            await server.aclose()
            with pytest.raises(EngineBroken):
                await begun
            assert not python.is_alive
            await python.close()


async def test_a_server_that_is_full() -> None:
    async with kernel_gateway(kernels_max=1) as (url, _), Place(url).reached() as engine:
        python = await engine.open(LIMITS)
        with pytest.raises(EngineBroken, match="403"):
            await engine.open(LIMITS)
        await python.close()
        await (await engine.open(LIMITS)).close()


def test_it_needs_a_url_and_a_token() -> None:
    with pytest.raises(ConfigError, match="jupyter"):
        engines(Python(enabled=True, engine="jupyter"))
    token = SecretStr(TOKEN)
    (found,) = engines(Python(jupyter_url="http://127.0.0.1:8888", jupyter_token=token))
    assert found.name == "jupyter"


async def test_the_tool_keeps_names_and_files(
    place: Place, database: Database, tenant: TenantId
) -> None:
    async with open_pool(database, place.engine()) as pool:
        response = caller(pool, tenant, limits=PythonLimits(timeout_s=RUN_S))
        first = await response.run("x = 41\nopen('/mnt/data/a.txt', 'w').write('hello')\nx + 1")
        assert (first.outcome, first.output) == ("ok", "42")
        assert first.shown["outputs"] == [{"type": "logs", "logs": "42\n"}]
        shown = await response.run(f"{png()}Image()")
        assert shown.shown["outputs"][0]["url"].startswith("data:image/png;base64,")
        uuid = ids.parse_container_id(response.grant.container_id)
        assert uuid is not None
        assert await stored(database, tenant, uuid) == {"/mnt/data/a.txt": b"hello"}
        died = await response.run("import os; os._exit(0)")
        assert died.outcome == "tool_error"
        assert "are gone" in died.output
        again = await response.run("print(open('a.txt').read())\nx")
        assert again.output.startswith("(The container was started anew")
        assert "hello\n" in again.output
        assert "NameError" in again.output


async def test_a_replica_goes_on_with_the_run_of_another(
    place: Place, database: Database, tenant: TenantId
) -> None:
    """The other one is gone before it has the result; its kernel and its run are not."""
    async with open_pool(database, place.engine(), owner="one") as one:
        response = caller(one, tenant, limits=PythonLimits(timeout_s=RUN_S))
        await response.run("n = 0\nfor name in 'fg': open(name, 'w').write('old')")
        code = "import time\nn += 1\ntime.sleep(2)\nopen('f', 'w').write('new')\nprint('n', n)"
        run = asyncio.get_running_loop().create_task(response.run(code))
        await asyncio.wait({run}, timeout=1)
        assert len(response.handles) == 2
        async with open_pool(database, place.engine(), owner="two") as two:
            uuid = ids.parse_container_id(response.grant.container_id)
            heir = caller(two, tenant, uuid, limits=PythonLimits(timeout_s=RUN_S))
            heir.response, heir.handles = response.response, response.handles
            heir.calls = response.calls
            taken = await heir.resume(1)
            assert taken is not None
            assert taken.output.startswith(TAKEN_OVER.strip())
            assert list(taken.state["files"]) == ["/mnt/data/f"]
            with suppress(Exception):
                await run
            found = await heir.run("print(open('f').read(), open('g').read()); n")
            assert found.output == "new old\n1"
            heir.handles[1] = heir.handles[1].replace(b".1", b".9")
            assert await heir.resume(1) is None


async def test_a_response_runs_code_in_a_kernel(place: Place, database_url: str) -> None:
    body = {
        "model": "gpt-oss-20b",
        "input": "[[sim steps=python x = 6; python print(x * 7); say done]]",
        "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}],
        "include": ["code_interpreter_call.outputs"],
    }
    async with serving(create_simulator(SimulatorOptions())) as backend:
        settings = gateway_settings(
            database_url,
            [backend],
            models=[{"id": "gpt-oss-20b"}],
            tools={"python": place.settings()},
        )
        async with (
            running_gateway(settings) as gateway,
            http_client(gateway.url, headers=gateway.headers, timeout=RUN_S) as client,
        ):
            answer = (await client.post("/v1/responses", json=body)).json()
    assert answer["status"] == "completed", answer
    calls = [item for item in answer["output"] if item["type"] == "code_interpreter_call"]
    assert [call["status"] for call in calls] == ["completed", "completed"]
    assert calls[1]["outputs"] == [{"type": "logs", "logs": "42\n"}]
