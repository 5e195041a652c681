"""Bounds of the bytes of fetched images that a process holds, for all tenants and for each.

A request of a hundred bytes can name images of a hundred MiB. They are in memory from the first
byte that comes until the run ends whose prompt they are in, which may be minutes.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.tenancy import TenantId


class NoRoom(Exception):
    """Refusal to hold more bytes now; the message is for the caller."""


class ImageHold:
    """Count of the bytes of one request's images. They count until nothing references this object:
    it goes where the images go, from the input of a prompt to the run, and ends with it however
    that ends.
    """

    __slots__ = ("_budget", "_bytes", "_tenant_id")

    def __init__(self, budget: ImageBudget, tenant_id: TenantId) -> None:
        self._budget = budget
        self._tenant_id = tenant_id
        self._bytes = 0

    def add(self, size: int) -> None:
        """Count received bytes. Raises `NoRoom`."""
        self._budget.take(self._tenant_id, size)
        self._bytes += size

    def give_back(self, size: int) -> None:
        self._bytes -= size
        self._budget.let_go(self._tenant_id, size)

    def __del__(self) -> None:
        self._budget.let_go(self._tenant_id, self._bytes)


class ImageBudget:
    """Bounds of image bytes: `bytes_max` for all tenants of a process, `tenant_bytes_max` for each.

    Bytes are taken on the event loop, and released in any thread: whichever drops a hold last.
    """

    def __init__(self, *, bytes_max: int, tenant_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._tenant_bytes_max = tenant_bytes_max
        self._held_bytes = 0
        self._of_tenants: Counter[TenantId] = Counter()
        self._let_go: deque[tuple[TenantId, int]] = deque()
        """Tenants and bytes that are yet to be subtracted: a thread, or the garbage collector in
        the middle of a sum, may only append."""

    @property
    def held_bytes(self) -> int:
        """Return the bytes of all images in memory."""
        while self._let_go:
            tenant_id, size = self._let_go.popleft()
            self._held_bytes -= size
            self._of_tenants[tenant_id] -= size
            if not self._of_tenants[tenant_id]:
                del self._of_tenants[tenant_id]
        return self._held_bytes

    def take(self, tenant_id: TenantId, size: int) -> None:
        """Count bytes of a tenant. Raises `NoRoom` without counting them."""
        if self.held_bytes + size > self._bytes_max:
            raise NoRoom(
                "The server holds as many bytes of images as it can. Try again in a moment, or "
                "send the image as a data URL."
            )
        if self._of_tenants[tenant_id] + size > self._tenant_bytes_max:
            raise NoRoom(
                f"Your requests hold more than {self._tenant_bytes_max} bytes of images together. "
                "Try again when one of them has ended."
            )
        self._held_bytes += size
        self._of_tenants[tenant_id] += size

    def let_go(self, tenant_id: TenantId, size: int) -> None:
        if size:
            self._let_go.append((tenant_id, size))
