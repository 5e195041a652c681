"""Cache of the unwrapped data keys of tenants.

A tenant's keys are fetched once, however many tasks wait for them, and again before they are
`fresh_s` old, so that a destroyed, renewed or withdrawn key takes effect in every process. While
the provider is away, cached keys are used until they are `stale_s` old, and requests without cached
keys fail at once for `retry_s` after a failed fetch.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

from gateway.concurrency import start_task
from gateway.encryption.cipher import PLAIN_KEY, ContentCipher, keys_of
from gateway.errors import ContentSealed, StoreConflict, StoreUnavailable
from gateway.sealing import DataKey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
    from datetime import datetime

    from gateway.tenancy import TenantId

KEY_BYTES: Final = 32
REFUSED_S: Final = 10.0
"""Pause before the keys of a tenant are fetched again after a refusal."""
RENEWED_S: Final = 1.0
"""Pause before a missing key is looked for again."""
CONCURRENT_FETCHES_MAX: Final = 16
SETTLED_MARGIN_S: Final = 60.0
"""Time for commits of content that was sealed while a key was still cached."""
PLAIN: Final = ContentCipher(UUID(int=0), {})
_DESTROYED: Final = "the keys of this tenant were destroyed"


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A data key. `wrapped` is empty once it was destroyed; a retired one opens, and seals no
    more.
    """

    number: int
    wrapped: bytes
    provider: str
    key_ref: str
    created_at: datetime | None = None
    retired_at: datetime | None = None
    destroyed_at: datetime | None = None

    @property
    def seals(self) -> bool:
        return self.retired_at is None and self.destroyed_at is None


class KeyProvider(Protocol):
    """Service that wraps data keys. Raises `StoreUnavailable` when it is unavailable for now,
    `ContentSealed` when it refuses for good.
    """

    @property
    def name(self) -> str:
        """Return the value of `WrappedKey.provider`."""

    async def wrap(self, tenant_id: TenantId, secret: bytes) -> tuple[bytes, str]:
        """Wrap a data key for this tenant alone; return it and the name of the wrapping key."""

    async def unwrap(self, tenant_id: TenantId, wrapped: bytes, key_ref: str) -> bytes:
        """Return the data key."""

    async def close(self) -> None:
        """Close connections and files."""


class KeyStore(Protocol):
    """Store of wrapped keys."""

    async def keys(self, tenant_id: TenantId) -> list[WrappedKey]:
        """Return all keys of a tenant, by number, destroyed ones included."""

    async def add(self, tenant_id: TenantId, key: WrappedKey) -> None:
        """Store a key; earlier ones are retired. Raises `StoreConflict`."""


@dataclass(frozen=True, slots=True)
class KeyringPolicy:
    """Policy of a keyring. `seals_all`: a tenant without a key gets one at its first use."""

    seals_all: bool = False
    fresh_s: float = 300.0
    stale_s: float = 900.0
    retry_s: float = 2.0
    tenants_max: int = 10_000

    @property
    def settled_s(self) -> float:
        # From this age of a key on no process seals with the one before it.
        return max(self.fresh_s, self.stale_s) + SETTLED_MARGIN_S


@dataclass(frozen=True, slots=True)
class _Held:
    """A cipher, or why there is none. No missing key is looked for before `renew_at`."""

    at: float
    cipher: ContentCipher | None = None
    refusal: str = ""
    renew_at: float = 0.0


class Keyring:
    """The ciphers of a process. `ready` before `of`: the one waits, the other does not."""

    def __init__(
        self,
        store: KeyStore | None = None,
        providers: Iterable[KeyProvider] = (),
        policy: KeyringPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # The first provider wraps new keys. Without a store nothing is sealed.
        self._clock = clock
        self._store = store
        self._providers: Mapping[str, KeyProvider] = {one.name: one for one in providers}
        self.policy = policy or KeyringPolicy()
        self._held: OrderedDict[TenantId, _Held] = OrderedDict()
        self._asking: dict[TenantId, asyncio.Task[None]] = {}
        self._at_once = asyncio.Semaphore(CONCURRENT_FETCHES_MAX)
        self._retry_at: OrderedDict[TenantId, float] = OrderedDict()
        self._down: dict[str, float] = {}
        self.is_on = store is not None and bool(self._providers)
        """Anything is sealed, or may have been."""

    async def ready(self, tenants: Iterable[TenantId]) -> None:
        """Load the keys of these tenants, or the reason why there are none, which `of` raises.

        After `StoreUnavailable` keys loaded before stay usable, so that writers can go on.
        """
        if not self.is_on:
            return
        waiting = [one for one in tenants if not self._is_at_hand(one)]
        if waiting:
            for failure in (await self._ask_each(waiting)).values():
                raise failure

    async def usable(self, tenants: Collection[TenantId]) -> frozenset[TenantId]:
        """Load keys; return the tenants for whom `ready` and `of` do not raise."""
        if not self.is_on:
            return frozenset(tenants)
        failures = await self._ask_each([one for one in tenants if not self._is_at_hand(one)])
        return frozenset(one for one in tenants if one not in failures and self.find(one))

    async def try_ready(self, tenants: Iterable[TenantId]) -> None:
        """Load keys; a tenant without keys does not hold up the others (`find`)."""
        if not self.is_on:
            return
        waiting = [one for one in tenants if not self._is_at_hand(one)]
        for tenant_id in waiting:
            if tenant_id in self._retry_at:
                self._refresh(tenant_id)
        await self._ask_each([one for one in waiting if one not in self._retry_at])

    async def renew(self, tenant_id: TenantId, lacks: Callable[[ContentCipher], bool]) -> None:
        """Load the keys of a tenant again where its cipher `lacks` one, made by another process.

        A key that is still missing is not looked for again within `RENEWED_S`.
        """
        for _ in range(2):
            held, now = self._held.get(tenant_id), self._clock()
            if held is None or held.cipher is None or not lacks(held.cipher):
                return
            if now < held.renew_at:
                return
            is_begun = self._is_asking(tenant_id)
            await self._ask(tenant_id)
            if not is_begun:
                break
            # A fetch that was under way may have begun before the key was made.
        held = self._held.get(tenant_id)
        if held is not None and held.cipher is not None and lacks(held.cipher):
            self._held[tenant_id] = replace(held, renew_at=self._clock() + RENEWED_S)

    def away(self) -> list[TenantId]:
        """Return the tenants of whom nothing can be opened now: whose keys were refused a moment
        ago, or are unavailable because their provider is. The latter are requested.
        """
        refused_at = self._clock() - REFUSED_S
        unavailable = [
            one
            for one, held in self._held.items()
            if held.refusal not in {"", _DESTROYED} and held.at > refused_at
        ]
        for tenant_id in list(self._retry_at):
            if not self._is_at_hand(tenant_id):
                unavailable.append(tenant_id)
                if len(self._asking) < CONCURRENT_FETCHES_MAX:
                    self._refresh(tenant_id)
        return unavailable

    def of(self, tenant_id: TenantId) -> ContentCipher:
        """Return the cipher of a tenant that is `ready`.

        Raises `ContentSealed` where its keys are gone, `StoreUnavailable` where they are not
        loaded.
        """
        if not self.is_on:
            return PLAIN
        held = self._held.get(tenant_id)
        if held is None:
            raise StoreUnavailable("the keys of a tenant are not at hand")
        if held.cipher is None:
            raise ContentSealed(held.refusal)
        return held.cipher

    def find(self, tenant_id: TenantId) -> ContentCipher | None:
        # None where `of` raises.
        try:
            return self.of(tenant_id)
        except (ContentSealed, StoreUnavailable):
            return None

    def forget(self, tenant_id: TenantId) -> None:
        # The keys are read again when they are next needed.
        self._held.pop(tenant_id, None)

    async def has_destroyed(self, tenant_id: TenantId, stored: bytes) -> bool:
        """Return True if a value never opens again: its key was destroyed, or all keys were.

        A key that the provider refuses may come back. Raises `StoreUnavailable`.
        """
        kept, destroyed = await self._numbers(tenant_id)
        return bool(destroyed & keys_of(stored)) or (bool(kept) and kept == destroyed)

    async def destroyed(self, tenant_id: TenantId) -> frozenset[int]:
        """Return the numbers of the destroyed keys. Raises `StoreUnavailable`."""
        return (await self._numbers(tenant_id))[1]

    async def _numbers(self, tenant_id: TenantId) -> tuple[frozenset[int], frozenset[int]]:
        # Of all keys, and of those that were destroyed.
        kept = await self._store.keys(tenant_id) if self._store is not None else []
        destroyed = (key.number for key in kept if key.destroyed_at is not None)
        return frozenset(key.number for key in kept), frozenset(destroyed)

    def _is_at_hand(self, tenant_id: TenantId) -> bool:
        # True: the keys are cached. They are renewed in the background before they are too old.
        held = self._held.get(tenant_id)
        if held is None:
            return False
        self._held.move_to_end(tenant_id)
        age_s = self._clock() - held.at
        fresh_s = REFUSED_S if held.cipher is None else self.policy.fresh_s
        if age_s <= fresh_s / 2:
            return True
        if age_s <= fresh_s or (tenant_id in self._retry_at and age_s <= self.policy.stale_s):
            self._refresh(tenant_id)
            return True
        return False

    def _refresh(self, tenant_id: TenantId) -> None:
        if not self._is_asking(tenant_id) and self._clock() >= self._retry_at.get(tenant_id, 0):
            self._begin(tenant_id)

    async def close(self) -> None:
        self._held.clear()
        self._retry_at.clear()
        for asking in list(self._asking.values()):
            asking.cancel()
        for provider in self._providers.values():
            await provider.close()

    def _is_asking(self, tenant_id: TenantId) -> bool:
        asking = self._asking.get(tenant_id)
        return asking is not None and not asking.done()

    async def _ask_each(self, tenants: Iterable[TenantId]) -> dict[TenantId, StoreUnavailable]:
        # The failures of tenants that are left without keys at hand.
        outcomes = await asyncio.gather(*map(self._ask, tenants), return_exceptions=True)
        failures = {}
        for tenant_id, outcome in zip(tenants, outcomes, strict=True):
            if isinstance(outcome, StoreUnavailable):
                held = self._held.get(tenant_id)
                if held is None or self._clock() - held.at > self.policy.stale_s:
                    failures[tenant_id] = outcome
            elif outcome is not None:
                raise outcome
        return failures

    async def _ask(self, tenant_id: TenantId) -> None:
        asking = self._asking.get(tenant_id)
        if asking is None or asking.done():
            if self._clock() < self._retry_at.get(tenant_id, 0):
                raise StoreUnavailable("the keys of a tenant could not be had a moment ago")
            asking = self._begin(tenant_id)
        await asyncio.shield(asking)

    def _begin(self, tenant_id: TenantId) -> asyncio.Task[None]:
        asking = start_task(self._fetch(tenant_id))
        self._asking[tenant_id] = asking
        asking.add_done_callback(partial(self._answered, tenant_id))
        return asking

    def _answered(self, tenant_id: TenantId, task: asyncio.Task[None]) -> None:
        if self._asking.get(tenant_id) is task:
            del self._asking[tenant_id]
        if not task.cancelled():
            # Retrieve the exception, because all tasks that waited may have been cancelled.
            task.exception()

    async def _fetch(self, tenant_id: TenantId) -> None:
        async with self._at_once:
            at = self._clock()
            try:
                held = _Held(at, await self._cipher(tenant_id))
            except ContentSealed as error:
                held = _Held(at, refusal=f"{error}")
            except StoreUnavailable:
                self._retry_at[tenant_id] = self._clock() + self.policy.retry_s
                _shorten(self._retry_at, self.policy.tenants_max)
                raise
        self._retry_at.pop(tenant_id, None)
        self._held[tenant_id] = held
        self._held.move_to_end(tenant_id)
        _shorten(self._held, self.policy.tenants_max)

    async def _cipher(self, tenant_id: TenantId) -> ContentCipher:
        assert self._store is not None, "it is on"
        async with self._unless_down("the database of keys"):
            kept = await self._store.keys(tenant_id)
        if not kept and self.policy.seals_all:
            with suppress(StoreConflict):  # made by another process at the same moment: that counts
                await self.add(tenant_id, 1)
            kept = await self._store.keys(tenant_id)
        opened: dict[int, DataKey] = {}
        sealing = PLAIN_KEY
        for key in kept:
            if key.destroyed_at is None:
                try:
                    opened[key.number] = DataKey(await self.unwrap(tenant_id, key))
                except ValueError as error:
                    raise ContentSealed(f"key {key.number} of this tenant is damaged") from error
                sealing = key.number if key.seals else PLAIN_KEY
        if kept and not opened:
            raise ContentSealed(_DESTROYED)
        return ContentCipher(tenant_id, opened, sealing)

    async def add(self, tenant_id: TenantId, number: int) -> WrappedKey:
        assert self._store is not None, "it is on"
        provider = next(iter(self._providers.values()))
        async with self._unless_down(provider.name):
            wrapped, key_ref = await provider.wrap(tenant_id, secrets.token_bytes(KEY_BYTES))
        key = WrappedKey(number, wrapped, provider.name, key_ref)
        await self._store.add(tenant_id, key)
        return key

    async def unwrap(self, tenant_id: TenantId, key: WrappedKey) -> bytes:
        provider = self._providers.get(key.provider)
        if provider is None:
            raise ContentSealed(f"its key was wrapped by {key.provider!r}, which is not configured")
        async with self._unless_down(f"{provider.name} {key.key_ref}"):
            return await provider.unwrap(tenant_id, key.wrapped, key.key_ref)

    @asynccontextmanager
    async def _unless_down(self, service: str) -> AsyncIterator[None]:
        # A service that failed a moment ago is not asked: not every tenant waits for its timeout.
        # Raises `StoreUnavailable`.
        if self._clock() < self._down.get(service, 0):
            raise StoreUnavailable(f"{service} did not answer a moment ago")
        try:
            yield
        except StoreUnavailable:
            self._down[service] = self._clock() + self.policy.retry_s
            raise
        self._down.pop(service, None)


def _shorten(held: OrderedDict[TenantId, Any], count_max: int) -> None:
    while len(held) > count_max:
        held.popitem(last=False)


OFF: Final = Keyring()
