"""Request bodies: bounded in size and time, and parsed where that holds up nobody else."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.errors import InvalidRequest, PayloadTooLarge

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from starlette.types import Receive, Scope

    from gateway.protocol.json_body import InputLimits
    from gateway.services.executor import ThreadExecutor

T = TypeVar("T")


class ClientDisconnected(Exception):
    """The client went away: there is nobody to answer."""


@dataclass(frozen=True, slots=True)
class BodyReader:
    """What all endpoints that take a body share.

    A body has at most `bytes_max` bytes, which come within `timeout_s`. `strict`: as for any
    request (`protocol.responses.requests`).
    """

    threads: ThreadExecutor
    bytes_max: int
    timeout_s: float
    input_limits: InputLimits
    strict: bool

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """All of the body of a request.

        Raises `PayloadTooLarge` without reading on, `InvalidRequest` for a compressed or a stalled
        body, `ClientDisconnected`.
        """
        for name, value in scope["headers"]:
            if name == b"content-encoding" and value.lower() not in {b"", b"identity"}:
                raise InvalidRequest("Compressed request bodies are not accepted; send plain JSON.")
            if name == b"content-length" and value.isdigit() and int(value) > self.bytes_max:
                raise self._too_large()
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(self.timeout_s):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnected
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self.bytes_max:
                        raise self._too_large()
        except TimeoutError:
            raise InvalidRequest(
                f"The request body did not arrive within {self.timeout_s:g} seconds. Please send "
                "it again."
            ) from None
        return bytes(body)

    def parse(self, body: bytes, parse: Callable[[bytes], T]) -> Coroutine[Any, Any, T]:
        """What `parse` makes of a body. Raises what it raises."""
        return self.threads.run(partial(parse, body), size_bytes=len(body))

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"The request body is larger than {self.bytes_max} bytes. Please send less input at "
            "once; earlier turns can be left out with `previous_response_id`."
        )
