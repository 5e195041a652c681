"""The section of the console: pages for operators on the admin listener."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from gateway.settings.sections import HttpUrl, Section

LOOPBACK_NAME: Final = "localhost"


def is_loopback(host: str) -> bool:
    """Return True for a name or an address of this machine alone."""
    if host == LOOPBACK_NAME:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _private(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ValueError("sessions need https outside of this machine")
    if parts.path:
        raise ValueError("expected an origin, without a path")
    return url


PrivateUrl = Annotated[HttpUrl, AfterValidator(_private)]


class Console(Section):
    """Pages for operators, at /console of the admin listener."""

    enabled: bool = Field(
        default=False,
        description="Serve them; needs admin.port and the extra `console`. Set it where operators "
        "work with a browser.",
    )
    public_url: PrivateUrl | None = Field(
        None,
        description="Origin that browsers see; default: loopback alone. Set it behind a proxy, and "
        "where operators are elsewhere.",
    )
