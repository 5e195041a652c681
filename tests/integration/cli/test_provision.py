"""What the embedded database of a start costs, and that it is whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gateway.cli.provision import bring_up_to_date, connected
from gateway.settings import Settings
from gateway.store.migration.verification import missing
from tests.fakes.gateway import PEPPER

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
