from __future__ import annotations

import pytest

from tests.fakes.gateway import gateway_settings, new_key


@pytest.fixture
async def own_key(database_url: str) -> str:
    """An API key in the database of this test alone."""
    return await new_key(gateway_settings(database_url, []), "acme")
