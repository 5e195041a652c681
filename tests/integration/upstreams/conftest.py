from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.upstreams.http.client import Client, build_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with build_client() as client:
        yield client
