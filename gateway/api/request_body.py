"""The body of a request: read as it arrives, decoded and parsed, all of it bounded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gateway.api import content_encoding
from gateway.api.client_connection import ClientDisconnected
from gateway.errors import InvalidRequest, PayloadTooLarge

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

TYPICAL_RATIO: Final = 10
"""About how many times its size a compressed body has once it is decoded."""


@dataclass(slots=True)
class BodyBounds:
    """A body has at most `bytes_max` bytes, which must arrive within `timeout_s`, and as many once
    it is decoded. A reload of the configuration changes both.
    """

    bytes_max: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class BodyReader:
    """Reads and parses request bodies, for every endpoint that takes one.

    `own_bytes_max` is instead of that of the `bounds`. `input_limits` and `strict` are what every
    parser is given, `served` tells which families of tools requests of a tenant may offer.
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
        """Read the whole body of a request; a compressed one is decoded in a thread.

        Raises `PayloadTooLarge` without reading on, `UnsupportedEncoding`, `InvalidRequest` for a
        body that stalls or cannot be decoded, `ClientDisconnected`, and `RateLimited` as `parse`
        does.
        """
        coding = content_encoding.coding_of(scope["headers"])
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value) > self.bytes_max:
                raise self.too_large("request body")
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(self.bounds.timeout_s):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnected
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self.bytes_max:
                        raise self.too_large("request body")
        except TimeoutError:
            raise InvalidRequest(
                f"The request body did not arrive within {self.bounds.timeout_s:g} seconds. Please "
                "send it again."
            ) from None
        content = bytes(body)
        if coding is None:
            content_encoding.check_plain(content)
            return content
        size_bytes = max(TYPICAL_RATIO * len(content), self.executor.inline_bytes_max + 1)
        decode = partial(content_encoding.decoded, coding, content, self.bytes_max)
        return await self.executor.run(decode, size_bytes=size_bytes)

    async def read_fields(
        self, scope: Scope, receive: Receive, parse: Callable[..., AnyBody]
    ) -> tuple[AnyBody, int]:
        """Read and parse a body, note what it has without effect, and return its length, too.

        Raises as `read` and `parse` do.
        """
        body = await self.read(scope, receive)
        fields = await self.parse(body, parse)
        scope["record"].note_ignored(fields.ignored)
        return fields, len(body)

    def parse(self, body: bytes, parse: Callable[..., T]) -> Coroutine[Any, Any, T]:
        """Return `parse(body, limits=…, strict=…)`; a long body is parsed in a thread.

        Raises what `parse` raises, and `RateLimited` if too much work waits.
        """
        parsing = partial(parse, body, limits=self.input_limits, strict=self.strict)
        return self.executor.run(parsing, size_bytes=len(body))

    def parse_request(
        self, body: bytes, parse: Callable[..., T], policy: TenantPolicy
    ) -> Coroutine[Any, Any, T]:
        # For requests that may offer tools: `parse` gets the ones that this policy allows.
        parsing = partial(
            parse,
            body,
            limits=self.input_limits,
            strict=self.strict,
            served=self.served(policy),
        )
        return self.executor.run(parsing, size_bytes=len(body))

    def too_large(self, what: str) -> PayloadTooLarge:
        # `what`: a request body or a frame.
        return PayloadTooLarge(
            f"The {what} is larger than {self.bytes_max} bytes. Please send less input at once; "
            "earlier turns can be left out with `previous_response_id`."
        )
