"""What a command stands on: the embedded database, also where another process ends it meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.cli.provision import connected, provisioned
from gateway.devdb.embedded import EmbeddedPostgres
from gateway.settings import Settings
from gateway.store.migration import migrate
from tests.fakes.postgres import reachable_folder

if TYPE_CHECKING:
    import pytest


async def test_a_command_goes_on_where_the_owner_of_the_database_ends_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    upgrade = migrate.upgrade
    with reachable_folder() as folder:
        owner = EmbeddedPostgres(folder / "postgres")
        owner.start()
        first_url = owner.url

        async def owner_ends_first(url: str) -> object:
            owner.stop()
            return await upgrade(url)

        monkeypatch.setattr(migrate, "upgrade", owner_ends_first)
        async with provisioned(Settings(data_dir=folder)) as settings:
            assert settings.database_url != first_url
            async with connected(settings) as database:
                await database.ping()
