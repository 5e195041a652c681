"""Read a request body within its bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.errors import InvalidRequest, PayloadTooLarge

if TYPE_CHECKING:
    from starlette.types import Receive, Scope


class ClientDisconnected(Exception):
    """The client went away: there is nobody to answer."""


async def read_body(scope: Scope, receive: Receive, *, bytes_max: int, timeout_s: float) -> bytes:
    """The whole body, at most `bytes_max` bytes, all of it within `timeout_s`.

    Raises `PayloadTooLarge` without reading on, `InvalidRequest` for a compressed or a stalled
    body, `ClientDisconnected`.
    """
    for name, value in scope["headers"]:
        if name == b"content-encoding" and value.lower() not in {b"", b"identity"}:
            raise InvalidRequest("Compressed request bodies are not accepted; send plain JSON.")
        if name == b"content-length" and value.isdigit() and int(value) > bytes_max:
            raise _too_large(bytes_max)
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(receive, bytes_max)
    except TimeoutError:
        raise InvalidRequest(
            f"The request body did not arrive within {timeout_s:g} seconds. Please send it again."
        ) from None


async def _read(receive: Receive, bytes_max: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        body += message.get("body", b"")
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
        if not message.get("more_body", False):
            return bytes(body)


def _too_large(bytes_max: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The request body is larger than {bytes_max} bytes. Please send less input at once; "
        "earlier turns can be left out with `previous_response_id`."
    )
