"""Request bodies: read, decoded and parsed within bounds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gateway.api import content_encoding
from gateway.api.client_connection import ClientDisconnected
from gateway.errors import InvalidRequest, PayloadTooLarge
from gateway.held_bytes import HeldBytes
from gateway.services.executor import WORKS_FOR

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

    from starlette.types import Receive, Scope

    from gateway.protocol.base import BodyModel
    from gateway.protocol.hosted_tools import HostedFamily
    from gateway.protocol.json_body import InputLimits
    from gateway.services.executor import ThreadExecutor
    from gateway.tenancy.policy import TenantPolicy

T = TypeVar("T")
AnyBody = TypeVar("AnyBody", bound="BodyModel")

ARRIVING_BYTES_MAX: Final = 512 << 20
"""Bytes of a process's incomplete bodies: senders may be slow, on many connections."""
_NO_ROOM: Final = (
    "More large requests are sent at once than this server takes. Please retry in a moment."
)
TYPICAL_RATIO: Final = 10
"""Typical ratio of decoded to compressed size."""


@dataclass(slots=True)
class BodyBounds:
    """Bounds of a process's bodies, received and decoded. A reload of the configuration changes
    `bytes_max` and `timeout_s`.
    """

    bytes_max: int
    timeout_s: float
    arriving: HeldBytes = field(default_factory=partial(HeldBytes, ARRIVING_BYTES_MAX, _NO_ROOM))


@dataclass(frozen=True, slots=True)
class BodyReader:
    """Reader and parser of bodies. `own_bytes_max` replaces that of `bounds`; `served` returns the
    families of tools that a tenant's requests may offer.
    """

    executor: ThreadExecutor
    bounds: BodyBounds
    input_limits: InputLimits
    strict: bool
    served: Callable[[TenantPolicy], Collection[HostedFamily]]
    own_bytes_max: int | None = None

    @property
    def bytes_max(self) -> int:
        return self.own_bytes_max or self.bounds.bytes_max

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """Read a body; a compressed one is decoded in a thread.

        Raises `PayloadTooLarge` without reading on, `UnsupportedEncoding`, `InvalidRequest` if the
        body stalls or cannot be decoded, `ClientDisconnected`, and `RateLimited` if too many arrive
        at once or too much work waits for threads.
        """
        coding = None
        for name, value in scope["headers"]:
            if name == b"content-encoding":
                coding = content_encoding.coding_of(scope["headers"])
            elif name == b"content-length" and int(value) > self.bytes_max:
                raise self.too_large("request body")
        try:
            async with asyncio.timeout(self.bounds.timeout_s):
                content = await self._whole(receive)
        except TimeoutError:
            raise InvalidRequest(
                f"The request body did not arrive within {self.bounds.timeout_s:g} seconds. Please "
                "send it again."
            ) from None
        if coding is None:
            if not content.startswith(b"{"):
                content_encoding.check_plain(content)
            return content
        size_bytes = max(TYPICAL_RATIO * len(content), self.executor.inline_bytes_max + 1)
        decode = partial(content_encoding.decoded, coding, content, self.bytes_max)
        return await self.executor.run(decode, size_bytes=size_bytes)

    async def _whole(self, receive: Receive) -> bytes:
        content, more = await self._part(receive, 0)
        if not more:
            return content
        with self.bounds.arriving.one(WORKS_FOR.get()) as hold:
            body = bytearray(content)
            hold(len(body))
            while more:
                content, more = await self._part(receive, len(body))
                hold(len(content))
                body += content
            return bytes(body)

    async def _part(self, receive: Receive, size_bytes: int) -> tuple[bytes, bool]:
        # Return one part after `size_bytes` bytes, and True if there are more.
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part: bytes = message.get("body", b"")
        if size_bytes + len(part) > self.bytes_max:
            raise self.too_large("request body")
        return part, message.get("more_body", False)

    async def read_fields(
        self, scope: Scope, receive: Receive, parse: Callable[..., AnyBody]
    ) -> tuple[AnyBody, int]:
        """Return a body's fields and its length, and note those without effect."""
        body = await self.read(scope, receive)
        fields = await self.parse(body, parse)
        scope["record"].note_ignored(fields.ignored)
        return fields, len(body)

    def parse(
        self, body: bytes, parse: Callable[..., T], **terms: object
    ) -> Coroutine[Any, Any, T]:
        """Return `parse(body, limits=…, strict=…)`, run in a thread if the body is long; `terms`
        are passed on.
        """
        parsing = partial(parse, body, limits=self.input_limits, strict=self.strict, **terms)
        return self.executor.run(parsing, size_bytes=len(body))

    def too_large(self, what: str) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"The {what} is larger than {self.bytes_max} bytes. Please send less input at once; "
            "earlier turns can be left out with `previous_response_id`."
        )
