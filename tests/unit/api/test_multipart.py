"""Forms of several clients at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from starlette.requests import Request

from gateway.api.multipart import FormReader, HeldForms
from gateway.api.request_context import RequestRecord
from gateway.errors import RateLimited
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from starlette.types import Message

    from gateway.api.multipart import Form

ACME, OTHER, THIRD = (TenantId(UUID(int=number)) for number in range(3))
HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'


@dataclass(frozen=True)
class Caller:
    tenant_id: TenantId


def form(reader: FormReader, tenant_id: TenantId, size: int) -> AbstractAsyncContextManager[Form]:
    """The reading of a form of `size` bytes, all told."""
    body = HEAD + bytes(size - len(HEAD) - 9) + b"\r\n--b--\r\n"
    assert len(body) == size

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    headers = [(b"content-type", b"multipart/form-data; boundary=b")]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "headers": headers}
    scope |= {"principal": Caller(tenant_id), "record": RequestRecord(scope)}
    return reader.read(Request(scope, receive), ())


async def test_forms_that_are_held_at_once_have_bounds() -> None:
    reader = FormReader(10_000, held=HeldForms(2_000))
    async with form(reader, ACME, 600):
        with pytest.raises(RateLimited):
            async with form(reader, ACME, 600):
                pass
        async with form(reader, OTHER, 1_000):
            with pytest.raises(RateLimited):
                async with form(reader, THIRD, 600):
                    pass
        async with form(reader, THIRD, 1_000) as taken:
            assert taken.upload.name == "a"
    # Alone it may be larger than all that is held at once.
    async with form(reader, ACME, 5_000) as taken:
        assert len(taken.upload.content.read()) == 5_000 - len(HEAD) - 9
