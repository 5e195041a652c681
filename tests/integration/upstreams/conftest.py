from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.upstreams.client import Client, build_client
from gateway.upstreams.http.connection import ConnectionLimits
from gateway.upstreams.http.transport import KeepAlivePolicy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with build_client(keep_alive=KeepAlivePolicy(), limits=ConnectionLimits()) as client:
        yield client
