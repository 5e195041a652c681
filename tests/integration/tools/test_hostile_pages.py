"""Pages that are made to hold up who reads them: each call has an end, and nothing works on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.fakes.hostile_pages import PAGES, SMALL_BYTES
from tests.fakes.processes import Child, reserved_port, stopped, until_healthy
from tests.fakes.work import is_waiting, readers, threads_at_work
from tests.integration.tools.test_browsing import browsing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

UNTIL_TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def hostile_site() -> Iterator[str]:
    with reserved_port() as port:
        site = Child([str(port)], {}, module="tests.fakes.hostile_pages")
        with stopped(site):
            until_healthy(port, site)
            yield f"http://127.0.0.1:{port}"


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(UNTIL_TIMEOUT_S):
        # To look at all processes takes so long that the calls would hardly go on meanwhile.
        while not await asyncio.to_thread(is_so):
            pass


def nothing_works() -> bool:
    return not threads_at_work() and all(map(is_waiting, readers()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("nested", "nested deeper than 512 levels"),
        ("small", "nested deeper than 512 levels"),
        ("attributes", "has more than 512 attributes"),
    ],
)
async def test_hostile_page_is_refused_and_nothing_works_on(
    hostile_site: str, database: Database, tenant: TenantId, name: str, fault: str
) -> None:
    assert len(PAGES["small"]) < SMALL_BYTES
    async with browsing(hostile_site, database, tenant) as browser:
        result = await browser.call("open", id=f"{hostile_site}/{name}")
        assert fault in result.output
        await until(nothing_works)
    assert readers() == []


@pytest.mark.slow
async def test_process_that_reads_too_long_is_killed(
    hostile_site: str, database: Database, tenant: TenantId
) -> None:
    async with browsing(hostile_site, database, tenant) as browser:
        result = await browser.call("open", id=f"{hostile_site}/unpaired")
        assert "the page took too long to read" in result.output
        assert readers() == []
        assert threads_at_work() == []


@pytest.mark.slow
async def test_cancelled_call_ends_the_process_that_reads(
    hostile_site: str, database: Database, tenant: TenantId
) -> None:
    async with browsing(hostile_site, database, tenant, documents_max=1) as browser:
        url = f"{hostile_site}/unpaired"
        calls = [asyncio.ensure_future(browser.call("open", id=url)) for _ in range(3)]
        await until(lambda: any(map(is_reading, readers())))
        assert len(readers()) == 1, "no more documents are read than may be"
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        assert readers() == []


def is_reading(process: psutil.Process) -> bool:
    return bool(process.status() == psutil.STATUS_RUNNING)
