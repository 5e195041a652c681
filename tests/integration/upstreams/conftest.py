from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.upstreams.http.client import Client, KeepAlivePolicy, build_client
from gateway.upstreams.http.connection import ConnectionLimits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with build_client(keep_alive=KeepAlivePolicy(), limits=ConnectionLimits()) as client:
        yield client
