"""Read a request body within its bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.api.writing import begin
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
    body = bytearray()
    # A short body came with its head: then there is nothing to wait for, and to be timed.
    rest = begin(_read(receive, body, bytes_max))
    try:
        if rest is not None:
            async with asyncio.timeout(timeout_s):
                await rest
    except TimeoutError:
        raise InvalidRequest(
            f"The request body did not arrive within {timeout_s:g} seconds. Please send it again."
        ) from None
    return bytes(body)


async def _read(receive: Receive, body: bytearray, bytes_max: int) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        body += message.get("body", b"")
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
        if not message.get("more_body", False):
            return


def _too_large(bytes_max: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The request body is larger than {bytes_max} bytes. Please send less input at once; "
        "earlier turns can be left out with `previous_response_id`."
    )
