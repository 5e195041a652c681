"""The fleets that tools are tested with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.api.tools.fleets import FLEETS, asker_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.postgres import PostgresServer
    from tests.integration.api.tools.asking import Asker


@pytest.fixture(scope="session", params=["grammars", "no grammars"])
async def fleet(
    request: pytest.FixtureRequest, postgres: PostgresServer, template: str
) -> AsyncIterator[Asker]:
    """A client of a gateway, of backends that hold a model to a grammar, or do not."""
    async with asker_of(postgres, template, FLEETS[request.param]) as asker:
        yield asker
