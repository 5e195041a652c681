"""Domains that the tools of a tenant may reach: some, all but some, or all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def is_within(host: str, domains: Sequence[str]) -> bool:
    """Return True if a host is or is below one of the domains, or if there are no domains."""
    host = host.lower().rstrip(".")
    return not domains or any(host == one or host.endswith(f".{one}") for one in domains)


@dataclass(frozen=True, slots=True)
class DomainRules:
    """Rules of domains: `allowed` are the only ones, if there are any; `denied` are refused in any
    case. Both are in lower case, and hold for their subdomains, too.
    """

    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()

    @classmethod
    def of(cls, allowed: str, denied: str) -> DomainRules:
        # Policies store the lists separated by spaces.
        return cls(tuple(allowed.split()), tuple(denied.split()))

    def permits(self, host: str) -> bool:
        is_denied = bool(self.denied) and is_within(host, self.denied)
        return not is_denied and is_within(host, self.allowed)


EVERY_DOMAIN = DomainRules()
