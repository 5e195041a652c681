"""The data keys of tenants, unwrapped, for as long as they may be used without asking again.

A tenant's key is asked for once, however many wait for it. What was unwrapped is asked for again
when it is `fresh_s` old: a key that was destroyed, renewed or withdrawn meanwhile counts from then
on everywhere. While whoever wraps keys is away, tenants that are known go on until theirs are
`stale_s` old; unknown ones have to wait.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from gateway.concurrency import start_task
from gateway.encryption.cipher import PLAIN_KEY, ContentCipher
from gateway.errors import ContentSealed, StoreConflict, StoreUnavailable
from gateway.sealing import DataKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from gateway.tenancy import TenantId

KEY_BYTES: Final = 32
REFUSED_S: Final = 10.0
"""So long a tenant whose keys were refused is not asked for again."""
PLAIN: Final = ContentCipher(UUID(int=0), {})
"""For all tenants, where nothing is sealed."""


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A data key as it is kept. `wrapped` is empty once it was destroyed.

    `provider` and `key_ref` say who unwraps it, with which of its keys. `retired_at`: it opens, and
    seals nothing more.
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
        """It is neither retired nor destroyed."""
        return self.retired_at is None and self.destroyed_at is None


class KeyProvider(Protocol):
    """Who wraps data keys. Raises `StoreUnavailable` when that is away for now, and `ContentSealed`
    when it refuses for good.
    """

    @property
    def name(self) -> str:
        """What `WrappedKey.provider` says of it."""

    async def wrap(self, tenant_id: TenantId, secret: bytes) -> tuple[bytes, str]:
        """A data key, wrapped for this tenant alone; and which key it was wrapped with."""

    async def unwrap(self, tenant_id: TenantId, wrapped: bytes, key_ref: str) -> bytes:
        """The inverse of `wrap`."""

    async def close(self) -> None:
        """Close what is open."""


class KeyStore(Protocol):
    """Where wrapped keys are kept. Raises `StoreError`s."""

    async def keys(self, tenant_id: TenantId) -> list[WrappedKey]:
        """All keys of a tenant, by number, destroyed ones included."""

    async def add(self, tenant_id: TenantId, key: WrappedKey) -> None:
        """Keep a key. Raises `StoreConflict` where there is one of that number."""


@dataclass(frozen=True, slots=True)
class KeyringPolicy:
    """`seals_all`: a tenant that has no key gets one when it is first met, and all it writes is
    sealed. Otherwise only tenants that were given one have one.
    """

    seals_all: bool = False
    fresh_s: float = 300.0
    stale_s: float = 900.0
    tenants_max: int = 10_000


@dataclass(frozen=True, slots=True)
class _Held:
    """What is known of a tenant since `at`: its cipher, or why it has none."""

    at: float
    cipher: ContentCipher | None = None
    refusal: str = ""


class Keyring:
    """The ciphers of a process. `ready` before `of`: the one waits, the other does not."""

    def __init__(
        self,
        store: KeyStore | None = None,
        providers: Iterable[KeyProvider] = (),
        policy: KeyringPolicy | None = None,
    ) -> None:
        """New keys are wrapped by the first of the providers. Without a store nothing is sealed."""
        self._store = store
        self._providers: Mapping[str, KeyProvider] = {one.name: one for one in providers}
        self._policy = policy or KeyringPolicy()
        self._held: OrderedDict[TenantId, _Held] = OrderedDict()
        self._asking: dict[TenantId, asyncio.Task[_Held]] = {}
        self.is_on = store is not None and bool(self._providers)
        """Anything is sealed, or may have been."""

    async def ready(self, tenants: Iterable[TenantId]) -> None:
        """Have the keys of these tenants at hand, or know why there are none (`of` says so).

        Raises `StoreUnavailable`, after which what was at hand before still is: who has begun to
        write goes on.
        """
        if not self.is_on:
            return
        now = asyncio.get_running_loop().time()
        for tenant_id in tenants:
            held = self._held.get(tenant_id)
            if held is not None and now - held.at <= self._fresh_s(held):
                self._held.move_to_end(tenant_id)
                continue
            try:
                await self._ask(tenant_id)
            except StoreUnavailable:
                if held is None or now - held.at > self._policy.stale_s:
                    raise

    async def try_ready(self, tenants: Iterable[TenantId]) -> None:
        """The same for what is done for several tenants at once: whose keys cannot be had now holds
        up none of the others, and has what was at hand before (`find`).
        """
        for tenant_id in tenants:
            with suppress(StoreUnavailable):
                await self.ready([tenant_id])

    def of(self, tenant_id: TenantId) -> ContentCipher:
        """The cipher of a tenant that is `ready`. Raises `ContentSealed` where its keys are gone,
        and `StoreUnavailable` where they are not at hand.
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
        """The same; None where `of` raises."""
        try:
            return self.of(tenant_id)
        except (ContentSealed, StoreUnavailable):
            return None

    def forget(self, tenant_id: TenantId) -> None:
        """Ask for its keys again when they are needed next."""
        self._held.pop(tenant_id, None)

    def _fresh_s(self, held: _Held) -> float:
        return REFUSED_S if held.cipher is None else self._policy.fresh_s

    async def close(self) -> None:
        """Forget all keys, and close the providers."""
        self._held.clear()
        for provider in self._providers.values():
            await provider.close()

    async def _ask(self, tenant_id: TenantId) -> None:
        asking = self._asking.get(tenant_id)
        if asking is None:
            asking = start_task(self._asked(tenant_id))
            self._asking[tenant_id] = asking
            asking.add_done_callback(partial(self._answered, tenant_id))
        held = await asyncio.shield(asking)
        self._held[tenant_id] = held
        self._held.move_to_end(tenant_id)
        while len(self._held) > self._policy.tenants_max:
            self._held.popitem(last=False)

    def _answered(self, tenant_id: TenantId, asked: asyncio.Task[_Held]) -> None:
        self._asking.pop(tenant_id, None)
        if not asked.cancelled():
            # Whoever waited may be gone: then nobody else looks at what became of it.
            asked.exception()

    async def _asked(self, tenant_id: TenantId) -> _Held:
        at = asyncio.get_running_loop().time()
        try:
            return _Held(at, await self._cipher(tenant_id))
        except ContentSealed as error:
            return _Held(at, refusal=f"{error}")

    async def _cipher(self, tenant_id: TenantId) -> ContentCipher:
        assert self._store is not None, "it is on"
        kept = await self._store.keys(tenant_id)
        if not kept and self._policy.seals_all:
            with suppress(StoreConflict):  # made by another process at the same moment: that counts
                await self.add(tenant_id, 1)
            kept = await self._store.keys(tenant_id)
        opened: dict[int, DataKey] = {}
        sealing = PLAIN_KEY
        for key in kept:
            if key.destroyed_at is None:
                opened[key.number] = DataKey(await self.unwrap(tenant_id, key))
                sealing = key.number if key.seals else PLAIN_KEY
        if kept and not opened:
            raise ContentSealed("the keys of this tenant were destroyed")
        return ContentCipher(tenant_id, opened, sealing)

    async def add(self, tenant_id: TenantId, number: int) -> WrappedKey:
        """Make a key for a tenant, and keep it. Raises `StoreConflict` where it has one of this
        number, and `StoreUnavailable`.
        """
        assert self._store is not None, "it is on"
        provider = next(iter(self._providers.values()))
        wrapped, key_ref = await provider.wrap(tenant_id, secrets.token_bytes(KEY_BYTES))
        key = WrappedKey(number, wrapped, provider.name, key_ref)
        await self._store.add(tenant_id, key)
        return key

    async def unwrap(self, tenant_id: TenantId, key: WrappedKey) -> bytes:
        """The secret of a key. Raises `ContentSealed` and `StoreUnavailable`."""
        provider = self._providers.get(key.provider)
        if provider is None:
            raise ContentSealed(f"its key was wrapped by {key.provider!r}, which is not configured")
        return await provider.unwrap(tenant_id, key.wrapped, key.key_ref)


OFF: Final = Keyring()
"""Nothing is sealed."""
