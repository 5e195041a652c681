"""What the embedded database of a start costs, and that it is whole."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gateway.audit import COMMAND_LINE
from gateway.cli.demo import TENANT, _keys, _silent
from gateway.cli.provision import API_KEY, bring_up_to_date, connected, load_pepper
from gateway.errors import StartupError
from gateway.settings import Settings
from gateway.store.migration.verification import missing
from gateway.wiring.admin import tenants
from gateway.wiring.databases import access
from tests.fakes.gateway import PEPPER

if TYPE_CHECKING:
    from pathlib import Path

IMPORTED = """
import asyncio, sys
from gateway.cli.provision import bring_up_to_date
from gateway.settings import Settings
settings = Settings(database={"url": sys.argv[1]}, auth={"key_pepper": sys.argv[2]})
asyncio.run(bring_up_to_date(settings))
print("alembic" in sys.modules)
"""


@pytest.mark.slow
def test_a_database_that_is_up_to_date_is_not_migrated_again(database_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, database_url, PEPPER],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"


@pytest.mark.slow
async def test_what_a_database_of_the_newest_revision_lacks_is_made_again(
    database_url: str,
) -> None:
    settings = Settings(database={"url": database_url}, auth={"key_pepper": PEPPER})
    async with connected(settings) as database:
        async with database.owner_transaction() as connection:
            await connection.script("REVOKE ALL ON responses FROM harmony_gateway_app")
        assert await missing(database)
        await bring_up_to_date(settings)
        assert await missing(database) == []


async def test_a_demo_whose_tenant_was_disabled_says_what_to_do(database_url: str) -> None:
    settings = Settings(
        database={"url": database_url}, auth={"key_pepper": PEPPER}, models=[{"id": "gpt-oss-20b"}]
    )
    assert API_KEY in await _keys(settings, _silent)
    async with connected(settings) as database:
        await tenants(settings, database, access(settings, database)).disable(COMMAND_LINE, TENANT)
    with pytest.raises(StartupError) as refused:
        await _keys(settings, _silent)
    assert "GATEWAY_DATA_DIR" in refused.value.remedy


def test_a_pepper_that_was_not_written_is_none(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, before[1]))  # as a disk that is full
    try:
        with pytest.raises(OSError, match="too large"):
            load_pepper(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert load_pepper(tmp_path) == load_pepper(tmp_path) != ""
    (tmp_path / "pepper").write_text("")
    with pytest.raises(StartupError, match="is empty"):
        load_pepper(tmp_path)
