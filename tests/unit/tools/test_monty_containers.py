"""Real containers of the interpreter that needs nothing of the machine."""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from gateway.tools.python.container_engine import ContainerLimits, EngineBroken, FileRefused
from gateway.tools.python.monty import FILES_MAX, OUTPUT_BYTES_MAX, MontyEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from gateway.tools.python.monty import MontyContainer


@asynccontextmanager
async def container(limits: ContainerLimits | None = None) -> AsyncIterator[MontyContainer]:
    engine = MontyEngine(containers_max=2)
    started = await engine.open(limits or ContainerLimits())
    try:
        yield started
    finally:
        await started.close()
        await started.close()
        await engine.close()


async def test_names_and_files_survive() -> None:
    async with container() as python:
        first = await python.run("x = 41\nprint('said')\nx + 1", timeout_s=30, key="k")
        assert (first.status, first.output) == ("ok", "said\n42\n")
        assert await python.result_of("k", timeout_s=0.1) == first
        assert await python.result_of("other", timeout_s=0.1) is None
        failed = await python.run("x\n1 / 0", timeout_s=30)
        assert failed.status == "error"
        assert "ZeroDivisionError" in failed.output
        written = await python.run("open('/mnt/data/a', 'w').write('abc')\nNone", timeout_s=30)
        assert (written.files, written.output) == (("/mnt/data/a",), "")
        assert await python.get("/mnt/data/a", bytes_max=3) == b"abc"
        await python.put("/mnt/data/in/b", b"bytes")
        assert (await python.run("open('in/b').read()", timeout_s=30)).output == "'bytes'\n"
        await python.remove("/mnt/data/in/b")
        await python.remove("/mnt/data/in/b")
        assert (await python.run("1", timeout_s=30)).files == ()


async def test_files_beyond_those_that_are_looked_at_are_neither_gone_nor_free() -> None:
    async with container(ContainerLimits(data_bytes=1000)) as python:
        for path in (*map(str, range(FILES_MAX)), "in/data.csv"):
            await python.put(f"/mnt/data/{path}", b"1" * 900 if "in" in path else b"")
        ran = await python.run("open('f', 'w').write('x' * 200)", timeout_s=30)
        assert (ran.status, ran.gone) == ("error", ())
        assert (await python.run("open('f', 'w').write('x')", timeout_s=30)).status == "ok"


async def test_bounds() -> None:
    async with container(ContainerLimits(data_bytes=1000)) as python:
        long = await python.run("print('é' * (1 << 20))", timeout_s=30)
        assert len(long.output.encode()) <= OUTPUT_BYTES_MAX
        assert long.dropped == (1 << 21) + 1 - OUTPUT_BYTES_MAX
        full = await python.run("open('f', 'w').write('x' * 2000)", timeout_s=30)
        assert full.status == "error"
        await python.put("/mnt/data/a", bytes(10))
        for path in ("/mnt/data/a", "/mnt/data/missing"):
            with pytest.raises(FileRefused):
                await python.get(path, bytes_max=9)
        with pytest.raises(FileRefused):
            await python.put("/mnt/data/a/below", b"")


@pytest.mark.slow
async def test_code_that_takes_too_long_ends_its_container() -> None:
    async with container() as python:
        late = await python.run("print('before')\nwhile True: pass", timeout_s=0.3)
        assert late.status == "killed"
        assert not python.is_alive
        for gone in (
            python.run("1", timeout_s=1),
            python.put("/mnt/data/a", b""),
            python.get("/mnt/data/a", bytes_max=1),
            python.remove("/mnt/data/a"),
        ):
            with pytest.raises(EngineBroken, match="gone"):
                await gone


async def test_a_run_that_nobody_waits_for_ends_its_container() -> None:
    async with container() as python:
        loop = asyncio.get_running_loop()
        run = loop.create_task(python.run("while True: pass", timeout_s=60))
        await asyncio.wait({run}, timeout=0.2)
        assert await python.result_of("k", timeout_s=0.01) is None
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert not python.is_alive


async def test_there_are_only_so_many() -> None:
    engine = MontyEngine(containers_max=1)
    one = await engine.open(ContainerLimits())
    with pytest.raises(EngineBroken, match="did not start"):
        await engine.open(ContainerLimits(start_timeout_s=0.2))
    assert await engine.attach(b"x") is None
    await one.leave()
    await engine.close()


async def test_who_is_cancelled_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine = MontyEngine(containers_max=1)
    started = await engine.open(ContainerLimits())
    for work in (engine.open(ContainerLimits()), started.close()):
        task = asyncio.create_task(work)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    assert os.listdir(tmp_path) == []
    await engine.close()
