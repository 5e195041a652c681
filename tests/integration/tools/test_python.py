"""The tool `python` in real containers, with a real database."""

from __future__ import annotations

import asyncio
import base64
import zlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from gateway import ids
from gateway.errors import StoreUnavailable
from gateway.protocol.grants import CITED_FILES_MAX, Grants
from gateway.store.postgres.database import Database
from gateway.store.tools import containers, files
from gateway.telemetry.metrics import Metrics
from gateway.tools.python.container_pool import ContainerPolicy, read
from gateway.tools.tool_contract import ToolCall
from tests.fakes.python_containers import ENGINES, HAS_BUBBLEWRAP, Clock, caller, open_pool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from uuid import UUID

    from gateway.tenancy import TenantId
    from gateway.tools.python.container_engine import Container, ContainerEngine, ContainerLimits
    from gateway.tools.python.container_pool import ContainerPool

needs_bubblewrap = pytest.mark.skipif(
    not HAS_BUBBLEWRAP, reason="bubblewrap and /usr/bin/python3 are not both here"
)


@pytest.fixture
def database(shared_database: Database) -> Database:
    return shared_database


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[ContainerPool]:
    async with open_pool(database, ENGINES["linux"]()) as opened:
        yield opened


def png() -> str:
    """Code that makes an image without any library."""
    pixels = zlib.compress(b"\0\xff\0\0")
    chunks = [(b"IHDR", b"\0\0\0\1\0\0\0\1\x08\2\0\0\0"), (b"IDAT", pixels), (b"IEND", b"")]
    image = b"\x89PNG\r\n\x1a\n" + b"".join(
        len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")
        for kind, body in chunks
    )
    return f"class Image:\n    def _repr_png_(self): return {image!r}\n"


async def stored(database: Database, tenant: TenantId, container: UUID) -> dict[str, bytes | None]:
    rows = await files.of_container(database, tenant, container, files_max=100)
    return {row.name: await read(database, tenant, row) for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
async def test_names_and_files_last_from_call_to_call(
    name: str, database: Database, tenant: TenantId
) -> None:
    async with open_pool(database, ENGINES[name]()) as pool:
        response = caller(pool, tenant)
        first = await response.run("x = 41\nopen('/mnt/data/a.txt', 'w').write('hello')\nx + 1")
        assert (first.outcome, first.output) == ("ok", "42")
        assert first.shown["outputs"] == [{"type": "logs", "logs": "42\n"}]
        second = await response.run('{"code": "print(x, open(\'/mnt/data/a.txt\').read())"}')
        assert second.output == "41 hello"
        assert second.shown["code"].startswith("print(")
        failed = await response.run("x = 1\n1 / 0")
        assert failed.outcome == "ok"
        assert "ZeroDivisionError" in failed.output
        assert (await response.run("x")).output == "1"
        assert "print()" in (await response.run("y = 1")).output
        (file_id,) = second.state["files"].values()
        assert second.state["files"] == {"/mnt/data/a.txt": file_id}
        assert file_id.startswith("cfile_")
        uuid = ids.parse_container_id(response.grant.container_id)
        assert uuid is not None
        assert await stored(database, tenant, uuid) == {"/mnt/data/a.txt": b"hello"}


@pytest.mark.slow
async def test_a_response_makes_no_container_beyond_what_its_tenant_may_have(
    database: Database, tenant: TenantId
) -> None:
    clock = Clock()
    async with open_pool(database, ENGINES["monty"](), clock=clock) as pool:
        first, second = caller(pool, tenant), caller(pool, tenant)
        first.grant = replace(first.grant, containers_max=1)
        second.grant = replace(second.grant, containers_max=1)
        assert (await first.run("x = 1")).outcome == "ok"
        refused = await second.run("y = 1")
        assert refused.outcome == "refused"
        assert "as many containers as there may be" in refused.output
        assert (await first.run("x + 1")).output == "2"
        clock.pass_s(ContainerPolicy().idle_s + 1)
        assert (await second.run("y = 3\ny")).output == "3"


@needs_bubblewrap
async def test_images_are_shown(pool: ContainerPool, tenant: TenantId) -> None:
    shown = await caller(pool, tenant).run(f"{png()}Image()")
    (image,) = shown.shown["outputs"]
    assert image["type"] == "image"
    kind, _, content = image["url"].partition(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(content).startswith(b"\x89PNG")
    assert "image was shown" in shown.output
    forged = await caller(pool, tenant).run(png().replace("PNG", "GIF") + "display(Image())")
    assert forged.shown["outputs"] == []


@pytest.mark.slow
@needs_bubblewrap
async def test_an_image_that_is_too_large_for_an_item_is_a_file(
    database: Database, tenant: TenantId
) -> None:
    policy = ContainerPolicy(image_bytes_inline_max=10)
    async with open_pool(database, ENGINES["linux"](), policy) as pool:
        response = caller(pool, tenant)
        shown = await response.run(f"{png()}display(Image())")
        (image,) = shown.shown["outputs"]
        parts = image["url"].split("/")
        assert parts[:4] == ["", "v1", "containers", response.grant.container_id]
        container, file = ids.parse_container_id(parts[3]), ids.parse_container_file_id(parts[5])
        assert container is not None
        assert file is not None
        row = await files.load(database, tenant, file, container=container, now=pool.now())
        assert row is not None
        assert (await read(database, tenant, row) or b"").startswith(b"\x89PNG")


@pytest.mark.slow
@needs_bubblewrap
async def test_images_of_an_earlier_interpreter_stay_as_they_were(
    database: Database, tenant: TenantId
) -> None:
    policy = ContainerPolicy(image_bytes_inline_max=10)
    async with open_pool(database, ENGINES["linux"](), policy) as pool:
        response = caller(pool, tenant)
        await response.run(f"{png()}display(Image())")
        uuid = ids.parse_container_id(response.grant.container_id)
        assert uuid is not None
        first = await stored(database, tenant, uuid)
        await response.run("import os; os._exit(0)")
        other = png().replace("IEND", "IENd")
        shown = await response.run(f"{other}display(Image())")
        assert "/mnt/data/.display/2.png" in shown.output
        await response.run("1")
        assert first.items() < (await stored(database, tenant, uuid)).items()


@pytest.mark.slow
@needs_bubblewrap
async def test_a_container_cannot_name_a_file_otherwise_than_by_its_path(
    database: Database, tenant: TenantId
) -> None:
    policy = ContainerPolicy(image_bytes_inline_max=10)
    async with open_pool(database, ENGINES["linux"](), policy) as pool:
        response = caller(pool, tenant)
        await response.run(
            f"{png()}open('dot.png', 'wb').write(Image()._repr_png_())\n"
            "display.__self__._images.append('../data/dot.png')"
        )
        container = ids.parse_container_id(response.grant.container_id)
        assert container is not None
        assert (await stored(database, tenant, container)).keys() == {"/mnt/data/dot.png"}


@needs_bubblewrap
async def test_what_is_printed_is_made_plain(pool: ContainerPool, tenant: TenantId) -> None:
    code = (
        "import sys\nprint('\\x1b[31mred\\x1b[0m', 'a\\u202eb')\nprint('10%\\r20%\\r30%')\n"
        "print('err', file=sys.stderr)\nprint('\\x00\\x07bell')"
    )
    assert (await caller(pool, tenant).run(code)).output == "red ab\n30%\nerr\nbell"


@pytest.mark.slow
@needs_bubblewrap
@pytest.mark.parametrize(
    ("code", "outcome", "told"),
    [
        ("print('before')\nwhile True: pass", "timeout", "before\n(The code was interrupted"),
        ("import time\ntime.sleep(99)", "timeout", "Variables are kept"),
        (
            "print('before')\nimport signal\n"
            "signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
            "timeout",
            "before\n(The code did not end",
        ),
        ("import os\nos._exit(3)", "tool_error", "ended"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "tool_error", "ended"),
        ("raise KeyboardInterrupt", "ok", "(The code printed nothing"),
        ("input()", "ok", "EOFError"),
        ("b = bytearray(3 << 30)", "ok", "MemoryError"),
        (
            "import os\npids = []\ntry:\n    for _ in range(200):\n        pid = os.fork()\n"
            "        if not pid: __import__('time').sleep(9)\n"
            "        pids.append(pid)\n"
            "except OSError as error: print('stopped at', len(pids) < 70)\n"
            "for pid in pids: os.kill(pid, 9)",
            "ok",
            "stopped at True",
        ),
        ("print('x' * (5 << 20))", "ok", "more bytes were dropped"),
        ("", "refused", "no code"),
        ("#" * 70_000, "refused", "longer than 65536 bytes"),
    ],
)
async def test_bounds_are_told(
    code: str, outcome: str, told: str, pool: ContainerPool, tenant: TenantId
) -> None:
    timeout_s = 0.5 if outcome == "timeout" else 30
    response = caller(pool, tenant, timeout_s=timeout_s)
    result = await response.run(code)
    assert result.outcome == outcome
    assert told in result.output
    assert len(result.output) <= 1_100_000
    logs = "".join(each["logs"] for each in result.shown["outputs"])
    assert len(logs) < 70_000
    assert (await response.run("1 + 1")).output.endswith("2")


@needs_bubblewrap
async def test_what_a_killed_container_had_is_told(pool: ContainerPool, tenant: TenantId) -> None:
    response = caller(pool, tenant)
    await response.run("x = 5\nopen('kept.txt', 'w').write('kept')")
    assert "are gone" in (await response.run("import os; os._exit(0)")).output
    again = await response.run("print(open('kept.txt').read())\nx")
    assert again.output.startswith("(The container was started anew")
    assert "kept\n" in again.output
    assert "NameError" in again.output
    assert "anew" not in (await response.run("1")).output


@needs_bubblewrap
async def test_deleted_files_are_not_brought_back(
    pool: ContainerPool, database: Database, tenant: TenantId
) -> None:
    response = caller(pool, tenant)
    await response.run("for name in 'ab': open(name, 'w').write(name)")
    await response.run("import os; os.remove('a')")
    uuid = ids.parse_container_id(response.grant.container_id)
    assert uuid is not None
    assert await stored(database, tenant, uuid) == {"/mnt/data/b": b"b"}
    (row,) = await files.of_container(database, tenant, uuid, files_max=9)
    assert await files.delete(database, tenant, row.uuid, container=uuid)
    assert (await response.run("os.listdir('.')")).output == "[]"


@needs_bubblewrap
async def test_a_deleted_file_that_code_holds_on_to_costs_no_further_call(
    pool: ContainerPool, database: Database, tenant: TenantId
) -> None:
    response = caller(pool, tenant)
    await response.run("import os; open('a', 'w').write('a'); os.chmod('.', 0o500)")
    uuid = ids.parse_container_id(response.grant.container_id)
    assert uuid is not None
    (row,) = await files.of_container(database, tenant, uuid, files_max=9)
    assert await files.delete(database, tenant, row.uuid, container=uuid)
    assert (await response.run("1 + 1")).output == "2"


async def test_a_state_has_the_last_files_that_an_answer_may_cite(
    database: Database, tenant: TenantId
) -> None:
    async with open_pool(database, ENGINES["monty"]()) as pool:
        response = caller(pool, tenant)
        await response.run("1")
        before = {f"/mnt/data/{at}": f"cfile_{at}" for at in range(CITED_FILES_MAX)}
        response.states.append({"container_id": response.grant.container_id, "files": before})
        made = await response.run("open('/mnt/data/new', 'w').write('x')")
        assert [*made.state["files"]] == [*[*before][1:], "/mnt/data/new"]


@pytest.mark.slow
@needs_bubblewrap
async def test_files_beyond_the_bounds_are_not_kept(database: Database, tenant: TenantId) -> None:
    bounds = files.FileBounds(10_000, 3000, 3)
    policy = ContainerPolicy(file_bytes_max=2000, files=bounds)
    async with open_pool(database, ENGINES["linux"](), policy) as pool:
        response = caller(pool, tenant)
        long = await response.run("open('long', 'w').write('x' * 2001)")
        assert "long is not kept" in long.output
        full = await response.run("for n in 'ab': open(n, 'w').write(n * 1999)")
        assert "/mnt/data/b is not kept" in full.output
        many = await response.run("for n in range(4): open(str(n), 'w').write('')")
        assert "/mnt/data/2 is not kept" in many.output
        assert "1 more files are not kept" in many.output
        odd = await response.run("open('a\\tb', 'w').close()")
        assert "not of printable characters" in odd.output
        link = await response.run("import os; os.symlink('/etc/hostname', 'link')")
        assert link.state["files"] == many.state["files"]


@needs_bubblewrap
async def test_uploaded_files_are_there(
    pool: ContainerPool, database: Database, tenant: TenantId
) -> None:
    row = files.FileRow(
        ids.new_uuid(), None, "../x/données.csv", "user_data", None, 3, b"d", pool.now()
    )
    assert await files.put(database, tenant, row, [b"1,2"], bounds=pool.policy.files)
    wanted = (ids.file_id(row.uuid), ids.file_id(ids.new_uuid()), "file-none")
    response = caller(pool, tenant, file_ids=wanted)
    assert (await response.run("open('/mnt/data/données.csv').read()")).output == "'1,2'"
    assert (await response.run("import os; os.remove('données.csv')")).outcome == "ok"
    assert "FileNotFound" in (await response.run("open('données.csv')")).output


@needs_bubblewrap
async def test_an_uploaded_file_comes_with_the_next_call_if_the_database_was_away(
    pool: ContainerPool, database: Database, tenant: TenantId
) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise StoreUnavailable("it is down")

    row = files.FileRow(ids.new_uuid(), None, "a.csv", "evals", None, 3, b"d", pool.now())
    assert await files.put(database, tenant, row, [b"1,2"], bounds=pool.policy.files)
    response = caller(pool, tenant, file_ids=(ids.file_id(row.uuid),))
    with pytest.MonkeyPatch.context() as away:
        away.setattr(files, "copy", refused)
        assert (await response.run("1")).outcome == "transport_error"
    assert (await response.run("open('a.csv').read()")).output == "'1,2'"


@needs_bubblewrap
async def test_tenants_have_containers_of_their_own(
    pool: ContainerPool, tenant: TenantId, database: Database, other_tenant: TenantId
) -> None:
    uuid = ids.auto_container(ids.new_uuid())
    await caller(pool, tenant, uuid).run("secret = 1\nopen('secret.txt', 'w').write('s')")
    theirs = await caller(pool, other_tenant, uuid).run(
        "import os; print(os.listdir('/mnt/data')); secret"
    )
    assert "[]" in theirs.output
    assert "NameError" in theirs.output
    assert await stored(database, other_tenant, uuid) == {}


@pytest.mark.slow
@needs_bubblewrap
async def test_containers_expire(database: Database, tenant: TenantId) -> None:
    clock = Clock()
    policy = ContainerPolicy(idle_s=60, life_s=100)
    async with open_pool(database, ENGINES["linux"](), policy, clock=clock) as pool:
        response = caller(pool, tenant)
        await response.run("x = 1")
        clock.pass_s(50)
        assert (await response.run("x")).output == "1"
        clock.pass_s(49)
        assert (await response.run("x")).output == "1"
        clock.pass_s(2)
        old = await response.run("x")
        assert (old.outcome, "expired" in old.output) == ("refused", True)
        idle = caller(pool, tenant)
        await idle.run("x = 1")
        clock.pass_s(61)
        await pool.sweep()
        assert (await idle.run("x")).outcome == "refused"


async def test_a_container_that_is_deleted_while_a_response_uses_it_stays_deleted(
    database: Database, tenant: TenantId
) -> None:
    async with (
        open_pool(database, ENGINES["monty"]()) as here,
        open_pool(database, ENGINES["monty"](), owner="other") as there,
    ):
        response = caller(here, tenant)
        assert (await response.run("1")).outcome == "ok"
        uuid = ids.parse_container_id(response.grant.container_id)
        assert uuid is not None
        named = replace(caller(there, tenant, uuid).grant, containers_max=None)
        heir = replace(caller(there, tenant, uuid), grant=named)
        assert await containers.delete(database, tenant, uuid)
        for one in (response, heir):
            late = await one.run("1")
            assert (late.outcome, "deleted" in late.output) == ("refused", True)
        assert await containers.load(database, tenant, uuid) is None


@pytest.mark.slow
@needs_bubblewrap
async def test_another_replica_takes_a_container_over(database: Database, tenant: TenantId) -> None:
    async with (
        open_pool(database, ENGINES["linux"]()) as here,
        open_pool(database, ENGINES["linux"](), owner="other") as there,
    ):
        uuid = ids.auto_container(ids.new_uuid())
        response, moved = caller(here, tenant, uuid), caller(there, tenant, uuid)
        await response.run("x = 1\nopen('f', 'w').write('from here')")
        first = await moved.run("print(open('f').read()); open('f', 'w').write('from there'); x")
        assert "started anew" in first.output
        assert "from here" in first.output
        assert "NameError" in first.output
        back = await response.run("print(open('f').read()); x")
        assert "started anew" in back.output
        assert "from there" in back.output
        row = await containers.load(database, tenant, uuid)
        assert row is not None
        assert (row.owner, row.epoch, row.engine) == ("me", 3, "linux")


@pytest.mark.slow
@needs_bubblewrap
async def test_a_result_is_found_again_and_nothing_runs_twice(
    pool: ContainerPool, tenant: TenantId, database: Database
) -> None:
    response = caller(pool, tenant)
    await response.run("n = 0")
    first = await response.run(f"{png()}n += 1\ndisplay(Image())\nprint('n is', n)")
    again = await response.resume(1)
    assert again is not None
    assert (again.output, again.shown["outputs"]) == (first.output, first.shown["outputs"])
    assert (await response.run("n")).output == "1"
    async with open_pool(database, ENGINES["linux"](), owner="other") as elsewhere:
        stranger = caller(elsewhere, tenant, ids.parse_container_id(response.grant.container_id))
        stranger.response, stranger.handles = response.response, response.handles
        assert await stranger.resume(1) is None


@pytest.mark.slow
@needs_bubblewrap
async def test_the_container_that_rested_longest_makes_room(
    database: Database, tenant: TenantId
) -> None:
    clock = Clock()
    policy = ContainerPolicy(tenant_open_max=2, busy_wait_s=0.05)
    async with open_pool(database, ENGINES["linux"](), policy, clock=clock) as pool:
        one, two, three = (caller(pool, tenant) for _ in range(3))
        for response in (one, two, three):
            await response.run("x = 1")
            clock.pass_s(1)
        assert (await three.run("x")).output == "1"
        assert (await two.run("x")).output == "1"
        assert "started anew" in (await one.run("x = 2")).output


@pytest.mark.slow
@needs_bubblewrap
async def test_who_finds_all_containers_busy_is_told(database: Database, tenant: TenantId) -> None:
    policy = ContainerPolicy(open_max=1, busy_wait_s=0.05)
    async with open_pool(database, ENGINES["linux"](), policy) as pool:
        busy, other = caller(pool, tenant), caller(pool, tenant)
        loop = asyncio.get_running_loop()
        run = loop.create_task(busy.run("while True: pass"))
        while not busy.handles:
            await asyncio.wait({run}, timeout=0.01)
        refused = await other.run("1")
        assert (refused.outcome, "running at the moment" in refused.output) == ("refused", True)
        run.cancel()
        await asyncio.wait({run})
        assert (await other.run("1")).output == "1"


@needs_bubblewrap
async def test_a_database_that_is_gone_costs_no_more_than_the_call(
    pool: ContainerPool, tenant: TenantId
) -> None:
    response = caller(pool, tenant)
    await response.run("x = 1")
    there = pool._database
    pool._database = lost = Database(
        "postgresql://nobody@127.0.0.1:9/none",
        pool_size_max=1,
        command_timeout_s=1,
        connect_timeout_s=1,
    )
    try:
        assert (await response.run("x")).outcome == "transport_error"
        assert await response.resume(0) is None, "lost, and no defect of the tool"
    finally:
        pool._database = there
        await lost.close()
    assert (await response.run("x")).output == "1"


@needs_bubblewrap
async def test_what_python_is_not_asked_for(pool: ContainerPool, tenant: TenantId) -> None:
    response = caller(pool, tenant)
    session = response.tools(response.scope())
    start = session.start(ToolCall(0, "builtin:python", "1"))
    assert start.repeatable is False
    assert start.shown == {"container_id": response.grant.container_id}
    other = await session.run(ToolCall(0, "builtin:other", "1"), response.handles.append)
    assert (other.outcome, response.handles) == ("refused", [])
    session = response.tools(replace(response.scope(), grants=Grants()))
    assert session.start(ToolCall(0, "builtin:python", "1")).shown == {}
    refused = await session.run(ToolCall(0, "builtin:python", "1"), response.handles.append)
    assert refused.outcome == "refused"
    assert await session.resume(ToolCall(0, "builtin:python", "1"), b"{}") is None
    await session.close()


@pytest.mark.slow
@needs_bubblewrap
async def test_warm_containers_are_used_once(database: Database, tenant: TenantId) -> None:
    async with open_pool(database, ENGINES["linux"](), ContainerPolicy(warm_max=1)) as pool:
        await pool._refill()
        (warm,) = pool._warm
        response = caller(pool, tenant)
        assert (await response.run("'name' in globals()")).output == "False"
        (live,) = pool._live.values()
        assert live.container is warm
        await pool._refill()
        await pool._warm[0].close()
        assert (await caller(pool, tenant).run("1")).output == "1"


@needs_bubblewrap
async def test_no_more_is_made_plain_than_is_shown(pool: ContainerPool, tenant: TenantId) -> None:
    response = caller(pool, tenant, logs_chars_max=100)
    assert "characters left out" in (await response.run("print('\\x07' * 1000)")).output


class Mortal:
    """A container that is killed behind its code, before anybody has its files."""

    def __init__(self, container: Container) -> None:
        self._container = container

    def __getattr__(self, name: str) -> Any:
        return getattr(self._container, name)

    async def get(self, path: str, *, bytes_max: int) -> bytes:
        await self._container.close()
        return await self._container.get(path, bytes_max=bytes_max)


@needs_bubblewrap
async def test_a_call_whose_files_are_lost_is_no_completed_one(
    pool: ContainerPool, tenant: TenantId
) -> None:
    response = caller(pool, tenant)
    assert (await response.run("x = 1")).outcome == "ok"
    (live,) = pool._live.values()
    assert live.container is not None
    live.container = cast("Container", Mortal(live.container))
    lost = await response.run("open('f', 'w').write('lost')\nprint('done')")
    assert lost.outcome == "tool_error"
    assert lost.shown["outputs"] == [{"type": "logs", "logs": "done\n"}]
    assert "done" in lost.output
    assert "files that it wrote may be lost" in lost.output
    assert lost.state["files"] == {}
    assert "started anew" in (await response.run("1")).output


class Deleting:
    """A container that is deleted once its first file was read."""

    def __init__(self, container: Container, delete: Callable[[], Awaitable[None]]) -> None:
        self._container = container
        self._delete = delete

    def __getattr__(self, name: str) -> Any:
        return getattr(self._container, name)

    async def get(self, path: str, *, bytes_max: int) -> bytes:
        content = await self._container.get(path, bytes_max=bytes_max)
        await self._delete()
        return content


@needs_bubblewrap
async def test_a_container_that_is_deleted_behind_its_code_is_no_defect(
    pool: ContainerPool, tenant: TenantId
) -> None:
    response = caller(pool, tenant)
    await response.run("x = 1")
    (live,) = pool._live.values()
    delete = partial(pool.forget, *live.key)
    live.container = cast("Container", Deleting(live.interpreter, delete))
    deleted = await response.run("for name in 'ab': open(name, 'w')")
    assert deleted.outcome == "tool_error"
    assert "The container ended behind the code" in deleted.output


@needs_bubblewrap
async def test_a_container_that_is_deleted_while_it_is_opened_leaves_no_interpreter(
    pool: ContainerPool, tenant: TenantId
) -> None:
    response = caller(pool, tenant)
    running = asyncio.create_task(response.run("1"))
    while not pool._live:
        await asyncio.wait([running], timeout=0.01)
    (live,) = pool._live.values()
    await pool.forget(*live.key)
    await running
    assert (live.container, pool._live) == (None, {})


@needs_bubblewrap
async def test_files_that_the_database_does_not_take_fail_the_call(
    pool: ContainerPool, tenant: TenantId, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise StoreUnavailable("it is down")

    response = caller(pool, tenant)
    await response.run("x = 1")
    monkeypatch.setattr(files, "put", refused)
    lost = await response.run("open('f', 'w').write('lost')")
    assert lost.outcome == "tool_error"
    assert "could not be stored" in lost.output


@pytest.mark.slow
@needs_bubblewrap
async def test_containers_are_counted(database: Database, tenant: TenantId) -> None:
    metrics = Metrics()

    def counted() -> float | None:
        return metrics.registry.get_sample_value("gateway_containers_open", {"engine": "linux"})

    async with open_pool(database, ENGINES["linux"](), metrics=metrics) as pool:
        assert counted() == 0
        response = caller(pool, tenant)
        await response.run("x = 1")
        assert counted() == 1
        await response.run("import os; os._exit(0)")
        assert counted() == 0
        await pool._refill()
    assert counted() == 0


class LateFailure:
    """An engine that works until it is asked for a container ahead of time."""

    def __init__(self, engine: ContainerEngine) -> None:
        self._engine = engine
        self.refused = asyncio.Event()
        self.is_broken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def open(self, limits: ContainerLimits) -> Container:
        if self.is_broken:
            self.refused.set()
            raise ValueError("a defect")
        return await self._engine.open(limits)


@pytest.mark.slow
async def test_a_failure_to_start_containers_ahead_ends_no_gateway(database: Database) -> None:
    engine = LateFailure(ENGINES["monty"]())
    async with open_pool(
        database, cast("ContainerEngine", engine), ContainerPolicy(warm_max=1)
    ) as pool:
        engine.is_broken = True
        helper = asyncio.create_task(pool.run())
        await engine.refused.wait()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not helper.done()
        helper.cancel()
        await asyncio.wait((helper,))
