"""Reads have a limit of their own: of each key, and of nothing that could be stopped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from gateway.api.access.authentication import Authentication
from gateway.errors import RateLimited
from gateway.tenancy import Principal, TenantId


async def nothing(*_: object) -> Any: ...


def asked(method: str, key: str = "a") -> dict[str, Any]:
    headers = [(b"authorization", f"Bearer {key}".encode())]
    return {"type": "http", "path": "/v1/responses/resp_1", "method": method, "headers": headers}


def authentication(reads_per_minute: int) -> Authentication:
    keys = {
        key: Principal(TenantId(UUID(int=1)), "acme", UUID(int=number))
        for number, key in enumerate("ab")
    }
    access: Any = SimpleNamespace(cached=lambda key, _: keys[key], authenticate=nothing)
    return Authentication(nothing, access, [], requests_max=100, reads_per_minute=reads_per_minute)


async def test_a_key_reads_as_often_as_it_may_and_stops_what_it_likes() -> None:
    app = authentication(2)
    for method in ("GET", "HEAD"):
        await app(asked(method), nothing, nothing)
    with pytest.raises(RateLimited) as refused:
        await app(asked("GET"), nothing, nothing)
    assert refused.value.retry_after_s is not None
    assert 0 < refused.value.retry_after_s <= 30
    for method in ("POST", "DELETE"):
        await app(asked(method), nothing, nothing)
    await app(asked("GET", "b"), nothing, nothing)


async def test_without_a_limit_it_reads_as_often_as_it_likes() -> None:
    app = authentication(0)
    for _ in range(100):
        await app(asked("GET"), nothing, nothing)
