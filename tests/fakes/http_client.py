"""HTTP clients of gateways on this machine."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, Final

from tests.fakes.documented import DocumentedClient

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx2

NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts nobody. A client reads all certificates of the system otherwise, which takes 20 ms."""


def http_client(
    base_url: str | httpx2.URL = "",
    *,
    headers: Mapping[str, str] | httpx2.Headers | None = None,
    timeout: float = 30,
    **more: Any,
) -> httpx2.AsyncClient:
    """A client that only speaks plain HTTP and checks answers; `timeout` is in seconds."""
    return DocumentedClient(
        base_url=base_url, headers=headers, timeout=timeout, verify=NO_TLS, **more
    )
