"""Stored bytes of tenants and projects, as one process counts them.

A job measures the tables now and then (`replication.storage_meter`). A process adds what it has
stored since, and reports that to the others. So a request needs no query, and nothing is ever
counted down: deleted data is missing in the next measurement.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from gateway.limits.refusal import ReachedLimit, out_of_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gateway.errors import RateLimited
    from gateway.limits.rules import Key, Limit, Terms

WHOLE_TENANT: Final = UUID(int=0)
"""No project: all that a tenant has. The default project has the tenant's own id."""
RESPONSE_BYTES: Final = 2_048
"""Estimate for a response besides its request and its tokens: 2.1 KB were measured."""
TOKEN_BYTES: Final = 16
"""Estimate for a generated token until it is measured: in the item as text and as an id, in the
log, and in the body of the response."""
STEP_S: Final = 1.0
"""Seconds whose additions are one step."""
STEPS_MAX: Final = 4_096
FORGOTTEN_S: Final = 120.0
"""Seconds without a request after which an account is read no more."""
DROPPED_S: Final = 86_400.0
"""Seconds after which additions are not reported any more: no measurement is to be expected."""


class Measurement(NamedTuple):
    size_bytes: int
    age_s: float


class StorageAccount:
    __slots__ = ("_added", "is_loaded", "measured", "used_at")

    def __init__(self, now: float) -> None:
        self.is_loaded = False
        """Read from the database; there may be no measurement yet."""
        self.measured = 0
        self.used_at = now
        self._added: deque[list[float]] = deque()

    @property
    def added(self) -> int:
        return max(0, int(sum(size for _, size in self._added)))

    def add(self, size: int, now: float) -> None:
        """Add stored bytes; a negative `size` was not stored after all."""
        if self._added and now - self._added[-1][0] < STEP_S:
            self._added[-1][1] += size
            return
        self._added.append([now, size])
        if len(self._added) > STEPS_MAX:
            _, oldest = self._added.popleft()
            self._added[0][1] += oldest

    def update(self, measurement: Measurement | None, now: float) -> None:
        """Take over the last measurement, which includes all that was stored before it began."""
        self.is_loaded = True
        if measurement is None:
            return
        self.measured = measurement.size_bytes
        while self._added and self._added[0][0] + STEP_S <= now - measurement.age_s:
            self._added.popleft()


class StoredCharge:
    __slots__ = ("_accounts", "_clock", "_size")

    def __init__(
        self, accounts: tuple[StorageAccount, ...], size: int, clock: Callable[[], float]
    ) -> None:
        self._accounts = accounts
        self._clock = clock
        self._size = size
        self._add(size)

    def generated(self, tokens: int) -> None:
        self._add(TOKEN_BYTES * tokens)

    def give_back(self) -> None:
        # Undo the constructor's count: the request stored nothing.
        self._add(-self._size)

    def _add(self, size: int) -> None:
        now = self._clock()
        for account in self._accounts:
            account.add(size, now)


class Storage:
    def __init__(
        self, clock: Callable[[], float], refuse: Callable[[Limit, RateLimited, UUID], None]
    ) -> None:
        # `refuse` raises the refusal, or only counts it where the limit is observed.
        self._clock = clock
        self._refuse = refuse
        self._accounts: dict[Key, StorageAccount] = {}

    def is_loaded(self, tenant_id: UUID, limits: Iterable[Limit]) -> bool:
        """Return True if these accounts were all read; start watching the others."""
        now, is_loaded = self._clock(), True
        for limit in limits:
            account = self._account((tenant_id, account_of(limit)), now)
            is_loaded = is_loaded and account.is_loaded
        return is_loaded

    def hold(
        self, tenant_id: UUID, terms: Terms, size: int, elsewhere: Mapping[Key, int]
    ) -> StoredCharge:
        now, accounts = self._clock(), {}
        for limit in terms.stored:
            key = (tenant_id, account_of(limit))
            accounts[key] = account = self._account(key, now)
            used = account.measured + account.added + elsewhere.get(key, 0)
            if used + size > limit.value:
                where = ReachedLimit(limit, terms, "")
                self._refuse(limit, out_of_storage(where, used=used, requested=size), tenant_id)
        return StoredCharge(tuple(accounts.values()), size, self._clock)

    def used(self, key: Key) -> int:
        account = self._accounts.get(key)
        return 0 if account is None else account.added

    def watched(self) -> Iterator[tuple[Key, int]]:
        """Yield the accounts to be measured, and the bytes added to each here."""
        now = self._clock()
        for key, account in list(self._accounts.items()):
            idle_s = now - account.used_at
            if (idle_s > FORGOTTEN_S and not account.added) or idle_s > DROPPED_S:
                del self._accounts[key]
            else:
                yield key, account.added

    def update(self, keys: Iterable[Key], measured: Mapping[Key, Measurement]) -> None:
        now = self._clock()
        for key in keys:
            if (account := self._accounts.get(key)) is not None:
                account.update(measured.get(key), now)

    def _account(self, key: Key, now: float) -> StorageAccount:
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = StorageAccount(now)
        account.used_at = now
        return account


def account_of(limit: Limit) -> str:
    holder = limit.scope_id if limit.scope == "project" else WHOLE_TENANT
    return f"stored/{holder}"


def project_of(account: str) -> UUID:
    return UUID(account.removeprefix("stored/"))
