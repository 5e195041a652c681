"""Read a request body within its bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gateway.api.writing import begin
from gateway.errors import InvalidRequest, PayloadTooLarge

if TYPE_CHECKING:
    from starlette.types import Receive, Scope

WHOLE_BODY: Final = "gateway.whole_body"
"""The ASGI extension of a server that has a `TakeBody`: `{"take": ...}`."""

TakeBody = Callable[[], bytes | None]
"""Takes all of a request's body, once. None, and nothing was taken: it has not come, or its client
waits to be asked for it, and `receive` is to be called.
"""


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
    whole = _whole(scope)
    if whole is not None:
        if len(whole) > bytes_max:
            raise _too_large(bytes_max)
        return whole
    body = bytearray()
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


def _whole(scope: Scope) -> bytes | None:
    """A short body, which came with its head: there is nothing to wait for, and to be timed."""
    extension = (scope.get("extensions") or {}).get(WHOLE_BODY)
    return None if extension is None else extension["take"]()


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
