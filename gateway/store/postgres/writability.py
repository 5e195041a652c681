"""Does the database take writes? Whatever fails may say that it does not, and why.

A server whose disk is full, or that was made a standby, goes on answering.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.errors import StoreError

_CANNOT_WRITE: Final = {
    "53100": "its disk is full",
    "58030": "its disk fails",
    "25006": "it is read-only, as a standby is",
}


class Writability:
    """What the transactions of one pool have found out about it."""

    __slots__ = ("reason",)

    def __init__(self) -> None:
        self.reason = ""
        """Why writes fail; empty while none is known to."""

    def learn(self, error: StoreError) -> None:
        """Something failed."""
        reason = _CANNOT_WRITE.get(error.state)
        if reason is not None:
            self.reason = f"the database cannot write: {reason} ({error.state})"
