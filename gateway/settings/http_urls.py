"""URLs of servers, whose paths are added to them, and URLs that stay whole."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

if TYPE_CHECKING:
    from urllib.parse import SplitResult

_IPV4 = re.compile(r"\d+(\.\d+){3}")


def http_url(url: str) -> str:
    return whole_url(url).rstrip("/").removesuffix("/v1")


def whole_url(url: str) -> str:
    """Return the URL as it is: others compare it, or it is of one resource."""
    parts = urlsplit(any_url(url))
    if parts.query or parts.fragment or parts.username:
        raise ValueError("such a URL has no query, fragment or user; secrets have settings")
    return url


def any_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or not url.isprintable():
        raise ValueError("expected a URL such as http://gpu-1:8000")
    if not _is_host(parts.hostname, is_address="[" in parts.netloc):
        raise ValueError(f"{parts.hostname!r} is no address, or no name of a host in ASCII")
    if not _has_port(parts):
        raise ValueError(f"there is no port {parts.netloc.rpartition(':')[2]}")
    return url


def _is_host(host: str, *, is_address: bool) -> bool:
    if not (is_address or _IPV4.fullmatch(host)):
        return host.isascii()
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _has_port(parts: SplitResult) -> bool:
    # True also without a port.
    try:
        return parts.port != 0
    except ValueError:
        return False


def listener_url(host: str, port: int) -> str:
    """Return where a listener is; one at all addresses of the machine is shown at loopback."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared only
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


HttpUrl = Annotated[str, AfterValidator(http_url)]
WholeUrl = Annotated[str, AfterValidator(whole_url)]
AnyUrl = Annotated[str, AfterValidator(lambda url: url and any_url(url))]
"""Empty: none."""
