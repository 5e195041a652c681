"""WebSocket connections of tools: to an address that was checked, as those of `transport.py`."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from gateway.tools.egress.transport import ADDRESSES_MAX, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.tools.egress.network_policy import NetworkPolicy
    from gateway.tools.egress.transport import Resolver

WebSocket = ClientConnection
WEBSOCKET_ERRORS: Final = (WebSocketException, OSError, TimeoutError, EOFError)
"""What opening one raises, and what using it does, beside `EgressRefused`."""


@dataclass(frozen=True, slots=True)
class WebSocketLimits:
    """Bounds of one connection."""

    frame_bytes_max: int = 8 * 1024 * 1024
    open_timeout_s: float = 20.0
    ping_interval_s: float = 20.0
    ping_timeout_s: float = 20.0
    close_timeout_s: float = 2.0


async def open_websocket(
    url: str,
    headers: Mapping[str, str],
    policy: NetworkPolicy,
    limits: WebSocketLimits,
    *,
    resolver: Resolver = resolve,
) -> WebSocket:
    """A connection to `url`, which begins with `ws` or `wss`. No proxy, no redirect to others.

    Raises `EgressRefused` for an address that the policy forbids, and one of `WEBSOCKET_ERRORS`.
    """
    parts = urlsplit(url)
    host, is_secure = parts.hostname or "", parts.scheme == "wss"
    port = parts.port or (443 if is_secure else 80)
    async with asyncio.timeout(limits.open_timeout_s):
        addresses = policy.checked(host, await resolver(host, port), port)[:ADDRESSES_MAX]
        for place, address in enumerate(addresses):
            try:
                return await connect(
                    url,
                    additional_headers=dict(headers),
                    host=address,
                    port=port,
                    ssl=ssl.create_default_context() if is_secure else None,
                    proxy=None,
                    compression=None,
                    user_agent_header=None,
                    max_size=limits.frame_bytes_max,
                    open_timeout=None,
                    ping_interval=limits.ping_interval_s,
                    ping_timeout=limits.ping_timeout_s,
                    close_timeout=limits.close_timeout_s,
                )
            except OSError:
                if place == len(addresses) - 1:
                    raise
    raise OSError(f"{host} has no address")
