"""A whole gateway without its HTTP."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.services.federation import Federation
from gateway.services.health import Health
from gateway.services.key_sets import KEYS_BYTES_MAX, KeyFetcher, KeySets
from gateway.tools.egress.network_policy import NetworkPolicy
from gateway.tools.egress.transport import EgressLimits, client
from gateway.wiring.database import access
from gateway.wiring.foundation import Foundation
from gateway.wiring.services import Services

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from gateway.services.access import Access
    from gateway.settings import Settings

SWITCH_INTERVAL_S = 0.0001
"""Seconds that a thread may keep the interpreter while the event loop waits for it. With Python's 5
ms each of the loop's system calls beside a busy thread can cost as much: it gives the interpreter
away between any two sockets."""
GC_THRESHOLDS = (1_500, 3, 700)
"""Containers made and not freed between two collections of the youngest, collections of these
between two of those that outlived one, and of these between two of all. A request leaves nothing
behind that only a collection finds, and one of all that a thousand streams hold would be a pause of
20 ms. Those of the younger two take about 1 ms at most."""
LIBRARIES = ("cryptography", "jsonschema_rs", "llguidance")
"""Libraries that requests with tools, formats and sealed reasoning import: 37 MB of compiled
code."""


@dataclass(frozen=True, slots=True)
class Process:
    """Parts of a gateway that serve requests, and those that run beside them."""

    services: Services
    access: Access
    federation: Federation
    health: Health

    @classmethod
    def of(cls, settings: Settings) -> Process:
        """Build the process without connecting. Raises `StartupError` for incomplete settings."""
        base = Foundation.of(settings)
        services = Services.of(base)
        tokens = _federation(base)
        return cls(
            services=services,
            access=access(settings, base.database, tokens),
            federation=tokens,
            health=Health(services.database_check, base.pool, base.metrics, base.membership),
        )

    @property
    def foundation(self) -> Foundation:
        return self.services.foundation

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve for the block; then hand over durable runs and end the rest."""
        _read_ahead(LIBRARIES)
        async with AsyncExitStack() as stack:
            helpers = (self.access.run, self.access.uses.run)
            await stack.enter_async_context(self.foundation.running(*helpers))
            await stack.enter_async_context(self.services.running())
            stack.push_async_callback(self.federation.close)
            _keep_pauses_short()
            try:
                yield
            finally:
                await self.begin_drain()
                self.end_streams()
                await self.access.uses.flush()

    async def begin_drain(self) -> None:
        """Start to drain: report not ready, claim no more runs, hand over durable ones.

        Returns when other replicas may continue those; everything else goes on. May be repeated.
        """
        self.health.begin_drain()
        await self.services.begin_drain()

    def end_streams(self) -> None:
        self.services.end_streams()
        self.foundation.sessions.close()


def _federation(base: Foundation) -> Federation:
    chosen = base.settings.federation
    policy = NetworkPolicy.to(chosen, plain_http=chosen.plain_http)
    http = client(policy, EgressLimits(body_bytes_max=KEYS_BYTES_MAX))
    return Federation(
        base.database,
        KeySets(KeyFetcher(http, policy, metrics=base.metrics)),
        base.sealer,
        token_lifetime_s=chosen.exchanged_token_s,
        defaults=base.settings.tenant_policy,
    )


def _read_ahead(packages: Sequence[str]) -> None:
    # The first request that needs a package imports it in 20 ms, but seconds from a busy disk.
    # Imported here they would take 12 MiB of every process. A package that cannot be loaded is
    # noticed by the first request that needs it, or by `doctor`.
    if not hasattr(os, "posix_fadvise"):
        return  # on macOS
    for package in packages:
        spec = find_spec(package)
        assert spec is not None, "it is one of the dependencies"
        for folder in spec.submodule_search_locations or ():
            for library in Path(folder).rglob("*.so"):
                with suppress(OSError), library.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def _keep_pauses_short() -> None:
    # One event loop runs beside a few busy threads. Objects made until now live as long as the
    # process, so the garbage collector need not scan them again.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)
    gc.collect()
    gc.freeze()
    _give_memory_back()


def _give_memory_back() -> None:
    # glibc keeps some megabytes that reading the vocabulary took. Other C libraries lack this call,
    # and return memory by themselves.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
