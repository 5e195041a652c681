"""Forms of several clients at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from starlette.requests import Request

from gateway.api.multipart import FormReader
from gateway.api.request_context import RequestRecord
from gateway.errors import RateLimited
from gateway.held_bytes import HeldBytes

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from starlette.types import Message

    from gateway.api.multipart import Form

HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
END = b"\r\n--b--\r\n"


def form(reader: FormReader, size: int) -> AbstractAsyncContextManager[Form]:
    """The reading of a form of so many bytes."""

    async def receive() -> Message:
        return {"type": "http.request", "body": HEAD + bytes(size - len(HEAD + END)) + END}

    headers = [(b"content-type", b"multipart/form-data; boundary=b")]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "headers": headers}
    scope["record"] = RequestRecord(scope)
    return reader.read(Request(scope, receive), ())


async def test_forms_that_are_held_at_once_have_bounds() -> None:
    reader = FormReader(10_000, held=HeldBytes(1_000, "Too many."))
    async with form(reader, 500):
        with pytest.raises(RateLimited):
            async with form(reader, 400):
                pass
        async with form(reader, 300) as taken:
            assert taken.upload.name == "a"
    # Alone it may be larger than all that is held at once.
    async with form(reader, 5_000) as taken:
        assert len(taken.upload.content.read()) == 5_000 - len(HEAD + END)
